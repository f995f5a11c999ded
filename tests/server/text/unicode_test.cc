#include "server/text/unicode.h"

#include <gtest/gtest.h>

#include <random>

namespace ark::text {
namespace {

// The definition of UTF-8: what encodes to these bytes.
bool is_encoding(std::string_view bytes) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const std::size_t n = bytes.size();
  std::uint32_t c = n == 1 ? byte(0) : byte(0) & (0x7F >> n);
  for (std::size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return false;
    c = c << 6 | (byte(i) & 0x3F);
  }
  if (n > 1 && (byte(0) & (0xFF << (7 - n) & 0xFF)) != (0xFF << (8 - n) & 0xFF)) return false;
  constexpr std::uint32_t kLowest[] = {0, 0, 0x80, 0x800, 0x10000};
  return n <= 4 && c >= kLowest[n] && c <= (n == 1 ? 0x7Fu : 0x10FFFFu) && !(c >= 0xD800 && c < 0xE000);
}

TEST(Utf8, EveryPairAndTripleOfBytesIsJudgedByTheDefinition) {
  std::mt19937 random(1);
  for (int round = 0; round < 200000; ++round) {
    std::string bytes(1 + random() % 4, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % 4 ? 0x80 | random() % 128 : random() % 256);
    const Utf8Prefix prefix = utf8_prefix(bytes);
    std::size_t length = 0;
    for (std::size_t n = 1; n <= bytes.size(); ++n)
      if (is_encoding(std::string_view(bytes).substr(0, n))) length = n;
    ASSERT_EQ(prefix.valid, length > 0) << testing::PrintToString(bytes);
    if (length > 0) {
      ASSERT_EQ(prefix.length, length);
    }
  }
}

TEST(Utf8, EveryCharacterSurvivesBothWays) {
  for (char32_t c = 0; c <= 0x10FFFF; c += c < 0x3000 ? 1 : 97) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    std::size_t at = 0;
    ASSERT_TRUE(is_valid_utf8(text));
    ASSERT_EQ(next_char(text, at), c);
    ASSERT_EQ(at, text.size());
  }
}

TEST(Utf8, BrokenPartsBecomeOneReplacementEachAsTheStandardRecommends) {
  // Table 3-8 of the Unicode standard.
  EXPECT_EQ(lossy_utf8("\xF0\x80\x80\x41"), "\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(lossy_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), "\uFFFD\uFFFD\uFFFD\uFFFDA");
}

// Examples of the Unicode standard's annex 15 and of SpecialCasing.txt.
TEST(Unicode, NormalFormsAndCasesFollowTheStandard) {
  EXPECT_EQ(normalize("\u1E9B\u0323", NormalForm::kNfc), "\u1E9B\u0323");
  EXPECT_EQ(normalize("\u1E9B\u0323", NormalForm::kNfd), "\u017F\u0323\u0307");
  EXPECT_EQ(normalize("\u1E9B\u0323", NormalForm::kNfkc), "\u1E69");
  EXPECT_EQ(normalize("\u1E9B\u0323", NormalForm::kNfkd), "s\u0323\u0307");
  EXPECT_EQ(normalize("\uFB01", NormalForm::kNfkc), "fi");
  EXPECT_EQ(to_upper("stra\u00DFe \uFB03"), "STRASSE FFI");
  EXPECT_EQ(to_lower("\u0130I"), "i\u0307i");
  EXPECT_EQ(to_title(0x01C6), "\u01C5");
}

TEST(Unicode, AFlagAndAFamilyAreOneGraphemeEach) {
  const std::string text = "e\u0301\U0001F1E9\U0001F1EA\U0001F468\u200D\U0001F469x";
  const std::vector<std::string_view> clusters = graphemes(text);
  ASSERT_EQ(clusters.size(), 4u);
  EXPECT_EQ(clusters[0], "e\u0301");
  EXPECT_EQ(clusters[3], "x");
}

}  // namespace
}  // namespace ark::text
