// Which texts a grammar holds: regular expressions, lists, GBNF, calls; and what is refused, with its place.
#include "server/text/grammar/grammar.h"

#include <gtest/gtest.h>

#include "server/json.h"
#include "server/text/json_view.h"
#include "tests/fixtures.h"
#include "tests/server/text/grammar/texts.h"

namespace ark::text {
namespace {

using test::error_of;
using test::holds;

void expect_texts(const Grammar::Ptr& grammar, const std::vector<std::string>& right,
                  const std::vector<std::string>& wrong) {
  for (const std::string& text : right) EXPECT_TRUE(holds(grammar, text)) << text;
  for (const std::string& text : wrong) EXPECT_FALSE(holds(grammar, text)) << text;
}

std::string regex_error(const std::string& pattern) {
  return error_of([&] { Grammar::of_regex(pattern); });
}
std::string gbnf_error(const std::string& text) {
  return error_of([&] { Grammar::of_gbnf(text); });
}

// Against Python's `re`; make_cases.py writes the file.
TEST(GrammarRegex, TextsAreThoseOfTheOracle) {
  const Json cases =
      parse_json_file(test::source_root() / "tests/server/text/grammar/grammar_cases.json").at("patterns");
  ASSERT_GT(cases.size(), 100u);
  for (std::size_t i = 0; i < cases.size(); i += test::is_sanitized() ? 8 : 1) {
    const Json& one = cases[i];
    SCOPED_TRACE(one.at("pattern").get<std::string>());
    expect_texts(Grammar::of_regex(one.at("pattern").get<std::string>()),
                 one.at("right").get<std::vector<std::string>>(),
                 one.at("wrong").get<std::vector<std::string>>());
  }
}

TEST(GrammarRegex, CharactersAreWholeHoweverLong) {
  expect_texts(Grammar::of_regex("."), {"a", "é", "世", "😀", "\U0010FFFF", "\r"},
               {"\n", "ab", "\xC3", "\xED\xA0\x80"});
  expect_texts(Grammar::of_regex("[^a]"), {"é", "\n"}, {"a", "\xF5\x80\x80\x80"});
}

TEST(GrammarRegex, WhatIsNoWordIsNoneToAnyone) {
  expect_texts(Grammar::of_regex("\\W\\D\\S"), {"- x", "--x"}, {"é x", "-٣x", "--\u00A0", "² x"});
  expect_texts(Grammar::of_regex("[^\\W][^\\S]"), {"a "}, {"é ", "a\u00A0"});
}

TEST(GrammarRegex, AnchorsStandAtTheEnds) {
  expect_texts(Grammar::of_regex("^a$|^(?:b)$|(^c|d$)"), {"a", "b", "c", "d"}, {"^a", "ab"});
  EXPECT_EQ(regex_error("a^b"), "regex: index 1: \"^\" is supported at the beginning only");
  EXPECT_EQ(regex_error("a$b"), "regex: index 2: \"$\" is supported at the end only");
  EXPECT_NE(regex_error("x(^a|b)"), "");
  EXPECT_NE(regex_error("(^a|b)*"), "");
}

TEST(GrammarRegex, WhatIsNotSupportedIsNamedWithItsIndex) {
  const std::pair<const char*, const char*> cases[] = {
      {"ab(?=c)", "regex: index 2: lookahead"},
      {"(?<!c)", "regex: index 0: lookbehind"},
      {"(a)\\1", "regex: index 3: backreferences"},
      {"(?P<n>a)(?P=n)", "regex: index 8: backreferences"},
      {"\\bx", "regex: index 0: word boundaries"},
      {"(?i)a", "regex: index 0: inline flags"},
      {"a++", "regex: index 2: possessive"},
      {"(?>a)", "regex: index 0: atomic"},
      {"a**", "regex: index 2: a quantifier behind a quantifier"},
      {"*a", "regex: index 0: nothing to repeat"},
      {"a{2,1}", "regex: index 1: the upper bound"},
      {"a{,3}", "regex: index 1: {,n}"},
      {"(a", "regex: index 0: \"(\" without \")\""},
      {"a)", "regex: index 1: \")\" without \"(\""},
      {"[a", "regex: index 0: \"[\" without \"]\""},
      {"[]a]", "regex: index 1: \"]\" as the first"},
      {"[b-a]", "regex: index 1: a range"},
      {"[a-\\d]", "regex: index 1: a range"},
      {"[[:alpha:]]", "regex: index 1: POSIX"},
      {"\\p{Greek}", "regex: index 0: \\p{Greek}"},
      {"\\q", "regex: index 0: \\q"},
      {"\\x4", "regex: index 0: expected 2"},
      {"\\uD800", "regex: index 0: not a character"},
      {"a\\", "regex: index 1: nothing behind"},
      {"\xFF", "regex: not valid UTF-8"},
      {"a{0,1000000}", "regex: index 4: a number of repetitions"},
  };
  for (const auto& [pattern, message] : cases)
    EXPECT_TRUE(regex_error(pattern).starts_with(message)) << regex_error(pattern);
  EXPECT_NE(regex_error("[^\\s\\S]").find("no text fits"), std::string::npos);
}

TEST(GrammarChoices, OneOfTheTexts) {
  expect_texts(Grammar::of_choices(std::vector<std::string>{"yes", "no", "not", ""}),
               {"yes", "no", "not", ""}, {"n", "yesno"});
  EXPECT_EQ(error_of([] { Grammar::of_choices({}); }), "choice: it is empty; name at least one text");
  EXPECT_EQ(error_of([] {
              Grammar::of_choices(std::vector<std::string>{"a", "\xFF"});
            }),
            "choice[1]: not valid UTF-8");
}

TEST(GrammarJson, AnyObject) {
  expect_texts(Grammar::of_json_object(),
               {R"({"a": [1, -2.5e3, {"b": null}], "c":"x\u00e9\n"})", "{}", "\n{\n  \"a\": true\n}",
                R"({"":"\ud83d\ude00😀"})"},
               {"[1]", R"({"a": 01})", R"({"a":1,})", R"({"a":"\ud83d"})", "{}\n", "{  }", R"({"a" :1})",
                "{\"a\":\"\t\"}", R"({"a":12345678901234567})", R"({"a":+1})", "  {}"});
}

TEST(GrammarGbnf, RulesHoldTheirTexts) {
  expect_texts(Grammar::of_gbnf("root ::= expr \"\\n\" # the end\n\n"
                                "expr ::= term ([-+*/] term)*\n"
                                "term ::= num |\n  (\"(\" expr\n  \")\")\n"
                                "num ::= [0-9]{1,3} (\".\" [0-9]+)?\n"),
               {"1+2*(3-4.5)\n", "999\n", "((1))\n"}, {"1+\n", "1000\n", "(1\n", "1.\n"});
  expect_texts(Grammar::of_gbnf(
                   "root ::= \"a\" root \"b\" | sub-rule\nsub-rule ::= [^a-b\\n] . | \"\\x41\\u00e9\\\"\""),
               {"aaxybb", "xa", "Aé\"", "aAé\"b"}, {"ab", "axyb b", "ax"});
}

TEST(GrammarGbnf, WhatIsWrongIsNamedWithItsLineAndColumn) {
  const std::pair<const char*, const char*> cases[] = {
      {"root ::= a\na ::= b", "grammar: 2:7: rule \"b\" is not defined"},
      {"a ::= \"b\"", "grammar: 1:10: there is no rule \"root\""},
      {"root ::= \"a", "grammar: 1:10: it has no end on its line"},
      {"root ::= [a\n]", "grammar: 1:10: it has no end on its line"},
      {"root ::= (\"a\"", "grammar: 1:10: \"(\" without \")\""},
      {"root ::= \"a\")", "grammar: 1:13: \")\" without \"(\""},
      {"root ::= \"a\"**", "grammar: 1:14: a quantifier behind"},
      {"root ::= *", "grammar: 1:10: nothing to repeat"},
      {"root = \"a\"", "grammar: 1:6: expected ::="},
      {"root ::= \"a\"\nroot ::= \"b\"", "grammar: 2:1: the rule is defined twice"},
      {"root ::= \"\\q\"", "grammar: 1:11: the escape is not known"},
      {"root ::= \"a\"{2,1}", "grammar: 1:13: the upper bound"},
      {"root ::= \"a\" !", "grammar: 1:14: expected a literal"},
      {"root ::= root \"a\" | \"b\"", "grammar: rule \"root\" begins with itself"},
      {"root ::= x? sum\nx ::= \"x\"\nsum ::= x* root \"+\" | \"1\"", "grammar: rule \""},
      {"root ::= \"a\" root", "grammar: no text fits"},
  };
  for (const auto& [text, message] : cases)
    EXPECT_TRUE(gbnf_error(text).starts_with(message)) << gbnf_error(text);
}

TEST(GrammarGbnf, RulesThatLeadToThemselvesWithoutATextAreHarmless) {
  expect_texts(Grammar::of_gbnf("root ::= root | a | \"x\"\na ::= root | b?\nb ::= \"y\" b?"),
               {"x", "y", "yy", ""}, {"xy"});
  expect_texts(Grammar::of_gbnf("root ::= ((\"a\"*)*)+ never?\nnever ::= \"b\" never"), {"", "aaa"}, {"b"});
}

TEST(GrammarCalls, OneOrMany) {
  const std::vector<std::pair<std::string, Json>> functions = {
      {"add",
       ark::parse_json(
           R"({"type":"object","properties":{"x":{"type":"integer"}},"required":["x"],"additionalProperties":false})")},
      {"now \"é\"", ark::parse_json(R"({"type":"object","additionalProperties":false})")}};
  const std::string add = "<call>\n{\"name\": \"add\", \"arguments\": {\"x\": 1}}\n</call>";
  const std::string now = "<call>{\"name\":\"now \\\"é\\\"\",\"arguments\":{}}</call>";
  expect_texts(Grammar::of_calls("<call>", "</call>", functions, false), {add, now},
               {add + now, "", "{}", "<call>{}</call>"});
  expect_texts(Grammar::of_calls("<call>", "</call>", functions, true), {add, add + "\n" + now + " " + add},
               {add + "\n", ""});
  const Json otherwise = ark::parse_json(R"({"type":"boolean"})");
  expect_texts(Grammar::of_calls("<call>", "</call>", functions, false, &otherwise), {add, "true", " false"},
               {add + "true", "1", ""});
  const std::vector<std::pair<std::string, Json>> wrong = {
      {"f", ark::parse_json(R"({"properties":{"a":{"not":{}}}})")}};
  EXPECT_TRUE(error_of([&] {
                Grammar::of_calls("", "", wrong, true);
              }).starts_with("function \"f\": #/properties/a/not: "));
}

}  // namespace
}  // namespace ark::text
