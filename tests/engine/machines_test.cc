// Sums made on each machine first: the bits of the flat ones at fewer bytes between machines.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/program/unroll.h"
#include "engine/validate/validate.h"
#include "tests/engine/driving.h"
#include "tests/engine/mutations.h"
#include "tests/engine/token_graphs.h"
#include "tests/fixtures.h"

namespace ark::test {
namespace {

DecoderModel model_of(bool gpt2) {
  TokenGraphOptions o;
  o.heads = o.kv_heads = 12;
  o.hidden = 48;
  o.intermediate = 192;
  return gpt2 ? gpt2_tokens(o) : llama_tokens(o);
}

// What a step of one token sends between machines of so many ranks each, and to ranks of the same, for sums.
struct Traffic {
  int64_t far = 0, near = 0;
};
Traffic traffic(const Compiled& compiled, int32_t machine_ranks) {
  Traffic sum;
  for (const Program& p : compiled.programs)
    for (const Instance& i : unroll(p)) {
      const Phase& phase = p.phases[i.phase];
      // What an all-gather sends is not the whole of a row.
      if (p.variants[phase.variant].code != OpCode::kSend ||
          phase.name.find("AllReduce") == std::string::npos)
        continue;
      int64_t bytes = 4;
      for (const Expr& e : sizes(p, p.buffers[resolve(p, phase, phase.operands[0], i.trip)]))
        bytes *= e.evaluate({{"tokens", 1}, {"rows", 1}, {"items", 1}, {"pages", 1}});
      const bool is_far = p.channels[phase.channel].peer / machine_ranks != p.rank / machine_ranks;
      (is_far ? sum.far : sum.near) += bytes;
    }
  return sum;
}

TEST(Machines, SumsOnThemFirstChangeNoBit) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 33; ++i) prompt.push_back(i * 37 % 101);
  for (const bool gpt2 : {false, true}) {
    const DecoderModel model = model_of(gpt2);
    for (const auto& [ranks, machine_ranks] : {std::pair{6, 3}, {4, 2}, {8, 2}, {8, 4}, {12, 3}}) {
      if (is_sanitized() && ranks > 6) continue;
      const std::string at =
          std::to_string(ranks) + " ranks, " + std::to_string(machine_ranks) + " a machine";
      RunnerSetup setup;
      setup.ranks = ranks;
      const Compiled flat = compile(model, setup);
      const auto expected = run_greedy(*make_runner(model, setup), prompt, 17, 4);
      for (const Link link : {Link::kDirect, Link::kPosted})
        for (const bool lockstep : {false, true}) {
          if (lockstep && link == Link::kPosted) continue;
          RunnerSetup pieces = setup;
          pieces.machine_ranks = machine_ranks;
          pieces.link = link;
          pieces.options.lockstep = lockstep;
          pieces.options.threads = lockstep ? 1 : ranks;
          EXPECT_TRUE(same_bits(expected, run_greedy(*make_runner(model, pieces), prompt, 17, 4))) << at;
        }
      setup.machine_ranks = machine_ranks;
      const Traffic before = traffic(flat, machine_ranks),
                    after = traffic(compile(model, setup), machine_ranks);
      EXPECT_GT(before.far, 0);
      EXPECT_EQ(after.far * machine_ranks, before.far) << at;
      EXPECT_EQ(after.near, before.near) << at;
    }
  }
}

// Where the tree of all ranks has no such nodes, it is summed as ever.
TEST(Machines, WithOtherTreesAreLeftAlone) {
  RunnerSetup setup;
  for (const auto& [ranks, machine_ranks] : {std::pair{6, 2}, {4, 3}, {4, 4}, {4, 1}, {4, 0}}) {
    setup.ranks = ranks;
    setup.machine_ranks = 1;
    const std::string flat = program_text(compile(model_of(false), setup).programs[0],
                                          compile(model_of(false), setup).bindings[0]);
    setup.machine_ranks = machine_ranks;
    const Compiled other = compile(model_of(false), setup);
    EXPECT_EQ(program_text(other.programs[0], other.bindings[0]), flat) << ranks << " " << machine_ranks;
  }
}

TEST(Machines, RandomMutationsAreRefused) {
  RunnerSetup setup;
  setup.ranks = 4;
  setup.machine_ranks = 2;
  expect_refusal({compile(model_of(false), setup), compile(model_of(true), setup)}, rounds(400), 13);
}

TEST(Machines, SumsOfOtherRanksAreRefused) {
  RunnerSetup setup;
  setup.ranks = 4;
  setup.machine_ranks = 2;
  const Compiled sound = compile(model_of(false), setup);
  std::vector<Program> programs = sound.programs;
  const auto reduce =
      std::find_if(programs[0].phases.begin(), programs[0].phases.end(), [&](const Phase& phase) {
        return programs[0].variants[phase.variant].code == OpCode::kRecvReduce &&
               phase.name.find("machine") == std::string::npos;
      });
  ASSERT_NE(reduce, programs[0].phases.end());
  for (Phase& phase : programs[0].phases)  // the part itself, not the machine's sum
    if (&phase != &*reduce && phase.name.find("on a machine") != std::string::npos &&
        phase.channel == kNone) {
      reduce->operands[0] = phase.operands[0];
      break;
    }
  const auto errors = validate(programs, sound.bindings);
  ASSERT_FALSE(errors.empty());
  EXPECT_NE(errors[0].find("nor sums of all machines"), std::string::npos) << errors[0];
}

}  // namespace
}  // namespace ark::test
