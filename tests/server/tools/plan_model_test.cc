// Plans of many ranks: times by hand, bytes as ranks count them when they run, and where weights cannot be cut.
#include "server/tools/plan_model.h"

#include <gtest/gtest.h>

#include <numeric>

#include "engine/compile.h"
#include "engine/program/unroll.h"
#include "server/tools/sequences.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"

namespace ark {
namespace {

using test::RunnerSetup;

constexpr int32_t kStreams = 3;
const SymbolValues kSizes = {{"tokens", kStreams}, {"rows", kStreams}, {"items", kStreams}, {"pages", 0}};

CompileOptions options_of(const RunnerSetup& setup) {
  CompileOptions options;
  options.max_tokens = options.max_items = setup.max_tokens;
  options.max_rows = setup.max_rows;
  options.page_size = setup.page_size;
  options.pages = setup.pages;
  return options;
}

RankPrograms::Ranks all_ranks(const RankPrograms& programs, int32_t ranks, int32_t machine_ranks) {
  std::vector<int32_t> which(static_cast<std::size_t>(ranks));
  std::iota(which.begin(), which.end(), 0);
  return programs.lower(ranks, machine_ranks, which);
}

std::vector<SizedProgram> sized(const RankPrograms::Ranks& lowered) {
  std::vector<SizedProgram> all;
  for (const Program& program : lowered.programs) all.emplace_back(program, kSizes);
  return all;
}

// A phase of a second, but for the least.
PhaseCosts equal_costs(const Program& whole) {
  std::vector<double> seconds(whole.phases.size(), 1);
  seconds[0] = 0.5;
  return {{whole, kSizes}, seconds, {1e12, 1e12}};
}

// Two ranks that compute for as long as `name` takes, add up 1000 bytes of each other, and compute a little.
Program one_of_two(int32_t rank, const std::string& name) {
  Program p;
  p.rank = rank;
  p.ranks = 2;
  p.vals = {{250, 250}};
  p.channels = {{.peer = 1 - rank, .outgoing = true, .bytes = 1000, .name = "there"},
                {.peer = 1 - rank, .outgoing = false, .bytes = 1000, .name = "here"}};
  p.buffers = {{.dims = {0}}, {.kind = BufferKind::kInbox, .dims = {0}, .channel = 1}, {.dims = {0}}};
  p.variants = {{.code = OpCode::kPointwise}, {.code = OpCode::kSend}, {.code = OpCode::kRecvReduce}};
  p.phases = {{.name = name, .variant = 0, .operands = {{0}}},
              {.name = "send", .variant = 1, .operands = {{0}}, .channel = 0},
              {.name = "sum", .variant = 2, .operands = {{0}, {1}, {}, {}, {2}}},
              {.name = "short", .variant = 0, .operands = {{2}}}};
  return p;
}

class TwoRanks : public testing::Test {
 protected:
  TwoRanks() {
    whole_.vals = {{250, 250}};
    whole_.buffers = {{.dims = {0}}};
    whole_.variants = {{.code = OpCode::kPointwise}};
    for (const char* name : {"slow", "fast", "short"})
      whole_.phases.push_back({.name = name, .variant = 0, .operands = {{0}}});
  }
  StepPlan plan(int32_t machine_ranks, int32_t running) const {
    const std::vector<double> seconds = {5, 3, 1};
    const Program slow = one_of_two(0, "slow"), fast = one_of_two(1, "fast");
    const std::vector<SizedProgram> programs = {{slow, {}}, {fast, {}}};
    // 1.25 s a message inside a machine, and 0.5 more until it is there; 3 and 2 between them.
    const RankPlacement placement{machine_ranks, running, {0.5, 0.25, 1000}, {2, 1, 500}};
    return plan_by_events(programs, {{whole_, {}}, seconds, {1e9, 1e9}}, placement);
  }
  Program whole_;
};

TEST_F(TwoRanks, OnOneMachine) {
  const StepPlan at_once = plan(2, 2);
  // The slower one's part is sent at 6.25 and there at 6.75; adding takes two, as the parts' bytes and the least phase.
  EXPECT_DOUBLE_EQ(at_once.seconds, 6.75 + 2 + 1);
  EXPECT_DOUBLE_EQ(at_once.computing, 6);
  EXPECT_EQ(at_once.bytes, 2000);
  EXPECT_EQ(at_once.bytes_between, 0);
}

TEST_F(TwoRanks, OnTwoMachines) {
  const StepPlan apart = plan(1, 1);
  EXPECT_DOUBLE_EQ(apart.seconds, 6.25 + 3 + 2 + 2 + 1);
  EXPECT_EQ(apart.bytes, 2000);
  EXPECT_EQ(apart.bytes_between, 2000);
}

TEST_F(TwoRanks, OnOneProcessorTheyTakeTurns) {
  // All that both compute, send and add up: nothing is waited for.
  EXPECT_DOUBLE_EQ(plan(2, 1).seconds, 5 + 3 + 2 * (1.25 + 2 + 1));
}

// What is compiled to run, and what a plan looks at.
TEST(PlanModel, SingleRanksProgramsAreThoseThatRun) {
  const DecoderModel model = test::llama_tokens();
  RunnerSetup setup;
  const RankPrograms programs(model, options_of(setup));
  for (const auto& [ranks, near] : {std::pair{1, 1}, {2, 1}, {4, 2}, {8, 1}, {8, 4}}) {
    setup.ranks = ranks;
    setup.machine_ranks = near;
    const std::vector<Program> compiled = test::compile(model, setup).programs;
    const RankPrograms::Ranks lowered = all_ranks(programs, ranks, near);
    for (std::size_t r = 0; r < compiled.size(); ++r) {
      const SizedProgram runs(compiled[r], kSizes), planned(lowered.programs[r], kSizes);
      const std::vector<Instance> instances = unroll(compiled[r]);
      ASSERT_EQ(instances.size(), lowered.programs[r].phases.size());
      for (std::size_t i = 0; i < instances.size(); ++i) {
        const Phase& phase = compiled[r].phases[static_cast<std::size_t>(instances[i].phase)];
        const Phase& other = lowered.programs[r].phases[i];
        ASSERT_EQ(runs.code(phase), planned.code(other)) << phase.name << ", " << other.name;
        ASSERT_EQ(phase.channel, other.channel);
        ASSERT_EQ(phase.operands.size(), other.operands.size());
        for (std::size_t o = 0; o < phase.operands.size(); ++o) {
          const BufferId b = resolve(compiled[r], phase, phase.operands[o], instances[i].trip);
          ASSERT_EQ(b == kNone, other.operands[o].buffer == kNone);
          if (b == kNone) continue;
          ASSERT_EQ(runs.bytes(b), planned.bytes(other.operands[o].buffer)) << other.name;
        }
      }
    }
  }
}

TEST(PlanModel, BytesAreThoseThatRanksCount) {
  for (const bool is_gpt2 : {false, true}) {
    const DecoderModel model = test::gpt2_or_llama(is_gpt2);
    RunnerSetup setup;
    const RankPrograms programs(model, options_of(setup));
    const PhaseCosts costs = equal_costs(programs.lower(1, 1, std::vector<int32_t>{0}).programs[0]);
    for (const auto& [ranks, near] : {std::pair{2, 1}, {4, 1}, {4, 2}, {8, 1}, {8, 2}, {8, 4}}) {
      setup.ranks = ranks;
      setup.machine_ranks = near;
      SCOPED_TRACE((is_gpt2 ? "gpt2, " : "llama, ") + std::to_string(ranks) + " by " + std::to_string(near));
      const auto runner = test::make_runner(model, setup);
      Sequences sequences(*runner, kStreams, 12);
      sequences.prefill(8);
      sequences.decode();
      const RankPrograms::Ranks lowered = all_ranks(programs, ranks, near);
      const RankPlacement placement{near, near, {1e-6, 1e-6, 1e9}, {1e-5, 1e-6, 1e9}};
      const std::vector<SizedProgram> planned = sized(lowered);
      const StepPlan events = plan_by_events(planned, costs, placement),
                     formula = plan_by_formula(planned[0], costs, placement);
      EXPECT_EQ(events.bytes, sequences.sent().data);
      EXPECT_EQ(formula.bytes, sequences.sent().data);
      EXPECT_EQ(formula.bytes_between, events.bytes_between);
      EXPECT_GT(events.bytes_between, 0);
      EXPECT_LT(near == 1 ? 0 : events.bytes_between, events.bytes);
    }
  }
}

// Where all ranks have equal parts the formula says what the events come to; between machines each device is taken for
// busy until the last rank has copied what stays inside.
TEST(PlanModel, TheFormulaIsWhatEventsOfEqualRanksComeTo) {
  const DecoderModel model =
      test::llama_tokens({.heads = 8, .kv_heads = 8, .intermediate = 128, .vocabulary = 128});
  const RankPrograms programs(model, options_of({}));
  const PhaseCosts costs = equal_costs(programs.lower(1, 1, std::vector<int32_t>{0}).programs[0]);
  for (const auto& [ranks, near] : {std::pair{2, 2}, {4, 4}, {8, 8}, {4, 2}, {8, 2}, {8, 4}}) {
    const RankPrograms::Ranks lowered = all_ranks(programs, ranks, near);
    const std::vector<SizedProgram> planned = sized(lowered);
    const RankPlacement placement{near, near, {0.03, 0.02, 1e4}, {0.4, 0.1, 1e3}};
    const double events = plan_by_events(planned, costs, placement).seconds,
                 formula = plan_by_formula(planned[0], costs, placement).seconds;
    double most = 0;  // what the first to send may be ahead of the last, over all exchanges
    for (const Phase& phase : lowered.programs[0].phases)
      if (is_receive(planned[0].code(phase)) && near < ranks)
        most += (near - 1) *
                placement.inside.sending(static_cast<double>(planned[0].bytes(phase.operands[0].buffer)));
    EXPECT_TRUE(std::abs(formula - events - most / 2) <= most / 2 + 1e-9 * events)
        << ranks << " by " << near << ": " << formula << ", events " << events << ", " << most;
  }
}

TEST(PlanModel, WeightsAreCutInNoMorePartsThanTheyHaveUnits) {
  // 4 heads, 2 of keys and values; 64 columns between, in 4 panels. All ranks hold the table of tokens.
  const DecoderModel model = test::llama_tokens();
  const RankPrograms programs(model, options_of({}));
  const auto at_ranks = [&](int32_t ranks) {
    const RankPrograms::Ranks ends = programs.lower(ranks, 1, std::vector<int32_t>{0, ranks - 1});
    return cut_limits(ends.programs[0], ends.programs[1], ends.constants);
  };
  EXPECT_TRUE(at_ranks(2).limits.empty());
  EXPECT_TRUE(at_ranks(4).enough);
  const CutLimits eight = at_ranks(8);
  EXPECT_FALSE(eight.enough);
  ASSERT_EQ(eight.limits.size(), 2u);
  EXPECT_EQ(eight.limits.at(2).weights, 2 * 2);  // keys and values of two layers
  EXPECT_EQ(eight.limits.at(4).weights, 2 * 5);  // queries, what follows attention, and the three between
  EXPECT_EQ(eight.limits.at(4).name, "layers.0.q_proj.weight");
}

}  // namespace
}  // namespace ark
