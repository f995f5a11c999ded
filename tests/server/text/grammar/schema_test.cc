// JSON Schemas: which values are written, and what is refused.
#include <gtest/gtest.h>

#include "server/json.h"
#include "server/text/grammar/grammar.h"
#include "server/text/json_view.h"
#include "tests/fixtures.h"
#include "tests/server/text/grammar/texts.h"

namespace ark::text {
namespace {

using test::error_of;
using test::holds;
using Texts = std::vector<std::string>;

void expect_values(const std::string& schema, const Texts& right, const Texts& wrong) {
  SCOPED_TRACE(schema);
  const Grammar::Ptr grammar = Grammar::of_json_schema(ark::parse_json(schema));
  for (const std::string& text : right) EXPECT_TRUE(holds(grammar, text)) << text;
  for (const std::string& text : wrong) EXPECT_FALSE(holds(grammar, text)) << text;
}

std::string schema_error(const std::string& schema) {
  return error_of([&] { Grammar::of_json_schema(ark::parse_json(schema)); });
}

// Against PyPI `jsonschema`; make_cases.py writes the file.
TEST(GrammarSchema, ValuesAreThoseOfTheOracle) {
  const Json cases =
      parse_json_file(test::source_root() / "tests/server/text/grammar/grammar_cases.json").at("schemas");
  ASSERT_GT(cases.size(), 100u);
  for (std::size_t i = 0; i < cases.size(); i += test::is_sanitized() ? 8 : 1) {
    const Json& one = cases[i];
    const std::string error = schema_error(to_text(one.at("schema")));
    if (error.find("is not supported") != error.npos) continue;
    expect_values(to_text(one.at("schema")), one.at("right").get<Texts>(), one.at("wrong").get<Texts>());
  }
}

TEST(GrammarSchema, MembersComeInTheSchemasOrder) {
  const std::string members =
      R"("properties":{"a":{"type":"integer"},"b":{"type":"null"},"c":{"type":"boolean"}})";
  expect_values(
      R"({"type":"object",)" + members + R"(,"required":["b"],"additionalProperties":false})",
      {R"({"b":null})", R"({"a": 1, "b": null, "c": true})", "{\n  \"b\": null,\n  \"c\": false\n}"},
      {R"({})", R"({"a":1})", R"({"b":null,"a":1})", R"({"b":null,"d":1})", R"({"b":null,})",
       R"({"b":null,"b":null})"});
  expect_values(R"({"type":"object",)" + members + R"(,"additionalProperties":true})",
                {R"({})", R"({"x":[{}]})", R"({"c":true,"ab":1,"ab":2})"},
                {R"({"x":1,"a":1})", R"({"x":1,"\u0061":"no"})", R"({"\u0061":"no"})"});
}

// All of these are of the schema as the standard reads it, too.
TEST(GrammarSchema, WhoNamesMembersAndNothingElseMeansThese) {
  const std::string named = R"({"type":"object","properties":{"a":{"const":1}})";
  expect_values(named + "}", {R"({})", R"({"a":1})"}, {R"({"b":1})", R"({"a":1,"b":1})"});
  expect_values(named + R"(,"required":["b"]})", {R"({"b":1})", R"({"a":1,"b":[]})"}, {R"({"a":1})"});
  expect_values(named + R"(,"required":["a"],"minProperties":2})", {R"({"a":1,"b":2})"}, {R"({"a":1})"});
  expect_values(named + R"(,"allOf":[{"properties":{"c":{"const":2}}}]})", {R"({"a":1,"c":2})"},
                {R"({"d":1})"});
  expect_values(R"({"type":"object","required":["b"]})", {R"({"b":1,"x":2})"}, {R"({"x":2})"});
}

TEST(GrammarSchema, AdditionalMembersHaveOtherNames) {
  expect_values(
      R"({"type":"object","properties":{"ab":{"type":"null"},"q\"":false},"additionalProperties":{"type":"integer"},"required":["z"]})",
      {R"({"ab":null,"z":1})", R"({"z":1,"a":1,"abc":2,"":3,"b\u0061":4,"q\"\"":5})"},
      {R"({"ab":1,"z":1})", R"({"z":1,"ab":1})", R"({"z":1,"q\"":1})", R"({"z":1,"z":1})", R"({"z":"1"})",
       R"({"a":1})"});
}

TEST(GrammarSchema, MembersAreCounted) {
  expect_values(
      R"({"type":"object","properties":{"a":{},"b":{},"c":{}},"additionalProperties":false,"minProperties":2,"maxProperties":2})",
      {R"({"a":1,"b":1})", R"({"b":1,"c":1})"}, {R"({"a":1})", R"({"a":1,"b":1,"c":1})", R"({})"});
  expect_values(
      R"({"type":"object","additionalProperties":{"type":"null"},"minProperties":1,"maxProperties":2})",
      {R"({"a":null})", R"({"a":null,"b":null})"}, {R"({})", R"({"a":null,"b":null,"c":null})"});
  EXPECT_EQ(schema_error(R"({"type":"object","minProperties":2})"),
            "schema: #: minProperties beside additionalProperties is not supported: names could be the same");
}

TEST(GrammarSchema, NumbersKeepTheirBounds) {
  expect_values(R"({"type":"integer","minimum":-12,"maximum":105})",
                {"-12", "-9", "0", "-0", "7", "99", "105"}, {"-13", "106", "200", "1.0", "007", "1e1"});
  expect_values(R"({"type":"integer","exclusiveMinimum":9.5,"exclusiveMaximum":12})", {"10", "11"},
                {"9", "12"});
  expect_values(R"({"type":"integer","minimum":-9223372036854775808,"maximum":18446744073709551615})",
                {"-9223372036854775808", "18446744073709551615"},
                {"-9223372036854775809", "18446744073709551616"});
  expect_values(R"({"type":"number","minimum":0.5,"exclusiveMaximum":1.25})",
                {"0.5", "0.50", "1", "1.0", "1.249"}, {"0.49", "0", "1.25", "1.250", "-1", "1e0"});
  expect_values(R"({"type":"number","exclusiveMinimum":0})", {"0.1", "5", "0.0000000000000001"},
                {"0", "0.0", "-1"});
  expect_values(R"({"type":"number","exclusiveMinimum":1e-14})", {"0.00000000000002", "5"},
                {"0", "0.00000000000001"});
  expect_values(R"({"type":"integer","multipleOf":7,"minimum":-14})", {"-14", "-7", "0", "7", "700", "49"},
                {"-21", "8", "71"});
  expect_values(R"({"type":"number","minimum":0,"maximum":10,"multipleOf":1})", {"0", "7", "10"},
                {"0.5", "7.0", "11"});
  expect_values(R"({"multipleOf":1})", {"0", "-7"}, {"0.5", "1e1", "\"a\""});
  expect_values(R"({"type":"number","allOf":[{"multipleOf":1},{"multipleOf":4},{"multipleOf":6}]})",
                {"0", "-12", "24"}, {"4", "6", "12.5"});
  expect_values(R"({"enum":[0.5,1,2.0,"a"],"multipleOf":1})", {"1", "2.0", R"("a")"}, {"0.5"});
  expect_values(R"({"type":"number","minimum":-1e300})", {"-999"}, {});
}

TEST(GrammarSchema, StringsAreJudgedByTheirValue) {
  expect_values(R"({"type":"string","pattern":"^[\"\\\\\\n]+$"})", {R"("\"")", R"("\\\n")"},
                {R"("")", R"("a")", "\"\n\""});
  expect_values(R"({"type":"string","pattern":"b"})", {R"("abc")", R"("b")", R"("\n\"b")"},
                {R"("")", R"("ac")"});
  expect_values(R"({"type":"string","minLength":1,"maxLength":2})",
                {R"("é")", R"("😀a")", R"("\u00e9\n")", R"("\ud83d\ude00x")"},
                {R"("")", R"("abc")", R"("\ud83d")"});
  expect_values(R"({"type":"string","pattern":"^[a-z]*$","minLength":2,"maxLength":3})",
                {R"("ab")", R"("abc")"}, {R"("a")", R"("abcd")"});
  expect_values(R"({"type":"string","format":"date"})", {R"("2024-02-29")"},
                {R"("2023-02-29")", R"("2023-2-9")"});
  expect_values(R"({"type":"string","format":"date-time"})",
                {R"("2024-02-29T23:59:59.5Z")", R"("2024-01-01T00:00:00+02:00")"},
                {R"("2024-01-01 00:00:00Z")"});
  expect_values(R"({"type":"string","format":"no-such-format"})", {R"("x")"}, {});
}

TEST(GrammarSchema, SchemasMerge) {
  expect_values(
      R"({"allOf":[{"type":"object","properties":{"a":{"minimum":1}}},{"properties":{"a":{"type":"integer","maximum":3}},"required":["a"],"additionalProperties":false}]})",
      {R"({"a":2})"}, {R"({"a":0})", R"({"a":4})", R"({})", R"({"a":2,"b":1})"});
  expect_values(R"({"$defs":{"s":{"type":"string"}},"$ref":"#/$defs/s","maxLength":1})", {R"("a")"},
                {R"("ab")", "1"});
  expect_values(
      R"({"type":"object","properties":{"a":{},"b":{}},"additionalProperties":false,"anyOf":[{"required":["a"]},{"required":["b"]}]})",
      {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"}, {R"({})"});
  expect_values(R"({"enum":[1,"a",null],"type":["string","null"]})", {R"("a")", "null"}, {"1"});
  expect_values(
      R"({"enum":["a","éé","abc",1,12,24.0,2.5,null],"format":"int32","maxLength":2,"multipleOf":12,"exclusiveMaximum":24})",
      {R"("a")", R"("éé")", "12", "null"}, {R"("abc")", "1", "24.0", "2.5"});
  expect_values(R"({"type":"string","nullable":true})", {R"("a")", "null"}, {"1"});
}

// As zod writes each record, and pydantic dictionaries by an enumeration.
TEST(GrammarSchema, NamesOfMembersAreTextsOrSomeOfAList) {
  expect_values(R"({"type":"object","propertyNames":{"type":"string"},"additionalProperties":{"const":1}})",
                {"{}", R"({"x":1,"y":1})"}, {R"({"x":2})"});
  const std::string named =
      R"({"$defs":{"e":{"title":"E","type":"string","enum":["x","y",1]}},"required":["y"],"additionalProperties":{"type":"null"},"propertyNames":)";
  for (const char* names : {R"({"enum":["x","y"]}})", R"({"$ref":"#/$defs/e"}})"})
    expect_values(named + names, {R"({"y":null})", R"({"x":null,"y":null})"},
                  {"{}", R"({"x":null})", R"({"y":1})", R"({"y":null,"z":null})"});
  expect_values(R"({"properties":{"a":{"const":1},"b":{"const":2}},"propertyNames":{"const":"a"}})",
                {"{}", R"({"a":1})"}, {R"({"b":2})", R"({"a":1,"b":2})"});
}

TEST(GrammarSchema, SchemasReferToThemselves) {
  const std::string tree =
      R"({"$defs":{"a/b c":{"type":"object","properties":{"l":{"anyOf":[{"$ref":"#/$defs/a~1b%20c"},{"type":"null"}]}},"required":["l"],"additionalProperties":false}},"$ref":"#/$defs/a~1b%20c"})";
  expect_values(tree, {R"({"l":{"l":{"l":null}}})"}, {R"({"l":{"l":1}})", R"({"l":{}})"});
  expect_values(R"({"anyOf":[{"$ref":"#"},{"type":"null"},{"type":"array","items":{"$ref":"#"}}]})",
                {"[[null],[]]", "null"}, {"[1]"});
}

TEST(GrammarSchema, ArraysHaveTheirItems) {
  expect_values(
      R"({"type":"array","prefixItems":[{"const":1},{"const":2}],"items":{"const":3},"minItems":1,"maxItems":4})",
      {"[1]", "[1,2]", "[1, 2, 3, 3]"}, {"[]", "[2]", "[1,3]", "[1,2,3,3,3]", "[1,]"});
  expect_values(R"({"type":"array","items":[{"const":1}],"additionalItems":false})", {"[]", "[1]"},
                {"[1,1]", "[2]"});
}

TEST(GrammarSchema, WhatIsNotSupportedIsNamedWithItsPlace) {
  for (const char* keyword :
       {"not", "if", "contains", "patternProperties", "dependentRequired", "$dynamicRef"})
    EXPECT_EQ(schema_error("{\"properties\":{\"a/b\":{\"" + std::string(keyword) +
                           "\":{\"x\":{\"type\":\"null\"}}}}}"),
              "schema: #/properties/a~1b/" + std::string(keyword) + ": \"" + keyword +
                  "\" is not supported; leave it out, or check it afterwards");
  const std::pair<const char*, const char*> cases[] = {
      {R"({"uniqueItems":true})", "schema: #/uniqueItems: \"uniqueItems\" is not supported"},
      {R"({"propertyNames":{"pattern":"a"}})", "schema: #/propertyNames: \"propertyNames\" is not supported"},
      {R"({"propertyNames":false})", "schema: #/propertyNames: \"propertyNames\" is not supported"},
      {R"({"$ref":"other.json"})", "schema: #/$ref: only references into the same schema"},
      {R"({"$ref":"#/$defs/x"})", "schema: #/$ref: nothing is at \"#/$defs/x\""},
      {R"({"$ref":"#"})", "schema: #: it refers to itself"},
      {R"({"type":"integr"})", "schema: #/type: expected null, boolean"},
      {R"({"items":{"pattern":"(?=a"}})", "schema: #/items/pattern: index 0: lookahead"},
      {R"({"type":"string","pattern":"a","minLength":3})",
       "schema: #: minLength or maxLength beside this pattern"},
      {R"({"allOf":[{"pattern":"a"},{"pattern":"b"}]})", "schema: #: more than one pattern"},
      {R"({"type":"number","multipleOf":0.01})", "schema: #/multipleOf: multiples are supported of integers"},
      {R"({"enum":["a"],"pattern":"b"})", "schema: #: enum or const beside this pattern"},
      {R"({"minimum":"1"})", "schema: #/minimum: expected a number"},
      {R"({"type":"number","exclusiveMinimum":1e-16})",
       "schema: #: an exclusive bound with more than 15 digits is not supported; round it"},
      {R"({"type":"number","exclusiveMaximum":0.30000000000000004})",
       "schema: #: an exclusive bound with more than 15 digits is not supported; round it"},
      {R"({"type":"number","minimum":1e-17})",
       "schema: #: a bound with more than 16 digits behind the point"},
      {R"({"maxItems":-1})", "schema: #/maxItems: expected an integer"},
      {R"({"properties":[]})", "schema: #/properties: expected an object"},
      {R"({"anyOf":{}})", "schema: #/anyOf: expected a list"},
      {R"([])", "schema: #: expected a schema"},
  };
  for (const auto& [schema, message] : cases)
    EXPECT_TRUE(schema_error(schema).starts_with(message)) << schema_error(schema);
}

TEST(GrammarSchema, WhatAcceptsNothingIsRefused) {
  for (const char* schema :
       {"false", R"({"enum":[]})", R"({"type":"integer","minimum":3,"maximum":2})", R"({"type":[]})",
        R"({"anyOf":[]})", R"({"type":"object","required":["a"],"additionalProperties":false})",
        R"({"allOf":[{"type":"null"},{"type":"string"}]})", R"({"type":"array","minItems":2,"maxItems":1})",
        R"({"type":"integer","minimum":1,"maximum":6,"multipleOf":7})", R"({"const":0.5,"multipleOf":1})",
        R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1,"multipleOf":1})",
        R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})",
        R"({"type":"string","minLength":2,"maxLength":1})"})
    EXPECT_NE(schema_error(schema).find("no text fits; allow at least one"), std::string::npos) << schema;
}

}  // namespace
}  // namespace ark::text
