#include "engine/cuda/timeline.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ark::cuda {
namespace {

// Two ranks of one processor, rings of 8: rank 0's ring has wrapped, rank 1's has not.
Timeline example() {
  std::vector<TraceEvent> events = {
      {900, 7, 2}, {1000, 7, 3},  // the newest two of rank 0, behind them its oldest
      {100, 5, 0}, {300, 5, 1},  {400, 5, 2}, {410, 5, 3}, {500, 7, 0}, {700, 7, 1}, {200, 5, 0},
      {250, 5, 1}, {450, 5, 2},  {460, 5, 3}, {},          {},          {},          {}};
  return make_timeline(events, 8, 1, 2);
}

TEST(Timeline, PutsRingsInOrder) {
  const Timeline t = example();
  ASSERT_EQ(t.blocks.size(), 2u);
  ASSERT_EQ(t.blocks[0].size(), 8u);
  EXPECT_EQ(t.blocks[0].front().clock, 100u);
  EXPECT_EQ(t.blocks[0].back().clock, 1000u);
  EXPECT_EQ(t.blocks[1].size(), 4u);
}

TEST(Timeline, OpensAsTraceEvents) {
  const auto name = [](int32_t rank, int32_t phase) {
    return "/mlp/\"" + std::to_string(rank) + "." + std::to_string(phase);
  };
  const auto json = nlohmann::json::parse(perfetto_json(example(), name));
  int spans = 0, names = 0;
  for (const auto& e : json["traceEvents"]) {
    names += e["ph"] == "M";
    if (e["ph"] != "X") continue;
    ++spans;
    EXPECT_GE(e["ts"].get<double>(), 0);
    if (e["pid"] == 1 && e["cat"] == "run") {
      EXPECT_EQ(e["name"], "/mlp/\"1.5");
      EXPECT_DOUBLE_EQ(e["ts"].get<double>(), 0.3);  // 150 ticks of 2 ns after the first event
      EXPECT_DOUBLE_EQ(e["dur"].get<double>(), 0.4);
    }
  }
  EXPECT_EQ(spans, 6 + 3);
  EXPECT_EQ(names, 2);
}

TEST(Timeline, TellsWaitsFromWork) {
  const std::vector<PhaseTimes> times = phase_times(example());
  ASSERT_EQ(times.size(), 2u);
  EXPECT_EQ(times[0].phase, 5);
  EXPECT_EQ(times[0].instances, 1);
  EXPECT_DOUBLE_EQ(times[0].wait_us, 0.4);
  EXPECT_DOUBLE_EQ(times[0].run_us, 0.2);
  EXPECT_DOUBLE_EQ(times[1].wait_us, 0.4);
  EXPECT_DOUBLE_EQ(times[1].publish_us, 0.2);
}

}  // namespace
}  // namespace ark::cuda
