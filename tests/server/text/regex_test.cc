#include "server/text/regex.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace ark::text {
namespace {

// The matches, with '|' between them.
std::string matches(std::string_view pattern, std::string_view text) {
  Budget budget(1'000'000, 1 << 20);
  std::string out;
  for (const Span& span : Regex(pattern, "pattern").find_all(text, budget))
    out.append(out.empty() ? "" : "|").append(text.substr(span.begin, span.end - span.begin));
  return out;
}

// Oniguruma's manual (doc/RE), section by section, where PCRE2 reads the same pattern differently.
TEST(Regex, ReadsPatternsAsOnigurumaDoes) {
  EXPECT_EQ(matches("[a-z&&[^aeiou]]+", "abcde"), "bcd");  // intersection of classes
  EXPECT_EQ(matches("[[a-c]x[^\\w]]+", "ab-xz"), "ab-x");  // classes in classes
  EXPECT_EQ(matches("\\h+", "xyz 12AfG"), "12Af");         // hexadecimal digits, no blanks
  EXPECT_EQ(matches("(?m:a.b)", "a\nb"), "a\nb");          // (?m) is dot-all
  EXPECT_EQ(matches("a{1,2}+", "aaaaa"), "aaaaa");         // a repeated interval, not possessive
  EXPECT_EQ(matches("x{,2}y", "xxxy"), "xxy");             // {,n} from nothing
  EXPECT_EQ(matches("^b", "a\nb"), "b");                   // ^ behind every line break
  EXPECT_EQ(matches("\\p{^Alpha}+", "ab12"), "12");
  EXPECT_EQ(matches("[[:^alpha:]]+", "ab12"), "12");
  EXPECT_EQ(matches("\\p{letter}+|\\p{Decimal_Number}+", "ab12"),
            "ab|12");  // names, not only their short forms
  EXPECT_EQ(matches("\\s", "\u180E"), "");
  EXPECT_EQ(matches("[^\\s]+", "a b"), "a|b");
}

TEST(Regex, EmptyMatchesMoveOnByWholeCharacters) {
  Budget budget(1000, 1 << 16);
  const std::vector<Span> spans = Regex("x*", "pattern").find_all("\u00E9x\u00E9", budget);
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[1].begin, 2u);
  EXPECT_EQ(spans[1].end, 3u);
}

TEST(Regex, APatternThatBacktracksForEverEndsWithTheBudget) {
  Budget budget(100'000, 1 << 20);
  const Regex regex("(?:a|aa)+$", "pattern");
  EXPECT_THROW(regex.find_all(std::string(60, 'a') + "c", budget), BudgetExceeded);
}

TEST(Regex, ABrokenPatternIsNamedWithItsPlace) {
  try {
    Regex("a(b", "tokenizer.json: pre_tokenizer.pattern.Regex");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kBadModel);
    EXPECT_TRUE(std::string(error.what()).starts_with("tokenizer.json: pre_tokenizer.pattern.Regex"))
        << error.what();
  }
}

}  // namespace
}  // namespace ark::text
