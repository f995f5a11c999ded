// Cores that other programs use are given up and taken back: the policy on a machine in virtual time, and a loop whose
// steps ask for fewer processors.
#include "engine/cpu/company.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

constexpr int64_t kMs = 1'000'000;

// `cores` of which other programs keep `taken` busy: who has one of these with them has half of it, in turns of 3 ms.
// The system puts those that compute on free cores first. `slow`: part of all time that is lost on any core.
struct Machine {
  int32_t cores = 2, taken = 0;
  int64_t work = 8 * kMs;  // of one step, shared out evenly
  double slow = 0;
  std::mt19937 random{5};
  Company company{cores};
  int64_t now = 0, steps = 0;

  void step(int32_t most) {
    const int32_t active = company.active(most);
    const int32_t crowded = std::max(0, active - (cores - taken));
    std::vector<int64_t> lost(static_cast<std::size_t>(cores));
    const int64_t own = work / active;
    for (int32_t p = 0; p < active; ++p) {
      double ns = slow * static_cast<double>(own) * std::uniform_real_distribution(0.8, 1.2)(random);
      if (p < crowded)
        ns += static_cast<double>(own) + 3 * kMs * std::uniform_real_distribution(-0.5, 0.5)(random);
      lost[static_cast<std::size_t>(p)] = std::max<int64_t>(0, static_cast<int64_t>(ns));
    }
    const int64_t took = own + *std::ranges::max_element(lost);
    now += took;
    ++steps;
    company.step_done(now, took, lost);
  }
  // Steps a second for so long.
  double run(int64_t ms, int32_t most = 0) {
    const int64_t begin = now, before = steps;
    while (now < begin + ms * kMs) step(most > 0 ? most : cores);
    return static_cast<double>(steps - before) / (static_cast<double>(now - begin) * 1e-9);
  }
};

TEST(Company, ACoreThatIsTakenIsGivenUpAndTakenBack) {
  for (const int32_t cores : {2, 3, 8, 64}) {
    Machine machine{.cores = cores, .work = 5 * kMs * cores, .company = Company(cores)};
    const double alone = machine.run(500);
    machine.taken = 1;
    machine.run(60);
    EXPECT_EQ(machine.company.active(cores), cores - 1) << cores;
    // Trials to take it back cost little.
    EXPECT_GT(machine.run(5000), 0.93 * alone * (cores - 1) / cores) << cores;
    machine.taken = 0;
    machine.run(1100);
    EXPECT_EQ(machine.company.active(cores), cores);
    EXPECT_GT(machine.run(1000), 0.99 * alone);
  }
}

TEST(Company, SeveralAreGivenUpAtOnceWhereThatHelps) {
  Machine machine{.cores = 8, .taken = 3, .work = 40 * kMs, .company = Company(8)};
  machine.run(100);
  EXPECT_EQ(machine.company.active(8), 5);
  machine.taken = 8;  // half of each core is more than none of most
  machine.run(4000);
  EXPECT_EQ(machine.company.active(8), 8);
  machine.taken = 0;
  machine.run(3000);
  EXPECT_EQ(machine.company.active(8), 8);
}

TEST(Company, WhatIsLostOnAnyCoreIsNoReasonToGiveOneUp) {
  Machine machine{.cores = 8, .work = 40 * kMs, .slow = 1, .company = Company(8)};
  const double all = 1e9 / (2.15 * 5 * kMs);  // steps a second with all of them
  EXPECT_GT(machine.run(5000), 0.9 * all);
  EXPECT_GT(machine.run(5000), 0.9 * all);
}

TEST(Company, NoMoreThanAskedForTakePart) {
  Machine machine{.cores = 4, .work = 20 * kMs, .company = Company(4)};
  machine.run(100, 2);
  EXPECT_EQ(machine.company.active(2), 2);
  EXPECT_EQ(machine.company.active(4), 4);
  machine.taken = 1;
  machine.run(100, 3);
  EXPECT_EQ(machine.company.active(3), 3) << "of three, all have a core";
}

// Their timeline stays empty, and the bytes are the same.
TEST(Company, ProcessorsThatAreNotAskedForTakeNoPart) {
  RunnerSetup setup;
  setup.options.threads = 3;
  setup.options.trace_events = 1 << 12;
  const auto runner = make_runner(llama_tokens(), setup);
  std::vector<std::vector<float>> first;
  for (const int32_t processors : {2, 1, 3}) {
    Sequence s{.slot = 0, .tokens = {1, 2, 3, 4, 5}};
    int32_t next_page = 0;
    StepDescriptor step;
    step.processors = processors;
    add_chunk(step, s, 5, runner->limits().page_size, next_page, true, kWantLogits);
    runner->post(step);
    const std::vector<std::vector<float>> logits = {wait_for(*runner).rows.at(0).logits};
    if (first.empty()) first = logits;
    EXPECT_TRUE(same_bits(first, logits)) << processors;
    const Timeline timeline = runner->timeline();
    const auto did = [&](std::size_t p) { return !timeline.blocks[p].empty(); };
    EXPECT_TRUE(did(0) && did(1));
    EXPECT_EQ(did(2), processors == 3) << processors;
  }
}

}  // namespace
}  // namespace ark::test
