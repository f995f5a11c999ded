// Rank 0's runner and the ranks that it sends its steps to, each with a GPU of its own, over the transport
// and the bootstrap that processes use. The ranks are threads here, since an emulated GPU belongs to its
// process, but share nothing beside files of memory and sockets.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "base/error.h"
#include "tests/conformance/cuda/test_gpu.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

constexpr int32_t kPages = 64;

struct RankOptions {
  bool posted = false;
  int32_t pages = kPages;
  bool on_gpu = true;
  int arch = 900;  // of the GPU
  cuda::Numerics numerics = cuda::Numerics::kExact;
  int32_t processors = 2;
};

class GpuProcesses : public ::testing::TestWithParam<bool> {
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
    if (o.posted) c.link = Link::kPosted;
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
  RunnerSetup one;
  one.ranks = 2;
  one.max_tokens = 16;
  one.pages = kPages;
  one.options.gpu = test_gpu({});
  one.options.device.processors = 2;
  TokenGraphOptions graph;
  graph.kv_heads = 2;
  const auto expected = run_greedy(*make_runner(llama_tokens(graph), one), prompt, 4, 12);
  const RankOptions o{.posted = GetParam()};
  start_rank_1(o);
  {
    const auto runner = rank_0(o);
    ASSERT_NE(runner->device(), nullptr);
    EXPECT_TRUE(same_bits(expected, run_greedy(*runner, prompt, 4, 12)));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // both park, and go on
    EXPECT_TRUE(same_bits(expected, run_greedy(*runner, prompt, 4, 12)));
    EXPECT_GT(runner->device()->launches(), 1);
  }
  peer_.join();
  EXPECT_EQ(error_, "");
}

TEST_P(GpuProcesses, RanksThatDifferRefuseEachOther) {
  const bool posted = GetParam();
  struct Case {
    RankOptions other;
    std::string named;
  };
  for (const auto& [other, named] :
       std::vector<Case>{{{.posted = posted, .pages = kPages + 1}, "channel steps for "},
                         {{.posted = posted, .on_gpu = false}, "channel exchange 0"},
                         {{.posted = posted, .arch = 800}, "of sm_80 GPUs, exact"},
                         {{.posted = posted, .numerics = cuda::Numerics::kFast}, "of sm_90a GPUs, fast"}}) {
    start_rank_1(other);
    try {
      rank_0({.posted = posted});
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
  const RankOptions o{.posted = GetParam()};
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
  EXPECT_EQ(failure, text);
  peer_.join();
  EXPECT_EQ(error_.rfind("the loop needs 100 blocks", 0), 0u) << error_;
}

INSTANTIATE_TEST_SUITE_P(Links, GpuProcesses, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Posted" : "Direct"; });

}  // namespace
}  // namespace ark::test
