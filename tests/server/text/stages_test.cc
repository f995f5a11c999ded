// Normalizers, pre-tokenizers and decoders by themselves; expectations are those of the documentation of PyPI
// `tokenizers` (its table of components), each written out.
#include <gtest/gtest.h>

#include "base/error.h"
#include "server/json.h"
#include "server/text/decoder.h"
#include "server/text/json_view.h"
#include "server/text/normalizer.h"
#include "server/text/pre_tokenizer.h"

namespace ark::text {
namespace {

std::string normalized(const char* json, std::string text) {
  const Json document = ark::parse_json(json);
  Budget budget(1'000'000, 1 << 20);
  Normalizer(JsonView(document, "normalizer")).apply(text, budget);
  return text;
}

std::string cut(const char* json, const std::string& text) {
  const Json document = ark::parse_json(json);
  Budget budget(1'000'000, 1 << 20);
  std::vector<Piece> pieces{{text, true}};
  PreTokenizer(JsonView(document, "pre_tokenizer")).apply(pieces, budget);
  std::string out;
  for (const Piece& piece : pieces) out += (out.empty() ? "" : "|") + piece.text;
  return out;
}

TEST(Normalizer, EachKindDoesWhatItsNameSays) {
  EXPECT_EQ(normalized(R"({"type": "Lowercase"})", "HELLO \u00C9"), "hello \u00E9");
  EXPECT_EQ(normalized(R"({"type": "Strip", "strip_left": true, "strip_right": false})", " a "), "a ");
  EXPECT_EQ(normalized(R"({"type": "Replace", "pattern": {"String": "a"}, "content": "e"})", "banana"),
            "benene");
  EXPECT_EQ(normalized(R"({"type": "Prepend", "prepend": "_"})", "x"), "_x");
  EXPECT_EQ(normalized(R"({"type": "Prepend", "prepend": "_"})", ""), "");
  EXPECT_EQ(normalized(R"({"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]})",
                       "H\u00E9ll\u00F2"),
            "Hello");
  EXPECT_EQ(normalized(R"({"type": "BertNormalizer", "lowercase": true})", "H\u00E9\t\u4E16"), "he  \u4E16 ");
  EXPECT_EQ(normalized(R"({"type": "ByteLevel"})", "a b"), "a\u0120b");
}

TEST(PreTokenizer, EachBehaviourOfSplit) {
  const auto split = [](const std::string& behavior) {
    return cut((R"({"type": "Split", "pattern": {"String": "-"}, "behavior": ")" + behavior + "\"}").c_str(),
               "the-final--countdown");
  };
  EXPECT_EQ(split("Removed"), "the|final|countdown");
  EXPECT_EQ(split("Isolated"), "the|-|final|-|-|countdown");
  EXPECT_EQ(split("MergedWithPrevious"), "the-|final-|-|countdown");
  EXPECT_EQ(split("MergedWithNext"), "the|-final|-|-countdown");
  EXPECT_EQ(split("Contiguous"), "the|-|final|--|countdown");
}

TEST(PreTokenizer, EachKindDoesWhatItsNameSays) {
  EXPECT_EQ(cut(R"({"type": "Whitespace"})", "Hello there!"), "Hello|there|!");
  EXPECT_EQ(cut(R"({"type": "WhitespaceSplit"})", "Hello there!"), "Hello|there!");
  EXPECT_EQ(cut(R"({"type": "Punctuation"})", "Hello?"), "Hello|?");
  EXPECT_EQ(cut(R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"})", "Hello there"),
            "_Hello|_there");
  EXPECT_EQ(cut(R"({"type": "CharDelimiterSplit", "delimiter": "x"})", "Helloxthere"), "Hello|there");
  EXPECT_EQ(cut(R"({"type": "Digits", "individual_digits": false})", "Hello123there"), "Hello|123|there");
  EXPECT_EQ(cut(R"({"type": "Digits", "individual_digits": true})", "a12"), "a|1|2");
  EXPECT_EQ(cut(R"({"type": "FixedLength", "length": 2})", "a\u00E9bcd"), "a\u00E9|bc|d");
  EXPECT_EQ(cut(R"({"type": "ByteLevel", "add_prefix_space": false})", "Hello my friend's"),
            "Hello|\u0120my|\u0120friend|'s");
}

// What each token makes certain: what waited for it | its own.
std::string decoded(const char* json, const std::vector<std::string>& tokens) {
  const Json document = ark::parse_json(json);
  const Decoder decoder{JsonView(document, "decoder")};
  Decoder::Stream stream(decoder);
  std::string out;
  for (const std::string& token : tokens) {
    const std::string text = stream.push(token);
    out += text.substr(0, stream.own_begin()) + "|" + text.substr(stream.own_begin()) + ", ";
  }
  return out + stream.flush();
}

TEST(Decoder, TextThatWaitedForATokenIsNoneOfItsOwn) {
  const char* bytes = R"({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "_"},
      "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1,
      "stop": 0}]})";
  EXPECT_EQ(decoded(bytes, {"_a", "<0xC3>", "<0xA9>", "_b", "<0xC3>", "c", "<0xC3>"}),
            "|a, |, |, \u00E9| b, |, \uFFFD|c, |, \uFFFD");
  const char* level = R"({"type": "ByteLevel"})";
  EXPECT_EQ(decoded(level, {"a", "\u00C3", "\u00A9b", "\u00C3", "c", "\u00C3", "\u00C3"}),
            "|a, |, |\u00E9"
            "b, |, \uFFFD|c, |, \uFFFD|, \uFFFD");
  const char* suffix = R"({"type": "BPEDecoder", "suffix": "</w>"})";
  EXPECT_EQ(decoded(suffix, {"a", "b</w>", "c</w>"}), "|, a|, b |, c");
  const char* strip = R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": ".",
      "start": 0, "stop": 1}]})";
  EXPECT_EQ(decoded(strip, {"a.", "..", "b"}), "|a, .|., .|b, ");
}

TEST(PreTokenizer, AnUnknownKindIsNamed) { EXPECT_THROW(cut(R"({"type": "Magic"})", "x"), Error); }

}  // namespace
}  // namespace ark::text
