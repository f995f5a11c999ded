// Files and texts that are small and want very much: each ends soon with an error that says so.
#include <gtest/gtest.h>

#include "base/error.h"
#include "server/json.h"
#include "server/text/chat_template.h"
#include "server/text/json_view.h"
#include "server/text/tokenizer.h"

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

TEST(HostileTokenizer, AHundredThousandBracketsAreRefusedBeforeTheyAreParsed) {
  expect_error(Code::kBadModel, "nested deeper than 64 levels",
               [] { parse_json(std::string(100'000, '['), "tokenizer.json"); });
  EXPECT_NO_THROW(parse_json(
      R"({"a": "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\"[[["})", "x"));
}

}  // namespace
}  // namespace ark::text
