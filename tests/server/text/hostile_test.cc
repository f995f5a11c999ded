// Files and texts that are small and want very much: each ends soon with an error that says so.
#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <functional>

#include "base/error.h"
#include "server/json.h"
#include "server/text/chat_template.h"
#include "server/text/json_view.h"
#include "server/text/tokenizer.h"
#include "tests/fixtures.h"

namespace ark::text {
namespace {

constexpr Budget kSmall{20'000, std::size_t{8} << 20};

template <typename Function>
void expect_error(Code code, const std::string& part, Function function) {
  try {
    function();
    ADD_FAILURE() << "no error; expected: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

// The processor's time of this thread: others on the machine do not count.
double seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void expect_soon(Code code, const std::string& part, const std::function<void()>& function) {
  const double start = seconds();
  expect_error(code, part, function);
  EXPECT_LT(seconds() - start, 20) << "some 2 s where the compiler optimises";
}

// Lists that hold one list twice, ninety deep: 2^90 items to whoever walks over them.
TEST(HostileTemplate, ComparingOrPrintingSharedListsTookForEver) {
  const std::string shared =
      "{% set ns = namespace(s=[1], t=[1]) %}{% for i in range(90) %}"
      "{% set ns.s = [ns.s, ns.s] %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}";
  for (const char* use :
       {"ns.s == ns.t", "ns.s < ns.t", "ns.s in [ns.t]", "ns.s", "ns.s|tojson", "[ns.s, ns.t]|sort",
        "{}[ns.s, 1]", "ns.s ~ 'x'", "[ns.s].index(ns.t)", "[ns.s]|join", "ns.s is in [ns.t]"}) {
    SCOPED_TRACE(use);
    expect_error(Code::kInvalidArgument, "takes more than 20000 steps", [&] {
      ChatTemplate::parse(shared + "{{ " + use + " }}").render_variables(Json::object(), 0, kSmall);
    });
  }
}

TEST(HostileTemplate, ARawBlockOfTagsTookQuadraticTime) {
  std::string source = "{% raw %}";
  for (int i = 0; i < 400'000; ++i) source += "{%";
  expect_error(Code::kBadModel, "missing end of raw", [&] { ChatTemplate::parse(source); });
}

TEST(HostileTemplate, DoublingATextEndsWithTheBudget) {
  expect_error(Code::kInvalidArgument, "makes more than 8 MiB", [] {
    ChatTemplate::parse(
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}")
        .render_variables(Json::object(), 0, Budget{1 << 30, std::size_t{8} << 20});
  });
}

TEST(HostileTemplate, WhatListsAndCopiesReallyTakeWasNotCharged) {
  for (const char* use :
       {"('a\\n' * 100000).splitlines()", "('a ' * 100000).split()", "('a ' * 100000).rsplit(' ', 99999)",
        "('<' * 1500000)|e", "('\\x01' * 1500000)|tojson", "range(60000)|map('string')|list",
        "('\u0390' * 1500000)|upper", "dict(range(30000)|map('string')|map('list'))"}) {
    SCOPED_TRACE(use);
    expect_error(Code::kInvalidArgument, "makes more than 8 MiB", [&] {
      ChatTemplate::parse(std::string("{{ (") + use + ")|length }}")
          .render_variables(Json::object(), 0, Budget{1 << 30, std::size_t{8} << 20});
    });
  }
}

TEST(HostileTemplate, SplittingAtBlanksKeepsThoseBehindTheLastCut) {  // as Python does
  EXPECT_EQ(
      ChatTemplate::parse("{{ ' a b c '.split(None, 1) }}{{ ' a b  c '.rsplit(None, 1) }}"
                          "{{ 'x y '.split(None, 0) }}{{ 'aaa'.rsplit('aa', 1) }}{{ ' é ü '.rsplit() }}")
          .render_variables(Json::object()),
      "['a', 'b c '][' a b', 'c']['x y ']['a', '']['é', 'ü']");
}

void expect_render_soon(const std::string& source, const std::string& part) {
  SCOPED_TRACE(source.substr(0, 200));
  expect_soon(Code::kInvalidArgument, part,
              [&] { ChatTemplate::parse(source).render_variables(Json::object(), 0); });
}

TEST(HostileTemplate, LongKeysOfDictsWereHashedForNothing) {
  const std::string begin = "{% set s = 'ab' * 500000 %}{% set l = [s] * 90000 %}";
  for (const char* use : {"l|unique(case_sensitive=true)", "l|map(attribute='x')", "dict([(s, 1)])[s]"}) {
    expect_render_soon(begin + "{% for i in range(99999) %}{{ " + use + " }}{% endfor %}", "more than");
    if (test::is_sanitized()) return;  // each takes seconds there
  }
  expect_render_soon(begin + "{{ l|unique(case_sensitive=true)|list }}", "more than");
  expect_render_soon(begin + "{% set d = {s: 1} %}{% for x in l %}{% if s in d %}{% endif %}{% endfor %}",
                     "more than");
}

TEST(HostileTemplate, SearchingForALongTextTookQuadraticTime) {
  const std::string begin = "{% set s = 'a' * 1000000 %}{% set p = 'a' * 500000 ~ 'b' %}";
  const double start = seconds();
  EXPECT_EQ(
      ChatTemplate::parse(begin + "{{ p in s }}{{ s.find(p) }}{{ s.count(p) }}{{ s.split(p)|length }}"
                                  "{{ s.replace(p, 'x')|length }}{{ s.strip('b' * 500000 ~ 'a')|length }}")
          .render_variables(Json::object(), 0),
      "False-10110000000");
  EXPECT_LT(seconds() - start, 20);
  expect_render_soon(begin + "{{ s.rfind(p) }}", "takes more than");
}

TEST(HostileTemplate, ItEndsWhenNobodyWaitsForItAndWhenItsTimeIsOver) {
  const auto spin =
      ChatTemplate::parse("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}");
  int asked = 0;
  const std::function<bool()> gone = [&] { return ++asked > 10; };
  const StopScope stop(gone);
  expect_soon(Code::kInvalidArgument, "was stopped: nobody waits for it",
              [&] { spin.render_variables(Json::object(), 0); });
  EXPECT_EQ(asked, 11);
  const std::function<bool()> waits = [] { return false; };
  const StopScope inner(waits);
  expect_soon(Code::kInvalidArgument, "takes more than 0 s", [&] {
    spin.render_variables(Json::object(), 0, Budget(1 << 30, 1 << 30, std::chrono::seconds(0)));
  });
}

TEST(HostileTemplate, SoManyAreRenderedAtOnceAndTheOthersWaitWhileSomebodyWaitsForThem) {
  const auto spin =
      ChatTemplate::parse("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}");
  const auto quick = ChatTemplate::parse("ok");
  std::atomic<int> rendering = 0;
  std::atomic<bool> enough = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < kRendersAtOnce; ++i)
    threads.emplace_back([&] {
      bool is_first = true;
      const std::function<bool()> stop = [&] {
        if (std::exchange(is_first, false)) ++rendering;
        return enough.load();
      };
      const StopScope scope(stop);
      EXPECT_THROW(
          spin.render_variables(Json::object(), 0, Budget(std::size_t{1} << 60, std::size_t{1} << 60)),
          Error);
    });
  while (rendering < kRendersAtOnce) std::this_thread::yield();
  {
    int asked = 0;
    const std::function<bool()> gone = [&] { return ++asked > 3; };
    const StopScope scope(gone);
    expect_soon(Code::kUnavailable, "too many chat templates",
                [&] { quick.render_variables(Json::object()); });
    EXPECT_EQ(asked, 4);
  }
  std::thread waits([&] { EXPECT_EQ(quick.render_variables(Json::object()), "ok"); });
  enough = true;
  for (std::thread& thread : threads) thread.join();
  waits.join();
}

TEST(HostileTemplate, AFilterThatDoesNotExistIsNamedWhenTheTemplateIsLoaded) {
  expect_error(Code::kBadModel, "chat template, line 2: no filter named 'wordcount'",
               [] { ChatTemplate::parse("a\n{{ x|wordcount }}"); });
  EXPECT_EQ(ChatTemplate::parse("{% if x %}{{ x|fromjson }}{% endif %}ok").render_variables(Json::object()),
            "ok");
}

std::string list_of(int count, const std::string& item) {
  std::string out = "[" + item;
  for (int i = 1; i < count; ++i) out += "," + item;
  return out + "]";
}

Tokenizer tokenizer_with(const std::string& members) {
  return Tokenizer(ark::parse_json(
      R"({"model": {"type": "WordLevel", "vocab": {"a": 0, "x": 1}, "unk_token": "x"},)" + members + "}"));
}

TEST(HostileTokenizer, TwentyThousandPreTokenizersAreRefused) {
  const std::string list = list_of(20'000, R"({"type": "Whitespace"})");
  expect_error(Code::kBadModel, "20000 parts, the limit is 256", [&] {
    tokenizer_with(R"("pre_tokenizer": {"type": "Sequence", "pretokenizers": )" + list + "}");
  });
}

TEST(HostileTokenizer, ADecoderThatDoublesFortyTimesAteAllMemory) {
  const std::string list = list_of(40, R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"})");
  const Tokenizer tokenizer = tokenizer_with(R"("decoder": {"type": "Sequence", "decoders": )" + list + "}");
  const std::vector<std::int32_t> ids{0};
  expect_error(Code::kInvalidArgument, "tokens: decoding makes more than",
               [&] { tokenizer.decode(ids, false); });
}

TEST(HostileTokenizer, ANormalizerThatMakesAMegabyteOfEachLetterAteAllMemory) {
  const std::string megabyte(1 << 20, 'b');
  const Tokenizer tokenizer = tokenizer_with(
      R"("normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": ")" + megabyte + "\"}");
  expect_error(Code::kInvalidArgument, "text: tokenizing it makes more than",
               [&] { tokenizer.encode(std::string(20'000, 'a'), false); });
}

TEST(HostileTokenizer, ADecoderThatMakesMuchOfEveryTokenAteAllMemory) {
  const std::string megabyte(1 << 20, 'b');
  const Tokenizer tokenizer = tokenizer_with(
      R"("decoder": {"type": "Replace", "pattern": {"String": "a"}, "content": ")" + megabyte + "\"}");
  const std::vector<std::int32_t> ids(10'000, 0);
  expect_soon(Code::kInvalidArgument, "tokens: decoding makes more than 64 MiB",
              [&] { tokenizer.decode(ids, false); });
}

TEST(HostileTokenizer, PatternsThatReadAllOfATextAtEveryCharacterEndSoon) {
  for (const char* pattern :
       {"(?=a*b)a", "(?=a*b|a*c)a", "(?!a*b)a|(?<!a)c", "(a|aa)+$b", "(?:a?){30}a{30}b", "(a*)*b",
        "(?=(a*)*c)b", "(?=.*?x)y|(?=.*z)y", "\\\\w+\\\\d", "a*?(?=b)", "(?s:.*)(?=x)"}) {
    SCOPED_TRACE(pattern);
    const Tokenizer tokenizer = tokenizer_with(
        std::string(R"("pre_tokenizer": {"type": "Split", "behavior": "Isolated", "pattern": {"Regex": ")") +
        pattern + "\"}}");
    const double start = seconds();
    try {
      tokenizer.encode(std::string(200'000, 'a'), false);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
    }
    EXPECT_LT(seconds() - start, 10);
  }
}

TEST(HostileTokenizer, LiteralsThatAlmostMatchEverywhereTakeLinearTime) {
  const Tokenizer tokenizer = tokenizer_with(
      R"("normalizer": {"type": "Replace", "content": "", "pattern": {"String": ")" +
      std::string(500'000, 'a') + "b\"}}, \"pre_tokenizer\": {\"type\": \"FixedLength\", \"length\": 8}");
  const double start = seconds();
  EXPECT_EQ(tokenizer.encode(std::string(1'000'000, 'a'), false).size(), 125'000u);
  EXPECT_LT(seconds() - start, 20);
}

TEST(HostileTokenizer, IdsBeyondAllVocabulariesAreRefused) {
  for (const char* id : {"4194304", "2147483647", "-1", "1e9", "18446744073709551615"})
    expect_error(Code::kBadModel, "tokenizer.json: model.vocab", [&] {
      Tokenizer(
          ark::parse_json(std::string(R"({"model": {"type": "WordLevel", "vocab": {"a": )") + id + "}}}"));
    });
}

TEST(HostileTokenizer, MillionsOfValuesAreRefusedBeforeTheyAreParsed) {
  std::string list = "[0";
  for (int i = 0; i < 3'100'000; ++i) list += ",0";
  expect_error(Code::kBadModel, "holds more than 3000000 values",
               [&] { parse_json(list + "]", "tokenizer.json"); });
}

TEST(HostileTokenizer, TwentyMillionBracketsAreRefusedBeforeTheyAreParsed) {
  expect_error(Code::kBadModel, "nested deeper than 64 levels",
               [] { parse_json(std::string(20'000'000, '['), "tokenizer.json"); });
  EXPECT_NO_THROW(parse_json(
      R"({"a": "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\"[[["})", "x"));
}

}  // namespace
}  // namespace ark::text
