#include "server/api/fields.h"

#include <gtest/gtest.h>

#include <functional>

#include "server/json.h"

namespace ark::api {
namespace {

// The field at fault, or "-" if none is.
std::string fault_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const http::HttpError& e) {
    EXPECT_EQ(e.status, 400);
    EXPECT_NE(e.message.find(e.param), std::string::npos) << e.message;
    return e.param;
  }
  return "-";
}

TEST(Fields, IntegersKeepTheirRangeAndMayBeWrittenAsReals) {
  const Json json = Json::parse(
      R"({"a": 5, "b": 5.0, "c": 5.5, "d": "5", "e": true, "f": 1e300, "g": 18446744073709551615, "h": null})");
  const Fields fields(json, "outer.");
  EXPECT_EQ(fields.integer("a", 0, 9), 5);
  EXPECT_EQ(fields.integer("b", 0, 9), 5);
  EXPECT_EQ(fields.integer("h", 0, 9), std::nullopt);
  EXPECT_EQ(fields.integer("absent", 0, 9), std::nullopt);
  for (const char* name : {"c", "d", "e", "f", "g"})
    EXPECT_EQ(fault_of([&] { (void)fields.integer(name, 0, 9); }), "outer." + std::string(name));
  EXPECT_EQ(fault_of([&] { (void)fields.integer("a", 6, 9); }), "outer.a");
}

TEST(Fields, BodiesAreObjectsWithinLimits) {
  const auto refused = [](std::string body) {
    try {
      parse_body(body);
    } catch (const http::HttpError& e) {
      return e.status == 400 && e.code == "invalid_json";
    }
    return false;
  };
  for (const std::string& body :
       {std::string(), std::string(" "), std::string("[]"), std::string("{"), std::string("{}{}"),
        std::string("{\"a\": NaN}"), std::string("{}\0", 3), std::string("{\"a\": \"\xff\"}"),
        std::string(250'000, '['), std::string(250'000, '[').append(250'000, ']')})
    EXPECT_TRUE(refused(body)) << body.substr(0, 40);
  std::string good = R"( {"a": "[[[[{{{{,,,,::::\"\\"} )";
  EXPECT_EQ(parse_body(good)["a"], "[[[[{{{{,,,,::::\"\\");
}

TEST(Fields, TokenIdsAndStrings) {
  const Json json =
      Json::parse(R"({"ids": [0, 5], "bad": [1, -1], "mixed": ["a", 1], "one": "x", "long": [1, 2, 3]})");
  const Fields fields(json);
  EXPECT_EQ(*fields.ids("ids", 2), (std::vector<int32_t>{0, 5}));
  EXPECT_EQ(*fields.strings("one", 1), std::vector<std::string>{"x"});
  EXPECT_EQ(fault_of([&] { (void)fields.ids("bad", 9); }), "bad");
  EXPECT_EQ(fault_of([&] { (void)fields.ids("long", 2); }), "long");
  EXPECT_EQ(fault_of([&] { (void)fields.strings("mixed", 9); }), "mixed");
}

}  // namespace
}  // namespace ark::api
