// Launches as CUDA graphs over a fake libcuda, which runs a graph's kernel with the parameter that was set
// last and refuses one that is not cooperative.
#include <gtest/gtest.h>

#include <deque>

#include "engine/cuda/loop_host.h"
#include "tests/cuda/fake/driver.h"

namespace ark::cuda {
namespace {

constexpr StepCapacity kOneRank{.tokens = 8, .sequences = 4, .rows = 4, .vocabulary = 10};
constexpr int kGraphSteps = 30;

// What a launch is told; the kernel's parameter points to one.
struct Told {
  LaunchTerms terms;
  uint64_t mailbox = 0;
};

// A loop with a lease of one step: what it answers tells which launch ran it.
void answer_one_step(const void* parameter, int blocks, int threads) {
  const Told& told = **static_cast<const Told* const*>(parameter);
  const uint64_t step = told.terms.first_step;
  const MailboxLayout layout = MailboxLayout::of(kOneRank, 1, 0);
  Mailbox mailbox(kOneRank, 1, layout, reinterpret_cast<std::byte*>(told.mailbox));
  if (mailbox.posted_counter().load() < step) return;
  mailbox.result_rows(step)[0].token =
      static_cast<int32_t>(step * 1000 + told.terms.first_turn * 10 + static_cast<uint64_t>(blocks)) +
      threads;
  mailbox.done_counter(0).raise();
}

struct Answers {
  std::vector<int32_t> tokens;
  int64_t launches = 0;
};

// Steps in turn, now and then two in flight.
Answers run_steps(bool as_graph) {
  const auto gpu = open_gpu();
  const auto kernel = gpu->load(test::FakeDriver::source());
  std::deque<Told> told;
  std::unique_ptr<LoopHost> host;
  LoopSetup setup;
  setup.kernel = kernel.get();
  setup.shape = {4, 288, 1000, as_graph};
  setup.lease = 1;
  setup.parameter = [&](const LaunchTerms& terms) {
    told.push_back({terms, host->mailbox_address()});
    const Told* last = &told.back();
    const auto bytes = std::as_bytes(std::span(&last, 1));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  host = std::make_unique<LoopHost>(*gpu, kOneRank, 0, std::move(setup));
  Answers answers;
  const auto post = [&] {
    StepDescriptor step;
    step.tokens = {1};
    step.sequences = {{0, 0, 1, 0}};
    step.rows.resize(1);
    write_record(step, host->mailbox().posted() + 1, kOneRank, host->free_slot());
    host->post();
  };
  const auto wait = [&] {
    for (;;) {
      const auto result = host->poll(std::chrono::milliseconds(10));
      if (!result) continue;
      answers.tokens.push_back(result->rows.at(0).token);
      return;
    }
  };
  for (int i = 0; i < kGraphSteps; i += 3) {
    post();
    wait();
    post();
    post();
    wait();
    wait();
  }
  answers.launches = host->launches();
  return answers;
}

using LaunchGraphs = test::FakeDriver;

TEST_F(LaunchGraphs, AreBuiltOnceReplayedEachStepAndGiveTheBytesOfLaunches) {
  fake_->kernel = answer_one_step;
  const int made = fake_->graphs_made, replayed = fake_->graph_launches, updated = fake_->graph_updates;
  const int graphs = fake_->graphs, events = fake_->events;
  const Answers plain = run_steps(false);
  EXPECT_EQ(fake_->graphs_made, made);
  EXPECT_EQ(fake_->graph_launches, replayed);
  const int before = fake_->launches;
  const Answers graph = run_steps(true);
  ASSERT_EQ(plain.tokens.size(), static_cast<std::size_t>(kGraphSteps));
  EXPECT_EQ(plain.tokens[4], 5 * 1000 + 9 * 10 + 4 + 288);  // each launch was a step's and one turn more
  EXPECT_EQ(graph.tokens, plain.tokens);
  EXPECT_EQ(graph.launches, plain.launches);
  EXPECT_EQ(graph.launches, kGraphSteps);
  EXPECT_EQ(fake_->graphs_made, made + 1);
  EXPECT_EQ(fake_->graph_launches, replayed + kGraphSteps);
  EXPECT_EQ(fake_->graph_updates, updated + kGraphSteps);
  EXPECT_EQ(fake_->launches, before + kGraphSteps) << "no launch beside the graph's";
  EXPECT_EQ(fake_->graphs, graphs) << "given back";
  EXPECT_EQ(fake_->events, events);
}

TEST_F(LaunchGraphs, AreMadeAnewForAnotherShapeAndRefuseWhatCannotBeResident) {
  fake_->kernel = [](const void*, int, int) {};
  const auto gpu = open_gpu();
  const auto kernel = gpu->load(source());
  const std::vector<std::byte> parameter(8);
  const int made = fake_->graphs_made;
  for (const int32_t blocks : {4, 4, 3, 3}) kernel->launch({blocks, 288, 1000, true}, parameter);
  EXPECT_EQ(fake_->graphs_made, made + 2);
  EXPECT_EQ(test::refusal(
                [&] {
                  kernel->launch({5, 288, 1000, true}, parameter);
                },
                Code::kUnsupported)
                .find("the loop needs 5 blocks of 288 threads"),
            0u);
  EXPECT_EQ(fake_->graphs_made, made + 2);
}

TEST_F(LaunchGraphs, AreRefusedByNameWhereTheDriverIsTooOld) {
  const test::Environment old("ARK_LIBCUDA", ARK_FAKE_OLD_LIBCUDA);
  void* library = ::dlopen(ARK_FAKE_OLD_LIBCUDA, RTLD_NOW);
  ASSERT_NE(library, nullptr) << ::dlerror();
  FakeCuda* fake = reinterpret_cast<FakeCuda* (*)()>(::dlsym(library, "fake_cuda"))();
  fake->kernel = [](const void*, int, int) {};
  {
    const auto gpu = open_gpu();
    const auto kernel = gpu->load(source());
    const std::vector<std::byte> parameter(8);
    EXPECT_EQ(test::refusal(
                  [&] {
                    kernel->launch({4, 288, 1000, true}, parameter);
                  },
                  Code::kUnavailable),
              std::string(ARK_FAKE_OLD_LIBCUDA) +
                  " has no function cuGraphCreate; a newer driver or toolkit is needed");
    EXPECT_EQ(fake->launches, 0);
    kernel->launch({4, 288, 1000}, parameter);  // what it can do goes on
    EXPECT_EQ(fake->launches, 1);
  }
  EXPECT_EQ(fake->events, 0);
  ::dlclose(library);
}

TEST_F(LaunchGraphs, ThatTheDriverRefusesLeaveNothingBehind) {
  const auto gpu = open_gpu();
  const auto kernel = gpu->load(source());
  const int graphs = fake_->graphs, events = fake_->events;
  fake_->node_result = 801;
  EXPECT_EQ(test::refusal(
                [&] {
                  kernel->launch({4, 288, 1000, true}, std::vector<std::byte>(8));
                },
                Code::kUnavailable),
            "the GPU refuses the loop as a node of a graph: CUDA_ERROR (the fake driver says so)");
  EXPECT_EQ(fake_->graphs, graphs);
  EXPECT_EQ(fake_->events, events);
}

}  // namespace
}  // namespace ark::cuda
