#include "base/periodic_runs.h"

#include <gtest/gtest.h>

#include <random>

namespace ark {
namespace {

std::vector<std::string> letters(const std::string& text) {
  std::vector<std::string> items;
  for (const char c : text) items.emplace_back(1, c);
  return items;
}

// "first+count x trips" of each run.
std::string runs_of(const std::string& text, int64_t shortest) {
  std::string out;
  for (const PeriodicRun& r : periodic_runs(letters(text), shortest))
    out += std::to_string(r.first) + "+" + std::to_string(r.count) + "x" + std::to_string(r.trips) + " ";
  return out;
}

TEST(PeriodicRuns, FindsLayersBetweenWhatComesOnce) {
  EXPECT_EQ(runs_of("eabcdabcdabcdnl", 4), "1+4x3 ");
  EXPECT_EQ(runs_of("abcdabcd-efghefghefgh", 4), "0+4x2 9+4x3 ");
  EXPECT_EQ(runs_of("", 4), "");
  EXPECT_EQ(runs_of("abcd", 4), "");
}

TEST(PeriodicRuns, LeavesShortPeriodsAlone) {
  EXPECT_EQ(runs_of("xyxyxy", 4), "");
  EXPECT_EQ(runs_of("aaaaaaaa", 4), "0+4x2 ");
  EXPECT_EQ(runs_of("aaaaaaaa", 1), "0+1x8 ");
}

TEST(PeriodicRuns, SaysTheTruthAboutAnySequence) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int i = 0; i < 40; ++i) text += static_cast<char>('a' + random() % 2);
    int64_t end = 0;
    for (const PeriodicRun& r : periodic_runs(letters(text), 2)) {
      EXPECT_GE(r.first, end);
      EXPECT_GE(r.trips, 2);
      EXPECT_GE(r.count, 2);
      for (int64_t i = r.first + r.count; i < r.first + r.count * r.trips; ++i)
        EXPECT_EQ(text[i], text[i - r.count]) << text;
      end = r.first + r.count * r.trips;
    }
    EXPECT_LE(end, 40);
  }
}

}  // namespace
}  // namespace ark
