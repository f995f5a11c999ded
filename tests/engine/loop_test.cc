// The loop's own duties: faults that name their place, deadlines, leases, gangs of several executors.
#include <gtest/gtest.h>

#include <utility>

#include "base/error.h"
#include "engine/program/unroll.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

// One rank, one phase that waits for a later phase of the previous step... which it never gets: phase 0 waits
// for instance 0 of itself, before it has run.
struct Hanging {
  Hanging() {
    program.vals = {{Expr(1), 1}};
    program.variants.push_back({.code = OpCode::kPointwise});
    program.variants[0].pointwise = {{.op = Op::kConstantOfShape, .p = 3}};
    program.buffers.push_back({.kind = BufferKind::kAct, .dims = {0}, .name = "x"});
    Phase phase{.name = "self-waiting", .operands = {{0}}, .grid = 0};
    phase.waits = {{WaitKind::kPhase, 0, 0, kNone}};
    program.phases.push_back(phase);
    binding.offsets = {0};
    binding.act_bytes = 64;
    store = std::make_unique<WeightStore>(program, std::span<const ConstantPtr>{}, 1);
  }
  Program program;
  Binding binding;
  std::unique_ptr<WeightStore> store;
};

std::string failure_of(HostExecutor& executor, const PlainStep& step) {
  try {
    executor.post_plain(step);
    while (!executor.poll(std::chrono::seconds(5))) continue;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnavailable);
    return error.what();
  }
  return "";
}

TEST(Loop, DeadlineNamesRankProcessorPhaseSeenAndNeeded) {
  Hanging h;
  for (const bool lockstep : {false, true}) {
    const auto executor = lockstep ? make_lockstep_executor() : make_loop_executor();
    ExecutorOptions options;
    options.counter_base = 40;
    options.step_deadline = std::chrono::milliseconds(50);
    executor->prepare({{&h.program, &h.binding, h.store.get(), nullptr}}, options);
    const std::string why = failure_of(*executor, {});
    for (const char* part : {"rank 0", "processor 0", "phase 0", "trip 0", "40", "41", "self-waiting"}) {
      EXPECT_NE(why.find(part), std::string::npos) << part << " in: " << why;
    }
    EXPECT_THROW(executor->post_plain(PlainStep{}), Error);
  }
}

TEST(Loop, ManyExecutorsShareThePool) {
  const DecoderModel model = llama_tokens();
  std::vector<std::unique_ptr<RaggedRunner>> runners;
  for (int i = 0; i < 3; ++i) {
    RunnerSetup setup;
    setup.ranks = 2;
    setup.options.threads = 4;
    setup.options.lease = i;  // unbounded, 1, 2
    runners.push_back(make_runner(model, setup));
  }
  const auto expected = run_greedy(*runners[0], {1, 2, 3}, 8, 10);
  for (int turn = 0; turn < 5; ++turn) {
    for (const auto& runner : runners)
      EXPECT_TRUE(same_bits(expected, run_greedy(*runner, {1, 2, 3}, 8, 10)));
  }
  std::vector<std::jthread> drivers;
  std::atomic<int> good{0};
  for (const auto& runner : runners) {
    drivers.emplace_back([&good, &expected, &runner] {
      good += same_bits(expected, run_greedy(*runner, {1, 2, 3}, 8, 10));
    });
  }
  drivers.clear();
  EXPECT_EQ(good, 3);
}

TEST(Loop, IdleLoopsBurnNoCpu) {
  const auto runner = make_runner(llama_tokens(), {});
  run_greedy(*runner, {1, 2, 3}, 8, 2);
  while (!runner->is_parked()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  double burnt = 1;
  for (int go = 0; go < 5 && burnt >= 0.03; ++go) {  // on a busy machine other threads may park later
    const std::clock_t before = std::clock();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    burnt = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  }
  EXPECT_LT(burnt, 0.03);
}

// Per processor: wait, run, publish of every phase in program order, step by step, and the step's end.
TEST(Loop, RecordsWhatEachProcessorDid) {
  constexpr int kSteps = 3;
  RunnerSetup setup;
  setup.ranks = 2;
  setup.options.threads = 4;
  setup.options.trace_events = 1 << 14;
  const DecoderModel model = llama_tokens();
  const Compiled compiled = compile_decoder(model, {.ranks = 2});
  const auto runner = make_runner(model, setup);
  run_greedy(*runner, {1, 2, 3}, 8, kSteps - 1);
  const Timeline timeline = runner->timeline();
  ASSERT_EQ(timeline.blocks.size(), 4u);
  for (std::size_t b = 0; b < 4; ++b) {
    std::vector<std::pair<PhaseId, int>> expected, recorded;
    for (int step = 0; step < kSteps; ++step) {
      for (const Instance& instance : unroll(compiled.programs[b / 2]))
        for (int kind = 0; kind < 3; ++kind) expected.emplace_back(instance.phase, kind);
      expected.emplace_back(0, 3);
    }
    uint64_t last = 0;
    for (const TraceEvent& e : timeline.blocks[b]) {
      recorded.emplace_back(e.phase, static_cast<int>(e.kind));
      EXPECT_LE(std::exchange(last, e.clock), e.clock);
    }
    EXPECT_EQ(recorded, expected) << "processor " << b;
  }
}

TEST(Loop, RecordsOnlyTheLastEvents) {
  RunnerSetup setup;
  setup.options.trace_events = 7;
  const auto runner = make_runner(llama_tokens(), setup);
  run_greedy(*runner, {1, 2, 3}, 8, 4);
  for (const auto& block : runner->timeline().blocks) {
    ASSERT_EQ(block.size(), 7u);
    for (int i = 0; i < 7; ++i)
      EXPECT_EQ(static_cast<int>(block[i].kind), i == 6 ? 3 : i % 3) << "the last two phases and the end";
  }
}

TEST(Loop, RecordsNothingUnlessAsked) { EXPECT_THROW(make_runner(llama_tokens(), {})->timeline(), Error); }

}  // namespace
}  // namespace ark::test
