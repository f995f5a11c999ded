// Against what PyPI `tokenizers` and `jinja2` make of the same input; make_cases.py writes the files.
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "server/json.h"
#include "server/text/chat_template.h"
#include "server/text/detokenizer.h"
#include "server/text/json_view.h"
#include "server/text/tokenizer.h"
#include "server/text/unicode.h"
#include "tests/fixtures.h"

namespace ark::text {
namespace {

Json cases_of(const char* name) {
  return parse_json_file(test::source_root() / "tests" / "server" / "text" / name);
}

void check_case(const Tokenizer& tokenizer, const Json& entry) {
  const std::string text = entry.at("text").get<std::string>();
  const auto ids = entry.at("ids").get<std::vector<std::int32_t>>();
  EXPECT_EQ(tokenizer.encode(text, true), ids) << text;
  EXPECT_EQ(tokenizer.decode(ids, false), entry.at("decoded").get<std::string>()) << text;
  Detokenizer stream(tokenizer, false);
  std::string parts;
  for (const std::int32_t id : ids) parts += stream.push(id);
  EXPECT_EQ(parts + stream.flush(), entry.at("decoded").get<std::string>()) << text;
}

TEST(TokenizerCases, IdsAndTextsAreThoseOfTheOracle) {
  const Json file = cases_of("tokenizer_cases.json");
  for (const Json& entry : file.at("tokenizers")) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    const Tokenizer tokenizer(entry.at("tokenizer"));
    for (const Json& one : entry.at("cases")) check_case(tokenizer, one);
  }
}

TEST(TokenizerCases, TheFixturesCasesHold) {
  const auto folder = test::fixtures() / "tiny-tokenizer";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no " << folder;
  const Tokenizer tokenizer = Tokenizer::load(folder / "tokenizer.json");
  const Json cases = parse_json_file(folder / "tokenizer_cases.json").at("cases");
  ASSERT_GT(cases.size(), 20u);
  for (const Json& one : cases) check_case(tokenizer, one);
}

// Random ids: characters cut in the middle and runs of bytes that are no text.
TEST(TokenizerCases, AStreamOfAnyIdsEqualsTheWholeInWholeCharacters) {
  std::mt19937 random(3);
  const Json file = cases_of("tokenizer_cases.json");
  for (const Json& entry : file.at("tokenizers")) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    const Tokenizer tokenizer(entry.at("tokenizer"));
    for (int round = 0; round < 200; ++round) {
      std::vector<std::int32_t> ids(random() % 12);
      for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % (tokenizer.vocab_size() + 1));
      Detokenizer stream(tokenizer, round % 2 == 0);
      std::string parts;
      for (const std::int32_t id : ids) {
        const std::string part = stream.push(id);
        EXPECT_TRUE(is_valid_utf8(part));
        parts += part;
      }
      ASSERT_EQ(parts + stream.flush(), tokenizer.decode(ids, round % 2 == 0));
    }
  }
}

// Wherever a text is cut between whole characters: what a model writes behind a prompt.
TEST(TokenizerCases, WhatStandsBehindTokensGoesOnWithTheirText) {
  int cuts = 0;
  const Json file = cases_of("tokenizer_cases.json");
  for (const Json& entry : file.at("tokenizers")) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    const Json& decoder = entry.at("tokenizer").value("decoder", Json());
    if (decoder.is_object() && decoder.at("type") == "BPEDecoder")
      continue;  // a space stands before the next word
    const Tokenizer tokenizer(entry.at("tokenizer"));
    for (const Json& one : entry.at("cases")) {
      const auto ids = one.at("ids").get<std::vector<std::int32_t>>();
      const std::string whole = tokenizer.decode(ids, false);
      for (std::size_t cut = 1; cut < ids.size(); ++cut) {
        const std::span before = std::span(ids).first(cut);
        const std::string begun = tokenizer.decode(before, false);
        if (begun.empty() || !whole.starts_with(begun)) continue;
        Detokenizer stream(tokenizer, false, before);
        std::string rest;
        for (const std::int32_t id : std::span(ids).subspan(cut)) rest += stream.push(id);
        EXPECT_EQ(begun + rest + stream.flush(), whole) << cut;
        ++cuts;
      }
    }
  }
  EXPECT_GT(cuts, 1000);
}

TEST(TemplateCases, TextsAreThoseOfJinja2AndErrorsWhereItHasErrors) {
  const Json file = cases_of("template_cases.json");
  int texts = 0;
  for (const Json& one : file.at("cases")) {
    const std::string source = file.at("templates").at(one.at(0).get<std::size_t>()).get<std::string>();
    std::optional<std::string> text, expected;
    if (!one.at(2).is_null()) expected = one.at(2).get<std::string>();
    try {
      text =
          ChatTemplate::parse(source).render_variables(file.at("variables").at(one.at(1).get<std::size_t>()));
    } catch (const Error&) {
    }
    texts += expected.has_value();
    EXPECT_EQ(text, expected) << source;
  }
  EXPECT_GT(texts, 120);
}

}  // namespace
}  // namespace ark::text
