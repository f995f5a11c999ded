#include "engine/run/timeline.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace ark {
namespace {

constexpr TraceKind kWait = TraceKind::kWait, kRun = TraceKind::kRun, kPublish = TraceKind::kPublish,
                    kDone = TraceKind::kDone;

// Two ranks of one processor, rings of 8, ticks of 2 ns: rank 0's ring has wrapped, rank 1's has not.
Timeline example() {
  const std::vector<TraceEvent> events = {
      {900, 7, kPublish},
      {1000, 7, kDone},  // the newest two of rank 0, behind them its oldest
      {100, 5, kWait},
      {300, 5, kRun},
      {400, 5, kPublish},
      {410, 5, kDone},
      {500, 7, kWait},
      {700, 7, kRun},
      {200, 5, kWait},
      {250, 5, kRun},
      {450, 5, kPublish},
      {460, 5, kDone},
      {},
      {},
      {},
      {}};
  std::vector<std::vector<std::string>> names(2, std::vector<std::string>(8));
  for (int rank = 0; rank < 2; ++rank)
    for (int phase = 0; phase < 8; ++phase)
      names[rank][phase] = "/mlp/\"" + std::to_string(rank) + "." + std::to_string(phase);
  return make_timeline(events, 8, names, 2);
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
  const auto json = nlohmann::json::parse(perfetto_json(example()));
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

// Two blocks, two steps of phases 0, 1 and 2, of which block 1 has no part in 0. Ends: 0 at 200, 1 at 500, 2 at 600,
// 1 at 700, 2 at 1000.
TEST(Timeline, TellsWhatEachPhaseAddsToAStep) {
  Timeline t;
  t.phases = {{"a", "b", "c"}};
  t.blocks.resize(2);
  const auto add = [&](std::size_t block, int32_t phase, uint64_t wait, uint64_t run, uint64_t end) {
    for (const auto& [clock, kind] : {std::pair{wait, kWait}, {run, kRun}, {end, kPublish}, {end + 1, kDone}})
      t.blocks[block].push_back({clock, phase, kind});
  };
  for (const uint64_t step : {1000u, 5000u}) {
    add(0, 0, step, step, step + 200);
    add(0, 1, step + 210, step + 250, step + 500);
    add(1, 1, step + 10, step + 240, step + 700);
    add(0, 2, step + 510, step + 520, step + 600);
    add(1, 2, step + 710, step + 720, step + 1000);
  }
  const std::vector<PhaseTimes> times = phase_times(t);
  ASSERT_EQ(times.size(), 3u);
  EXPECT_DOUBLE_EQ(times[0].span_us, 0.2);
  EXPECT_DOUBLE_EQ(times[1].span_us, 0.3 + 0.1);
  EXPECT_DOUBLE_EQ(times[2].span_us, 0.1 + 0.3);
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
}  // namespace ark
