// Aborts in any state: whatever the loops are doing, they end soon and say why.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "base/error.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

constexpr std::chrono::seconds kSoon{20};  // for busy machines; it takes milliseconds

RunnerSetup setup_of(int32_t ranks, bool posted) {
  RunnerSetup s;
  s.ranks = ranks;
  s.options.threads = ranks * 2;
  s.options.step_deadline = std::chrono::seconds(60);  // an abort must not wait for it
  if (posted) s.link = Link::kPosted;
  return s;
}

// Runs steps until something throws; the message.
std::string run_until_failure(StepRunner& runner) {
  try {
    for (;;) run_greedy(runner, {1, 2, 3, 4, 5}, 3, 4);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnavailable);
    return error.what();
  }
}

TEST(LoopAbort, EndsABusyLoopWithItsReason) {
  const DecoderModel model = llama_tokens();
  std::mt19937 random(3);
  for (int turn = 0; turn < 24; ++turn) {
    const auto runner = make_runner(model, setup_of(std::array{1, 2, 4}[turn % 3], turn % 2));
    std::chrono::steady_clock::time_point raised;
    std::jthread other([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
      raised = std::chrono::steady_clock::now();
      runner->abort("the test says so");
    });
    const std::string why = run_until_failure(*runner);
    other.join();
    EXPECT_NE(why.find("the test says so"), std::string::npos) << why;
    EXPECT_LT(std::chrono::steady_clock::now() - raised, kSoon);
  }
}

TEST(LoopAbort, EndsAParkedLoop) {
  const auto runner = make_runner(llama_tokens(), setup_of(2, false));
  run_greedy(*runner, {1, 2, 3}, 3, 1);
  while (!runner->is_parked()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  runner->abort("parked");
  EXPECT_NE(run_until_failure(*runner).find("parked"), std::string::npos);
}

TEST(LoopAbort, DestructionWithStepsInFlightIsQuick) {
  const DecoderModel model = llama_tokens();
  for (int turn = 0; turn < 12; ++turn) {
    auto runner = make_runner(model, setup_of(std::array{1, 2, 4}[turn % 3], turn % 2));
    Sequence s{.slot = 0, .tokens = {1, 2, 3, 4, 5, 6}};
    int32_t page = 0;
    for (int k = 0; k < 2; ++k) {
      StepDescriptor step;
      add_chunk(step, s, 3, 4, page, true, kWantToken);
      runner->post(step);
    }
    const auto start = std::chrono::steady_clock::now();
    runner.reset();
    EXPECT_LT(std::chrono::steady_clock::now() - start, kSoon);
  }
}

}  // namespace
}  // namespace ark::test
