// Which texts a grammar holds, byte by byte.
#include "server/text/grammar/grammar.h"

#include <gtest/gtest.h>

#include "tests/server/text/grammar/texts.h"

namespace ark::text {
namespace {

using test::holds;

TEST(GrammarRegex, WholeTextsMatch) {
  EXPECT_TRUE(holds(Grammar::of_regex("a|bc*"), "bcc"));
  EXPECT_FALSE(holds(Grammar::of_regex("a|bc*"), "ab"));
}

TEST(GrammarJson, AnyObject) {
  const auto grammar = Grammar::of_json_object();
  EXPECT_TRUE(holds(grammar, R"({"a": [1, 2.5e3, {"b": null}], "c":"x\u00e9\n"})"));
  EXPECT_FALSE(holds(grammar, R"([1])"));
  EXPECT_FALSE(holds(grammar, R"({"a": 01})"));
}

}  // namespace
}  // namespace ark::text
