// The objects of Json, against a plain list of members.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/json.h"

namespace ark {
namespace {

using Members = std::vector<std::pair<std::string, int>>;

Members members_of(const Json& object) {
  Members all;
  for (const auto& [name, value] : object.items()) all.emplace_back(name, value.get<int>());
  return all;
}

TEST(OrderedMap, RandomInsertionsAndRemovalsEqualAList) {
  std::mt19937 random(7);
  for (const int names : {3, 20, 400}) {
    Json object = Json::object();
    Members list;
    for (int i = 0; i < 3000; ++i) {
      const std::string name = "member " + std::to_string(random() % names);
      const auto at = std::find_if(list.begin(), list.end(), [&](const auto& m) { return m.first == name; });
      ASSERT_EQ(object.contains(name), at != list.end());
      if (random() % 3 == 0) {
        ASSERT_EQ(object.erase(name), at != list.end() ? 1u : 0u);
        if (at != list.end()) list.erase(at);
      } else {
        object[name] = i;
        if (at != list.end())
          at->second = i;
        else
          list.emplace_back(name, i);
      }
      if (!list.empty()) {
        const auto& one = list[random() % list.size()];
        ASSERT_EQ(object.at(one.first).get<int>(), one.second);
      }
    }
    EXPECT_EQ(members_of(object), list);
    const Json copy = object;
    EXPECT_EQ(copy, object);
    EXPECT_EQ(members_of(copy), list);
  }
}

TEST(OrderedMap, EraseByIteratorKeepsTheOthersInOrder) {
  Json object = parse_json(R"({"a":1,"b":2,"c":3,"d":4})");
  auto next = object.erase(object.find("b"));
  EXPECT_EQ(next.key(), "c");
  EXPECT_EQ(to_text(object), R"({"a":1,"c":3,"d":4})");
  next = object.erase(object.find("d"));
  EXPECT_EQ(next, object.end());
  object.erase(object.begin(), object.end());
  EXPECT_EQ(to_text(object), "{}");
}

TEST(Json, TheLastOfEqualMembersWinsAtThePlaceOfTheFirst) {
  EXPECT_EQ(to_text(parse_json(R"({"a":1,"b":2,"a":3})")), R"({"a":3,"b":2})");
}

TEST(Json, ErrorsSayWhere) {
  try {
    parse_json("{\n\"a\" 1}");
    FAIL();
  } catch (const JsonError& e) {
    EXPECT_EQ(std::string(e.what()).rfind("parse error at line 2, column 5", 0), 0u) << e.what();
  }
}

TEST(Json, BrokenUtf8IsPrintedAsAReplacement) { EXPECT_EQ(to_text(Json("a\xff")), "\"a\xef\xbf\xbd\""); }

}  // namespace
}  // namespace ark
