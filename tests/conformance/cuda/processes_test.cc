// Rank 0's runner and the ranks that it sends its steps to, each with a GPU of its own in a world of its own, over the
// transport and the bootstrap that processes use. They share nothing beside files of memory and sockets: threads here,
// and at the end this program, started again.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "base/error.h"
#include "dma/launch.h"
#include "tests/conformance/cuda/gpu_ranks.h"
#include "tests/conformance/cuda/test_gpu.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"
#include "tests/open_files.h"

namespace ark::test {
namespace {

constexpr int32_t kPages = 64;

// All ranks in one launch: what those that are apart are compared with.
RunnerSetup one_launch_of(int ranks, int32_t processors) {
  RunnerSetup setup;
  setup.ranks = ranks;
  setup.max_tokens = 16;
  setup.pages = kPages;
  setup.options.gpu = test_gpu({});
  setup.options.device.processors = processors;
  return setup;
}

struct RankOptions {
  Way way = Way::kHost;
  int32_t pages = kPages;
  bool on_gpu = true;
  int arch = 900;  // of the GPU
  cuda::Numerics numerics = cuda::Numerics::kExact;
  int32_t processors = 2;
};

class GpuProcesses : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (std::getenv("ARK_GPU")) GTEST_SKIP() << "needs a GPU for each rank";
    static std::atomic<int> groups{0};
    address_ = "@ark-test-" + std::to_string(getpid()) + "-" + std::to_string(++groups);
  }
  void TearDown() override {
    if (peer_.joinable()) peer_.join();
  }

  std::unique_ptr<dma::Bootstrap> join(int rank) const {
    return dma::join_environment({rank, 2, address_}, dma::Deadline::after(std::chrono::seconds(20)));
  }

  static Compiled compile(const RankOptions& o) {
    TokenGraphOptions graph;
    graph.kv_heads = 2;
    CompileOptions c{
        .ranks = 2, .max_tokens = 16, .max_rows = 4, .max_items = 16, .page_size = 4, .pages = o.pages};
    if (o.way == Way::kPosted) c.link = Link::kPosted;
    return compile_decoder(llama_tokens(graph), c);
  }
  static RaggedOptions ragged(const RankOptions& o) {
    RaggedOptions r;
    r.limits = {16, 4, 8, 64, 4, o.pages, 101, 2};
    r.max_items = 16;
    r.step_deadline = std::chrono::seconds(60);
    r.join_deadline = std::chrono::seconds(20);
    if (o.on_gpu)
      r.gpu = std::make_shared<emulator::EmulatedGpu>(std::make_shared<emulator::World>(),
                                                      emulator::EmulatedGpuOptions{.arch = o.arch});
    r.device.numerics = o.numerics;
    r.device.processors = o.processors;
    r.device.peer_links = o.way == Way::kGpu;
    r.device.linger = std::chrono::microseconds(200);  // parks between steps
    return r;
  }
  std::unique_ptr<RaggedRunner> rank_0(const RankOptions& o) const {
    return make_ragged_runner(compile(o), ragged(o), join(0));
  }
  // Rank 1, until rank 0 ends; what it throws goes to `error_`.
  void start_rank_1(const RankOptions& o) {
    peer_ = std::jthread([this, o] {
      try {
        serve_rank(compile(o), ragged(o), join(1));
      } catch (const Error& error) {
        error_ = error.what();
      }
    });
  }

  std::string address_, error_;
  std::jthread peer_;
};

TEST_P(GpuProcesses, GiveTheBytesOfOneLaunch) {
  const std::vector<int32_t> prompt = {5, 17, 3, 99, 54, 21, 8};
  const RunnerSetup one = one_launch_of(2, 2);
  TokenGraphOptions graph;
  graph.kv_heads = 2;
  const auto expected = run_greedy(*make_runner(llama_tokens(graph), one), prompt, 4, 12);
  const RankOptions o{.way = GetParam()};
  start_rank_1(o);
  {
    const auto runner = rank_0(o);
    ASSERT_NE(runner->device(), nullptr);
    EXPECT_TRUE(same_bits(expected, run_greedy(*runner, prompt, 4, 12)));
    // Both park, soon or on a busy machine late, and go on.
    for (int i = 0; i < 100 && runner->device()->launches() == 1; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_TRUE(same_bits(expected, run_greedy(*runner, prompt, 4, 12)));
    }
    EXPECT_GT(runner->device()->launches(), 1);
  }
  peer_.join();
  EXPECT_EQ(error_, "");
}

TEST_P(GpuProcesses, RanksThatDifferRefuseEachOther) {
  const Way way = GetParam();
  struct Case {
    RankOptions other;
    std::string named;
  };
  for (const auto& [other, named] :
       std::vector<Case>{{{.way = way, .pages = kPages + 1}, "channel steps for "},
                         {{.way = way, .on_gpu = false}, "channel exchange 0"},
                         {{.way = way, .arch = 800}, "of sm_80 GPUs, exact"},
                         {{.way = way, .numerics = cuda::Numerics::kFast}, "of sm_90a GPUs, fast"}}) {
    start_rank_1(other);
    try {
      rank_0({.way = way});
      ADD_FAILURE() << "no refusal";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.code(), Code::kUnavailable);
      EXPECT_NE(text.find("differs from rank"), std::string::npos) << text;
      EXPECT_NE(text.find(named), std::string::npos) << text;
    }
    peer_.join();
    EXPECT_NE(error_, "");
    address_ += "'";
  }
}

// A rank that has joined and then cannot start its loop says why; a closed connection alone would not.
TEST_P(GpuProcesses, WhyARankCannotStartReachesRank0) {
  const RankOptions o{.way = GetParam()};
  RankOptions too_many = o;
  too_many.processors = 100;
  start_rank_1(too_many);
  std::string text, failure;
  std::unique_ptr<RaggedRunner> runner;
  try {
    runner = rank_0(o);
    run_greedy(*runner, {5, 17, 3}, 4, 2);
  } catch (const Error& error) {
    text = error.what();
    EXPECT_EQ(error.code(), Code::kUnavailable);
    if (runner) failure = runner->failure();
  }
  EXPECT_NE(text.find("rank 1 is dead: the loop needs 100 blocks"), std::string::npos) << text;
  EXPECT_EQ(text.rfind(failure, 0), 0u) << text;
  peer_.join();
  EXPECT_EQ(error_.rfind("the loop needs 100 blocks", 0), 0u) << error_;
}

INSTANTIATE_TEST_SUITE_P(Links, GpuProcesses, ::testing::Values(Way::kGpu, Way::kHost, Way::kPosted),
                         [](const auto& info) { return name_of(info.param); });

// ---- processes

constexpr const char* kRole = "ARK_TEST_ROLE";

Compiled compile_for(int ranks) {
  TokenGraphOptions graph;
  graph.heads = graph.kv_heads = 8;
  graph.layers = 1;
  return compile_decoder(
      gpt2_tokens(graph),
      {.ranks = ranks, .max_tokens = 16, .max_rows = 4, .max_items = 16, .page_size = 4, .pages = kPages});
}
// Of a library that takes dma-bufs in the place of a NIC (tests/dma/fake/dmabuf.cc), where it is preloaded.
auto preloaded_flush() { return reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "fake_dmabuf_flush")); }

RaggedOptions ragged_for() {
  RaggedOptions r;
  r.limits = {16, 4, 8, 64, 4, kPages, 101, 2};
  r.max_items = 16;
  r.step_deadline = r.join_deadline = std::chrono::seconds(60);
  emulator::EmulatedGpuOptions gpu{.processors = 1};
  if (const auto flush = preloaded_flush()) {
    gpu.shares = false;
    gpu.flush = [flush] {
      flush();
      return true;
    };
  }
  r.gpu = std::make_shared<emulator::EmulatedGpu>(std::make_shared<emulator::World>(), gpu);
  r.device.processors = 1;
  return r;
}
dma::Deadline soon() { return dma::Deadline::after(std::chrono::seconds(60)); }

TEST(GpuRankProcess, Body) {
  if (!dma::Environment::is_set() || !std::getenv(kRole)) return;  // only in the copies
  const dma::Environment environment = dma::Environment::from_process();
  try {
    serve_rank(compile_for(environment.size), ragged_for(), dma::join_environment(environment, soon()));
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    _exit(69);
  }
}

class GpuRankProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("ARK_GPU")) GTEST_SKIP() << "needs a GPU for each rank";
    setenv(kRole, "rank", 1);
    for (const char* name : {"GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX"})
      unsetenv(name);  // of this process alone
  }
  static dma::RankProcesses start(int size) {
    return {size, {"--gtest_filter=GpuRankProcess.Body", "--gtest_brief=1"}};
  }
  static std::unique_ptr<RaggedRunner> rank_0(const dma::RankProcesses& processes, int size) {
    return make_ragged_runner(compile_for(size), ragged_for(),
                              dma::join_environment(processes.environment(), soon()));
  }
};

TEST_F(GpuRankProcesses, StoreIntoEachOthersMemoryAndGiveTheBytesOfOneLaunch) {
  const std::vector<int32_t> prompt = {5, 17, 3, 99, 54, 21, 8};
  TokenGraphOptions graph;
  graph.heads = graph.kv_heads = 8;
  graph.layers = 1;
  for (const int size : {2, 4, 8}) {
    const RunnerSetup one = one_launch_of(size, 1);
    const auto expected = run_greedy(*make_runner(gpt2_tokens(graph), one), prompt, 4, 4);
    const dma::RankProcesses processes = start(size);
    const auto runner = rank_0(processes, size);
    EXPECT_EQ(cuda::text_of(runner->device()->ways()).find("host"), std::string::npos)
        << cuda::text_of(runner->device()->ways());
    EXPECT_TRUE(same_bits(expected, run_greedy(*runner, prompt, 4, 4))) << size;
  }
}

// Over transport verbs (tests/end_to_end/verbs_guest.sh asks for it).
TEST_F(GpuRankProcesses, ExchangeByANicThatReadsAndWritesTheirMemory) {
  if (!preloaded_flush()) GTEST_SKIP() << "no NIC that takes dma-bufs";
  const std::vector<int32_t> prompt = {5, 17, 3, 99};
  TokenGraphOptions graph;
  graph.heads = graph.kv_heads = 8;
  graph.layers = 1;
  const RunnerSetup one = one_launch_of(2, 1);
  const auto expected = run_greedy(*make_runner(gpt2_tokens(graph), one), prompt, 4, 2);
  const dma::RankProcesses processes = start(2);
  const auto runner = rank_0(processes, 2);
  const std::vector<cuda::PairWay> ways = runner->device()->ways();
  ASSERT_EQ(ways.size(), 1u);
  EXPECT_TRUE(ways[0].by_nic) << cuda::text_of(ways);
  EXPECT_TRUE(same_bits(expected, run_greedy(*runner, prompt, 4, 2)));
}

TEST_F(GpuRankProcesses, AKilledOneIsNamedAndLeavesNoHandle) {
  std::ptrdiff_t before = 0;
  for (int round = 0; round < 2; ++round) {  // the first loads what stays
    {
      const dma::RankProcesses processes = start(3);
      const auto runner = rank_0(processes, 3);
      run_greedy(*runner, {5, 17, 3}, 4, 2);
      kill(processes.pid(1), SIGKILL);
      std::string why;
      try {
        for (int i = 0; i < 1000; ++i) run_greedy(*runner, {5, 17, 3}, 4, 2);
      } catch (const Error& error) {
        why = error.what();
      }
      EXPECT_NE(why.find("rank 1 is dead"), std::string::npos) << why;
      EXPECT_NE(why.find(" step "), std::string::npos) << why;
      int status = -1;
      ASSERT_EQ(waitpid(processes.pid(2), &status, 0), processes.pid(2));
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 69) << status;
    }
    if (round == 0) before = open_files();
  }
  EXPECT_EQ(open_files(), before);
}

}  // namespace
}  // namespace ark::test
