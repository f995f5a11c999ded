// A loop that gives up in the middle of a step leaves as a whole: no thread waits at a barrier that others
// have left, none touches what is not there yet. The weights are larger than the ring, so that the warp that
// streams them sits in front of a full ring while the consumers give up, and gives up beside them.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "base/error.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/emulator/hooks.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

using emulator::bug_hash;
using emulator::EmulatedGpu;
using emulator::Landing;
using emulator::Options;
using emulator::Schedule;
using emulator::World;

DecoderModel large_model() {
  TokenGraphOptions o;
  o.kv_heads = 2;
  o.layers = 1;
  o.hidden = 64;
  o.intermediate = 1024;  // some 400 KiB of weights a processor; its ring holds 168 KiB
  return llama_tokens(o);
}

RunnerSetup setup_of(const std::shared_ptr<World>& world) {
  RunnerSetup s;
  s.ranks = 1;
  s.max_tokens = 16;
  s.max_length = 32;
  s.pages = 32;
  s.options.gpu = std::make_shared<EmulatedGpu>(
      world, emulator::EmulatedGpuOptions{.processors = 2, .seeded_bugs = true});
  s.options.device.processors = 2;
  s.options.device.groups = 1;  // so that each warp takes stages
  // Of the kernels' clock; passes at once when all are stuck.
  s.options.step_deadline = std::chrono::seconds(10);
  return s;
}

// Two steps: a block may open the second while it gives up in the first.
void post_steps(StepRunner& runner) {
  Sequence sequence{.slot = 1, .tokens = {5, 17, 3, 21}};
  int32_t page = 0;
  for (const int32_t count : {3, 1}) {
    StepDescriptor step;
    add_chunk(step, sequence, count, 4, page, true, kWantLogits);
    runner.post(step);
  }
}

// What poll() throws.
std::string failure_of(StepRunner& runner) {
  try {
    wait_for(runner);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnavailable);
    return error.what();
  }
  return "nothing was thrown";
}

// A fixed order first, then orders in which threads of a block see the end at different times.
std::vector<Options> schedules(uint64_t seeds) {
  std::vector<Options> all = {{.schedule = Schedule::kFixed, .landing = Landing::kLate, .detector = true}};
  for (uint64_t seed = 1; seed <= seeds; seed++) {
    for (const Schedule schedule : {Schedule::kRandom, Schedule::kPct})
      all.push_back({.schedule = schedule, .landing = Landing::kRandom, .seed = seed, .detector = true});
  }
  return all;
}

void expect_sound(const World& world, const Options& options) {
  const auto failure = world.failure();
  EXPECT_FALSE(failure) << "schedule " << static_cast<int>(options.schedule) << ", seed " << options.seed
                        << ": " << failure->what();
}

// A processor that does not signal, or a warp that does not hand its stage back: every thread of every block
// runs into the deadline on its own, at about the same time, some in the middle of a matrix product.
TEST(Abort, BlocksLeaveAsAWholeWhenDeadlinesPass) {
  for (const unsigned bug : {bug_hash("lost_signal"), bug_hash("missing_release")}) {
    for (Options options : schedules(2)) {
      options.bug = bug;
      options.stuck_passes_time = true;
      const auto world = std::make_shared<World>(options);
      {
        const auto runner = make_runner(large_model(), setup_of(world));
        post_steps(*runner);
        EXPECT_NE(failure_of(*runner).find("deadline passed"), std::string::npos);
        EXPECT_TRUE(runner->is_parked());
      }
      expect_sound(*world, options);
    }
  }
}

// Aborted from outside at any moment: the leader tells the others, who find out one by one, at whatever they
// wait for; weights too, which mostly come before anybody looks up.
TEST(Abort, BlocksLeaveAsAWholeWhenTheHostAborts) {
  auto after = std::chrono::microseconds(300);
  for (Options options : schedules(25)) {
    if (options.seed % 4 != 0) options.bug = bug_hash("impatient");
    const auto world = std::make_shared<World>(options);
    {
      const auto runner = make_runner(large_model(), setup_of(world));
      post_steps(*runner);
      std::this_thread::sleep_for(after);
      runner->abort("the test says so");
      EXPECT_EQ(failure_of(*runner), "the test says so");
    }
    expect_sound(*world, options);
    after = after * 9 / 8 % std::chrono::milliseconds(120);
  }
}

}  // namespace
}  // namespace ark::test
