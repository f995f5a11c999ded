// Profiles of steps: of a timeline made by hand, and of a real loop, whose work is counted from the graph instead.
#include "server/tools/step_profile.h"

#include <gtest/gtest.h>

#include "engine/weights/stored_weights.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"

namespace ark {
namespace {

using test::RunnerSetup, test::Sequence;

TraceEvent event(uint64_t clock, int32_t phase, TraceKind kind) { return {clock, phase, kind}; }

TEST(StepProfile, OnlyTheLastWholeStepsCount) {
  Program program;
  program.variants.push_back({.code = OpCode::kPointwise});
  for (const char* name : {"a", "b"}) program.phases.push_back({.name = name});
  Timeline timeline{1e6, {{"a", "b"}}, {{}, {}}};  // a tick is a millisecond
  for (std::size_t processor = 0; processor < 2; ++processor) {
    auto& events = timeline.blocks[processor];
    uint64_t now = 1;
    for (uint64_t step = 0; step < 4;
         ++step) {  // a waits 1 and runs 1 + step; b runs 2, later on the second processor
      events.push_back(event(now, 0, TraceKind::kWait));
      events.push_back(event(now += 1, 0, TraceKind::kRun));
      events.push_back(event(now += 1 + step, 1, TraceKind::kWait));
      events.push_back(event(now += processor, 1, TraceKind::kRun));
      events.push_back(event(now += 1, 1, TraceKind::kPublish));
      events.push_back(event(now += 1, 0, TraceKind::kDone));
      now += 100;  // between steps
    }
  }
  const auto profile = step_profile(timeline, program, 2, {});
  ASSERT_EQ(profile.size(), 2u);
  EXPECT_EQ(profile[0].name, "a");
  EXPECT_DOUBLE_EQ(profile[0].run_ms, 3.5);  // of steps 2 and 3
  EXPECT_DOUBLE_EQ(profile[0].wait_ms, 1);
  EXPECT_DOUBLE_EQ(profile[1].run_ms, 2);
  EXPECT_DOUBLE_EQ(profile[1].wait_ms, 0.5);
  EXPECT_DOUBLE_EQ(step_profile(timeline, program, 100, {})[0].run_ms,
                   3);  // three: the first may have lost events
  EXPECT_NE(profile_text(profile, 1e9).find("64.3%"), std::string::npos) << profile_text(profile, 1e9);
}

TEST(StepProfile, CountsTheWorkOfALoop) {
  const test::TokenGraphOptions options;
  const DecoderModel model = test::llama_tokens(options);
  RunnerSetup setup;
  setup.options.trace_events = 1 << 12;
  setup.weights = WeightPolicy::kF32;
  const auto runner = test::make_runner(model, setup);
  constexpr int32_t kTokens = 7;
  int64_t weights = 0;  // elements of all matrices
  const Graph& graph = model.tokens;
  for (const Node& node : graph.nodes) {
    if (node.removed || node.op != Op::kMatMul || !graph.value(node.inputs[1]).constant) continue;
    int64_t size = 1;
    for (const int64_t n : graph.value(node.inputs[1]).constant->dims) size *= n;
    weights += size;
  }
  const auto start = std::chrono::steady_clock::now();
  Sequence s{.slot = 0, .tokens = std::vector<int32_t>(3 * kTokens, 1)};
  int32_t page = 0;
  for (int step = 0; step < 3; ++step) {
    StepDescriptor one;
    test::add_chunk(one, s, kTokens, setup.page_size, page, true, kWantToken);
    for (int32_t i = 0; i + 1 < kTokens; ++i) {  // or the last layer's products are of the asked row alone
      StepRow row = one.rows[0];
      row.token = i, row.flags = kWantLogits;
      one.rows.push_back(row);
    }
    runner->post(one);
    test::wait_for(*runner);
  }
  const std::chrono::duration<double, std::milli> wall = std::chrono::steady_clock::now() - start;
  const auto profile = step_profile(runner->timeline(), runner->program(), 2,
                                    {{"tokens", kTokens}, {"rows", kTokens}, {"items", 1}, {"pages", 1}});
  PhaseProfile all;
  for (const PhaseProfile& p : profile) {
    all.run_ms += p.run_ms, all.wait_ms += p.wait_ms;
    all.operations += p.operations;
    if (p.code.ends_with("MatMul")) all.weight_bytes += p.weight_bytes;
  }
  EXPECT_EQ(all.operations, 2 * kTokens * weights);
  EXPECT_GE(all.weight_bytes, 4 * weights);
  EXPECT_LE(all.weight_bytes, 8 * weights);  // panels are padded
  EXPECT_GT(all.run_ms, 0);
  EXPECT_LE(2 * (all.run_ms + all.wait_ms), wall.count());
  EXPECT_NE(profile_text(profile, read_rate(1)).find("100.0%"), std::string::npos);
}

}  // namespace
}  // namespace ark
