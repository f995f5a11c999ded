#include "server/text/stop_checker.h"

#include <gtest/gtest.h>

#include <random>

namespace ark::text {
namespace {

struct Outcome {
  std::string text;
  bool stopped = false;
  bool operator==(const Outcome&) const = default;
};

Outcome whole(const std::vector<std::string>& stops, const std::string& text, bool include) {
  StopChecker checker(stops, include);
  std::string out = checker.push(text);
  const bool stopped = checker.stopped();
  return {out + checker.flush(), stopped};
}

// The definition, by trying every end: the first match to end counts, of several that end there the longest.
Outcome by_definition(const std::vector<std::string>& stops, const std::string& text, bool include) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t length = 0;
    for (const std::string& stop : stops)
      if (std::string_view(text).substr(0, end).ends_with(stop)) length = std::max(length, stop.size());
    if (length > 0) return {text.substr(0, include ? end : end - length), true};
  }
  return {text, false};
}

TEST(StopChecker, RandomCutsGiveWhatTheDefinitionSays) {
  std::mt19937 random(1);
  const auto random_text = [&](std::size_t most) {
    std::string text;
    for (std::size_t n = random() % (most + 1); n > 0; --n) text += static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    const std::string text = random_text(20);
    std::vector<std::string> stops;
    for (std::size_t n = random() % 4; n > 0; --n) stops.push_back(random_text(4));
    const bool include = random() % 2 == 0;
    const Outcome expected = by_definition(stops, text, include);
    EXPECT_EQ(whole(stops, text, include), expected) << text;
    StopChecker checker(stops, include);
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = 1 + random() % 5;
      out += checker.push(text.substr(at, size));
      at += size;
    }
    const bool stopped = checker.stopped();
    out += checker.flush();
    ASSERT_EQ((Outcome{out, stopped}), expected) << text;
  }
}

TEST(StopChecker, HoldsBackNoMoreThanABeginningOfAStop) {
  StopChecker checker({"</s>"});
  EXPECT_EQ(checker.push("one <"), "one ");
  EXPECT_EQ(checker.push("/"), "");
  EXPECT_EQ(checker.push("x"), "</x");
  EXPECT_FALSE(checker.stopped());
  EXPECT_EQ(checker.push("</s>y"), "");
  ASSERT_TRUE(checker.stopped());
  EXPECT_EQ(*checker.matched(), "</s>");
  EXPECT_EQ(checker.push("more"), "");
}

}  // namespace
}  // namespace ark::text
