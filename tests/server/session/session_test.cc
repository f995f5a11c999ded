// Sessions over the fake runner: no HTTP, no tokenizer.
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <set>
#include <utility>

#include "base/error.h"
#include "server/json.h"
#include "server/session/batch.h"
#include "server/session/encode.h"
#include "server/text/budget.h"
#include "tests/server/schedule/requests.h"

namespace ark::session {
namespace {

using test::FakeRunner;

std::shared_ptr<FakeRunner> fake_runner() { return std::make_shared<FakeRunner>(test::small_limits()); }

ServedModel served(std::shared_ptr<StepRunner> runner, std::vector<int32_t> end_ids = {}) {
  return {.name = "fake",
          .aliases = {"other"},
          .runner = std::move(runner),
          .text = std::make_shared<const text::ModelText>(),
          .end_ids = std::move(end_ids)};
}

std::vector<int32_t> continued(std::vector<int32_t> prompt, int32_t count) {
  return test::expected_outcome({.prompt = std::move(prompt), .max_tokens = count}).tokens;
}

const auto never = [] { return false; };

TEST(Session, EachSequenceOfABatchGetsItsTokens) {
  Model model(served(fake_runner()), {});
  Batch batch(model);
  std::vector<std::vector<int32_t>> prompts = {{1, 2, 3}, {4}, {1, 2, 3}, {7, 7}}, got(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i)
    batch.submit({.prompt = prompts[i], .max_tokens = 5 + static_cast<int32_t>(i)}, {});
  EXPECT_TRUE(batch.run(never, [&](std::size_t i, Piece piece) {
    got[i].insert(got[i].end(), piece.ids.begin(), piece.ids.end());
  }));
  int64_t all = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(got[i], continued(prompts[i], 5 + static_cast<int32_t>(i)));
    EXPECT_STREQ(batch.at(i).finish_reason(), "length");
    EXPECT_TRUE(std::holds_alternative<std::monostate>(batch.at(i).stop_reason()));
    all += static_cast<int64_t>(got[i].size());
  }
  EXPECT_EQ(batch.generated(), all);
  EXPECT_EQ(model.statistics.length, 4);
}

TEST(Session, AnEndTokenOfTheRequestIsTheReasonAndOneOfTheModelIsNot) {
  const std::vector<int32_t> tokens = continued({9, 8}, 6);
  const int32_t end = tokens[3];
  const auto first = static_cast<std::size_t>(std::find(tokens.begin(), tokens.end(), end) - tokens.begin());
  for (const bool models_own : {false, true}) {
    Model model(served(fake_runner(), models_own ? std::vector{end} : std::vector<int32_t>{}), {});
    Batch batch(model);
    std::vector<int32_t> got;
    batch.submit({.prompt = {9, 8}, .max_tokens = 20, .end_ids = {end}}, {});
    batch.run(never,
              [&](std::size_t, Piece piece) { got.insert(got.end(), piece.ids.begin(), piece.ids.end()); });
    EXPECT_EQ(got.size(), first + 1);
    EXPECT_STREQ(batch.at(0).finish_reason(), "stop");
    EXPECT_EQ(batch.at(0).stop_reason(), models_own ? StopReason() : StopReason(end));
  }
}

TEST(Session, TokensStandWhereTheirOwnTextBeginsBehindThePrompt) {
  std::vector<int32_t> prompt = {9}, tokens;
  const std::vector<std::string> spelled = {"_a", "<0xC3>", "<0xA9>", "b", "<0xC2>", "<0xB0>", "</s>", "_x"};
  do {  // until they are all different
    ++prompt[0];
    tokens = continued(prompt, static_cast<int32_t>(spelled.size()) - 1);
    tokens.push_back(prompt[0]);
  } while (std::set(tokens.begin(), tokens.end()).size() < spelled.size());
  const int32_t end = tokens[6];
  Json vocabulary = Json::object();
  for (std::size_t i = 0; i < spelled.size(); ++i) vocabulary[spelled[i]] = tokens[i];
  const Json decoders = {{{"type", "Replace"}, {"pattern", {{"String", "_"}}}, {"content", " "}},
                         {{"type", "ByteFallback"}},
                         {{"type", "Fuse"}},
                         {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}};
  text::ModelText text;
  text.tokenizer.emplace(Json{{"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}},
                              {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}}});
  ServedModel with_text = served(fake_runner(), {end});
  with_text.text = std::make_shared<const text::ModelText>(std::move(text));
  Model model(std::move(with_text), {});
  schedule::GenerateRequest request{.prompt = prompt, .max_tokens = 20, .end_ids = {end}, .top_logprobs = 0};
  Batch batch(model);
  batch.submit(request, {.goes_on = true});
  request.constrain = [] { return std::make_unique<test::NoMultiples>(1000, 20); };
  batch.submit(request, {.goes_on = true});  // a text of a form is one by itself
  std::vector<std::size_t> begins[2];
  std::string texts[2];
  batch.run(never, [&](std::size_t i, Piece piece) {
    texts[i] += piece.text;
    for (const TokenScore& score : piece.scores) begins[i].push_back(score.begin);
  });
  EXPECT_EQ(texts[0], " a\u00E9b\u00B0");
  EXPECT_EQ(begins[0], (std::vector<std::size_t>{0, 2, 2, 4, 5, 5, 7}));
  EXPECT_EQ(texts[1], "a\u00E9b\u00B0");
  EXPECT_EQ(begins[1], (std::vector<std::size_t>{0, 1, 1, 3, 4, 4, 6}));
}

TEST(Session, WhoGivesUpCancels) {
  const auto runner = fake_runner();
  runner->allow(5);
  Model model(served(runner), {});
  {
    Batch batch(model);
    batch.submit({.prompt = {1}, .max_tokens = 60}, {});
    EXPECT_FALSE(batch.run([] { return true; }, [](std::size_t, Piece) {}));
  }
  EXPECT_EQ(model.statistics.cancelled, 1);
  runner->allow(FakeRunner::kAllSteps);
  EXPECT_TRUE(model.scheduler->drain(std::chrono::seconds(20)));
}

TEST(Session, AFailedRunnerIsAnErrorThatSaysWhy) {
  const auto runner = fake_runner();
  runner->fail_at(3);
  Model model(served(runner), {});
  Batch batch(model);
  batch.submit({.prompt = {1}, .max_tokens = 60}, {});
  try {
    batch.run(never, [](std::size_t, Piece) {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kUnavailable);
    EXPECT_NE(std::string(e.what()).find("rank 1 died"), std::string::npos);
  }
  EXPECT_EQ(model.statistics.failed, 1);
}

TEST(Session, WithoutATokenizerTextCannotBeEncoded) {
  const Model model(served(fake_runner()), {});
  try {
    encode(model, "text", true);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kUnsupported);
  }
  EXPECT_TRUE(model.is_called("fake") && model.is_called("other") && !model.is_called("third"));
}

TEST(Session, NobodyWaitsForALongTextsTurnWhoseClientHasGone) {
  ServedModel with_words = served(fake_runner());
  with_words.text = std::make_shared<const text::ModelText>(
      text::ModelText{.tokenizer = text::Tokenizer(parse_json(
                          R"({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
              "pre_tokenizer": {"type": "FixedLength", "length": 1}})"))});
  const Model model(std::move(with_words), {});
  const std::string longer(300 << 10, 'a');
  std::promise<void> begun, may_end;
  auto first = std::async(std::launch::async, [&] {
    const std::function<bool()> holds = [&, is_first = true]() mutable {
      if (std::exchange(is_first, false)) begun.set_value(), may_end.get_future().wait();
      return false;
    };
    const text::StopScope stop(holds);
    return encode(model, longer, false).size();
  });
  begun.get_future().wait();
  auto second = std::async(std::launch::async, [&] {
    const std::function<bool()> gone = [] { return true; };
    const text::StopScope stop(gone);
    EXPECT_THROW(encode(model, longer, false), Error);
  });
  EXPECT_EQ(second.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_EQ(encode(model, "aa", false).size(), 2u);  // short ones need no turn
  may_end.set_value();
  EXPECT_EQ(first.get(), longer.size());
}

TEST(Session, SeedsAreReproducibleAndDifferBySequence) {
  EXPECT_EQ(seed_of(7, 0), 7u);
  EXPECT_EQ(seed_of(7, 3), seed_of(7, 3));
  EXPECT_NE(seed_of(7, 1), seed_of(7, 2));
  EXPECT_NE(seed_of(7, 1), seed_of(8, 1));
  EXPECT_NE(seed_of(std::nullopt, 0), seed_of(std::nullopt, 0));
}

}  // namespace
}  // namespace ark::session
