// Posted links between ranks of one launch, and ranks with a GPU each, whose launches know nothing of each other: they
// exchange in each other's memory, or through memory of the host by stores of the GPU (direct) or requests (posted).
// The oracle is the launch that holds all ranks and exchanges in device memory: equal bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "tests/conformance/cuda/gpu_ranks.h"
#include "tests/conformance/cuda/test_gpu.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

using emulator::Landing;
using emulator::Options;
using emulator::Schedule;
using emulator::World;

RunnerSetup one_launch(int ranks, Link link, const TestSchedule& schedule = {}) {
  RunnerSetup setup;
  setup.ranks = ranks;
  setup.link = link;
  setup.max_tokens = GpuRanks::kMaxTokens;
  setup.pages = GpuRanks::kPages;
  setup.options.gpu = test_gpu(schedule);
  setup.options.device.processors = test_processors();
  setup.options.step_deadline = std::chrono::seconds(60);
  return setup;
}

TEST(PostedLinks, GiveTheBytesOfDirectOnes) {
  const auto prompt = random_tokens(11, 1);
  for (const bool gpt2 : {false, true}) {
    const Rows expected =
        run_greedy(*make_runner(gpt2_or_llama(gpt2), one_launch(2, Link::kDirect)), prompt, 5, 3);
    for (const uint32_t seed : gpt2 ? std::vector{1u} : std::vector{0u, 1u, 2u}) {
      const RunnerSetup posted = one_launch(2, Link::kPosted, {.seed = seed, .detector = seed != 0});
      EXPECT_TRUE(same_bits(expected, run_greedy(*make_runner(gpt2_or_llama(gpt2), posted), prompt, 5, 3)))
          << (gpt2 ? "gpt2, seed " : "llama, seed ") << seed;
    }
  }
}

// More messages a step than slots, more requests than the ring holds, leases, counters near their end,
// barriers.
TEST(PostedLinks, FourRanksLeasesAndBarriersChangeNothing) {
  const auto prompt = random_tokens(7, 2);
  TokenGraphOptions o;
  o.heads = o.kv_heads = 4;
  const DecoderModel model = gpt2_tokens(o);
  const Rows expected = run_greedy(*make_runner(model, one_launch(4, Link::kDirect)), prompt, 3, 20);
  for (const bool barrier : {false, true}) {
    RunnerSetup posted = one_launch(4, Link::kPosted);
    posted.options.barrier = barrier;
    posted.options.lease = 3;
    posted.options.counter_base = 0xfffffff0;
    EXPECT_TRUE(same_bits(expected, run_greedy(*make_runner(model, posted), prompt, 3, 20))) << barrier;
  }
}

// Devices run the phases of rows that are not zeros as those of all rows.
TEST(PostedLinks, RowsOfZerosChangeNothing) {
  const auto prompt = random_tokens(9, 5);
  // So many that ranks share the table.
  const DecoderModel model = llama_tokens({.kv_heads = 2, .vocabulary = 4099});
  for (const Link link : {Link::kDirect, Link::kPosted}) {
    RunnerSetup setup = one_launch(2, link);
    const Program program = compile(model, setup).programs[0];
    EXPECT_TRUE(std::any_of(program.variants.begin(), program.variants.end(),
                            [](const Variant& v) { return v.code == OpCode::kSendRows; }));
    const Rows rows = run_greedy(*make_runner(model, setup), prompt, 5, 2);
    setup.send_zeros = true;
    EXPECT_TRUE(same_bits(run_greedy(*make_runner(model, setup), prompt, 5, 2), rows));
  }
}

// ---- a GPU for each rank

std::vector<Options> schedules() {
  std::vector<Options> all = {{.schedule = Schedule::kFixed, .landing = Landing::kLate, .detector = true}};
  for (const uint64_t seed : {1, 2}) {
    for (const Schedule s : {Schedule::kRandom, Schedule::kPct})
      all.push_back({.schedule = s, .landing = Landing::kRandom, .seed = seed, .detector = true});
  }
  return all;
}

class GpuPerRank : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (GetParam() == Way::kNic && std::getenv("ARK_GPU")) GTEST_SKIP() << "needs memory that the host maps";
  }
  // The way that all pairs have taken.
  static void expect_way(GpuRanks& ranks, int size) {
    for (int r = 0; r < size; ++r) {
      const std::vector<cuda::PairWay> ways = ranks.executor(r).ways();
      EXPECT_EQ(ways.size(),
                GetParam() == Way::kPosted ? 0u : static_cast<std::size_t>(size * (size - 1) / 2));
      for (const cuda::PairWay& way : ways) {
        EXPECT_EQ(way.why_not.empty(), GetParam() == Way::kGpu) << way.why_not;
        EXPECT_EQ(way.by_nic, GetParam() == Way::kNic) << way.why_not_by_nic;
      }
    }
  }
};

TEST_P(GpuPerRank, GivesTheBytesOfOneLaunch) {
  const auto prompt = random_tokens(9, 3);
  const Rows expected =
      run_greedy(*make_runner(gpt2_or_llama(false), one_launch(2, Link::kDirect)), prompt, 5, 3);
  for (const Options& schedule : schedules()) {
    const auto world = std::make_shared<World>(schedule);
    const GpusOptions o{world, {2, 2}, GetParam(), ~uint64_t{0} - 9};
    GpuRanks ranks(gpt2_or_llama(false), o);
    EXPECT_TRUE(same_bits(expected, run_greedy(ranks, prompt, 5, 3)))
        << static_cast<int>(schedule.schedule) << " seed " << schedule.seed;
    EXPECT_FALSE(world->failure());
    expect_way(ranks, 2);
    // Who has carried the messages: each is one raise, and one request of posted links.
    const dma::Sender to = ranks.group(0).sender(1, 0);
    const uint64_t sent = ranks.group(1).receiver(0, 0).arrived->load() - o.first_count;
    if (GetParam() == Way::kGpu) {
      EXPECT_EQ(sent, 0u);
    } else {
      EXPECT_GT(sent, 8u);
    }
    const bool posts = GetParam() == Way::kPosted || GetParam() == Way::kNic;
    EXPECT_EQ(to.completed->load() - o.first_count, posts ? sent : 0);
    EXPECT_EQ(to.on_device, GetParam() == Way::kNic);
    // At most one for each message, and none where no NIC writes.
    EXPECT_EQ(ranks.nic(1).flushed > 0, GetParam() == Way::kNic);
    EXPECT_LE(static_cast<uint64_t>(ranks.nic(1).flushed), sent);
  }
}

// GPUs of different sizes: a peer counts messages, not the processors that wrote them.
TEST_P(GpuPerRank, TakesGpusOfDifferentSizes) {
  const auto prompt = random_tokens(6, 4);
  const Rows expected =
      run_greedy(*make_runner(gpt2_or_llama(true), one_launch(2, Link::kDirect)), prompt, 4, 3);
  GpuRanks ranks(gpt2_or_llama(true), {std::make_shared<World>(schedules()[0]), {3, 2}, GetParam()});
  EXPECT_TRUE(same_bits(expected, run_greedy(ranks, prompt, 4, 3)));
  EXPECT_EQ(ranks.executor(0).processors(), 3);
  EXPECT_EQ(ranks.executor(1).processors(), 2);
}

// Several peers: pieces of several senders in one sum, more messages than slots, counters near their end,
// launches that end in the middle of it all.
TEST_P(GpuPerRank, ManyPeersLeasesAndBarriersChangeNothing) {
  const auto prompt = random_tokens(5, 2);
  TokenGraphOptions o;
  o.heads = o.kv_heads = 4;
  o.layers = 1;
  const DecoderModel model = gpt2_tokens(o);
  for (const bool barrier : {false, true}) {
    const auto processors = barrier ? std::vector{1, 1, 1, 1} : std::vector{2, 1, 2};
    const auto ranks = static_cast<int>(processors.size());
    const Rows expected = run_greedy(*make_runner(model, one_launch(ranks, Link::kDirect)), prompt, 3, 3);
    const auto world = std::make_shared<World>(schedules()[barrier ? 0 : 1]);
    GpusOptions options{world, processors, GetParam(), ~uint64_t{0} - 9};
    options.lease = 2;
    options.barrier = barrier;
    GpuRanks gpus(model, options);
    EXPECT_TRUE(same_bits(expected, run_greedy(gpus, prompt, 3, 3))) << ranks << " ranks";
    EXPECT_FALSE(world->failure());
    for (int r = 0; r < ranks; ++r) {
      EXPECT_EQ(gpus.executor(r).processors(), processors[r]);
      EXPECT_GE(gpus.executor(r).launches(), 2);
      if (r == 0) continue;
      // More messages than slots.
      if (GetParam() != Way::kGpu) {
        EXPECT_GT(gpus.group(0).receiver(r, 0).arrived->load() - options.first_count, 8u);
      }
    }
  }
}

// Its peers would wait in a step that it has left.
TEST_P(GpuPerRank, TheEndOfAnExecutorInMidStepRaisesTheGroupsFlag) {
  GpuRanks ranks(gpt2_or_llama(false), {std::make_shared<World>(), {2, 2}, GetParam()});
  run_greedy(ranks, {1, 2}, 2, 1);
  ranks.end(1);
  EXPECT_FALSE(ranks.group(1).abort().raised()) << "between steps";
  StepDescriptor step;
  step.tokens = {1};
  step.sequences = {{0, 0, 1, 0}};
  step.page_deltas = {{0, 0, 0}};
  ranks.executor(0).post(step);  // rank 1 never starts it
  ranks.end(0);
  EXPECT_EQ(ranks.group(0).abort().reason(), dma::AbortReason::kShutdown);
}

TEST_P(GpuPerRank, ADeadPeerIsNamedAndEndsTheLoop) {
  GpuRanks ranks(gpt2_or_llama(false), {std::make_shared<World>(), {2, 2}, GetParam()});
  StepDescriptor step;
  step.tokens = {1};
  step.sequences = {{0, 0, 1, 0}};
  step.page_deltas = {{0, 0, 0}};
  ranks.executor(0).post(step);  // rank 1 never starts it
  // Rank 0 is in it by then, on a busy machine, too.
  EXPECT_FALSE(ranks.executor(0).poll(std::chrono::milliseconds(500)));
  EXPECT_FALSE(ranks.executor(0).is_parked());
  ranks.group(1).report_dead(1, "the test says so");
  try {
    for (int i = 0; i < 100; ++i) ranks.executor(0).poll(std::chrono::milliseconds(100));
    FAIL() << "poll() did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnavailable);
    EXPECT_THAT(error.what(),
                testing::MatchesRegex("rank 1 is dead: the test says so \\(in step 1: .*rank 0, "
                                      ".*phase [0-9]+, .*step 1.*\\)"));
  }
  for (int i = 0; i < 1000 && !ranks.executor(0).is_parked(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(ranks.executor(0).is_parked());
  EXPECT_THROW(ranks.executor(0).post(step), Error);
}

// The other way round: a loop that ends tells the group, which tells the others when it goes.
TEST_P(GpuPerRank, AnAbortedLoopRaisesTheGroupsFlag) {
  GpuRanks ranks(gpt2_or_llama(false), {std::make_shared<World>(), {2, 2}, GetParam()});
  EXPECT_FALSE(ranks.group(0).abort().raised());
  ranks.abort("the test says so");
  EXPECT_TRUE(ranks.group(0).abort().raised());
}

// Eight ranks in each other's memory, of GPUs with one processor and with several.
TEST(GpuPerRankInEachOthersMemory, TwoFourAndEightGpusGiveTheBytesOfOneLaunch) {
  const auto prompt = random_tokens(5, 6);
  TokenGraphOptions o;
  o.heads = o.kv_heads = 8;
  o.layers = 1;
  const DecoderModel model = gpt2_tokens(o);
  for (const int ranks : {2, 4, 8}) {
    RunnerSetup one = one_launch(ranks, Link::kDirect);
    one.options.device.processors = 1;
    const Rows expected = run_greedy(*make_runner(model, one), prompt, 3, 3);
    std::vector<int> processors(static_cast<std::size_t>(ranks), 1);
    processors.back() = 2;
    const auto world = std::make_shared<World>(schedules()[ranks == 4 ? 1 : 0]);
    GpuRanks gpus(model, {world, processors, Way::kGpu, ~uint64_t{0} - 5});
    EXPECT_TRUE(same_bits(expected, run_greedy(gpus, prompt, 3, 3))) << ranks << " ranks";
    EXPECT_FALSE(world->failure());
    EXPECT_EQ(cuda::text_of(gpus.executor(ranks - 1).ways()).find("host"), std::string::npos);
  }
}

// Steps of few rows and of many in turns: each rank adds up its share of the latter's sums. Of two ranks to eight,
// whose processors have few elements or none. Also where ranks are of one launch.
TEST(GpuPerRankInEachOthersMemory, SharesOfSumsGiveTheBytesOfOneLaunch) {
  const auto prompt = random_tokens(14, 6);
  TokenGraphOptions o;
  o.heads = o.kv_heads = 8;
  o.layers = 2;
  for (const int ranks : {2, 4, 8}) {
    o.is_parallel = ranks == 2;              // sums whose parts are stored side by side
    o.vocabulary = ranks == 8 ? 2053 : 101;  // of ranks that share the table, whose rows are sent
    const DecoderModel model = ranks == 4 ? gpt2_tokens(o) : llama_tokens(o);
    RunnerSetup one = one_launch(ranks, Link::kDirect);
    one.options.device.processors = 1;
    const Rows expected = run_greedy(*make_runner(model, one), prompt, 13, 2);
    one.options.device.part_rows = cuda::kFewRows;  // as GpuRanks has: else sums of thirteen rows go by words
    one.options.device.shares_from = 100;
    one.options.device.processors = 8 / ranks;
    EXPECT_TRUE(same_bits(expected, run_greedy(*make_runner(model, one), prompt, 13, 2))) << ranks;
    const std::vector<int> processors(static_cast<std::size_t>(ranks), 2);
    const auto world = std::make_shared<World>(schedules()[ranks == 4 ? 1 : 0]);
    GpuRanks gpus(model, {.world = world,
                          .processors = processors,
                          .way = Way::kGpu,
                          .first_count = ~uint64_t{0} - 5,
                          .shares_from = 100});
    EXPECT_TRUE(same_bits(expected, run_greedy(gpus, prompt, 13, 2))) << ranks << " ranks";
    EXPECT_FALSE(world->failure());
  }
}

// Steps of up to 16 rows exchange sums by words, and those beyond few rows nothing else so, or rows, too. One processor
// has several tiles of such a sum, of which shares would be taken else. ARK_FULL=1: in other schedules, too.
TEST(GpuPerRankInEachOthersMemory, ToldRowsGiveTheBytesOfOneLaunch) {
  const auto prompt = random_tokens(24, 6);
  TokenGraphOptions o;
  o.heads = o.kv_heads = 8;
  o.layers = 2;
  o.head_dim = 32, o.hidden = 256;
  const DecoderModel model = llama_tokens(o);
  for (const int ranks : {2, 4}) {
    RunnerSetup one = one_launch(ranks, Link::kDirect);
    one.options.device.processors = 1;
    one.options.device.part_rows = one.options.device.told_rows = cuda::kFewRows;
    const Rows expected = run_greedy(*make_runner(model, one), prompt, 11, 3);
    one.options.device.part_rows = 16;
    one.options.device.shares_from = 100;
    one.options.device.processors = 8 / ranks;
    for (const int32_t told_rows : {cuda::kFewRows, 16}) {
      one.options.device.told_rows = told_rows;
      EXPECT_TRUE(same_bits(expected, run_greedy(*make_runner(model, one), prompt, 11, 3)))
          << ranks << ", " << told_rows;
    }
    for (const Options& schedule : schedules()) {
      const auto world = std::make_shared<World>(schedule);
      GpuRanks gpus(model,
                    {.world = world,
                     .processors = std::vector<int>(static_cast<std::size_t>(ranks), ranks == 2 ? 1 : 2),
                     .way = Way::kGpu,
                     .first_count = ~uint64_t{0} - 5,
                     .told_rows = ranks == 2 ? cuda::kFewRows : 16,
                     .part_rows = 16,
                     .shares_from = 100});
      EXPECT_TRUE(same_bits(expected, run_greedy(gpus, prompt, 11, 3))) << ranks << " ranks";
      EXPECT_FALSE(world->failure());
      if (ranks > 2 || !std::getenv("ARK_FULL")) break;
    }
  }
}

// The test of the test: a raise before the flush would be seen.
TEST(GpuPerRankByANic, WithoutTheFlushTheBytesDiffer) {
  if (std::getenv("ARK_GPU")) GTEST_SKIP() << "needs memory that the host maps";
  const auto prompt = random_tokens(9, 3);
  const Rows expected =
      run_greedy(*make_runner(gpt2_or_llama(false), one_launch(2, Link::kDirect)), prompt, 5, 1);
  GpuRanks ranks(
      gpt2_or_llama(false),
      {.world = std::make_shared<World>(), .processors = {2, 2}, .way = Way::kNic, .flushes = false});
  EXPECT_FALSE(same_bits(expected, run_greedy(ranks, prompt, 5, 1)));
  EXPECT_GT(ranks.nic(1).flushed, 0);
}

// A wire that loses, delays and reorders: outboxes may be read long after they were written.
TEST(GpuPerRankOverABadWire, LossAndDelayChangeNothing) {
  const auto prompt = random_tokens(6, 4);
  const Rows expected =
      run_greedy(*make_runner(gpt2_or_llama(true), one_launch(2, Link::kDirect)), prompt, 4, 4);
  GpusOptions o{std::make_shared<World>(schedules()[1]), {2, 2}, Way::kPosted};
  o.faults = {.seed = 5, .drop = 0.02, .refuse = 0.1, .delay_polls = 20, .reorder = true};
  GpuRanks ranks(gpt2_or_llama(true), o);
  EXPECT_TRUE(same_bits(expected, run_greedy(ranks, prompt, 4, 4)));
}

TEST(GpuPerRankOverABadWire, ACutWireIsNamed) {
  GpusOptions o{std::make_shared<World>(), {2, 2}, Way::kPosted};
  o.faults = dma::FaultPlan{.cut_after = 3};
  GpuRanks ranks(gpt2_or_llama(true), o);
  try {
    run_greedy(ranks, random_tokens(6, 4), 4, 4);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnavailable);
    EXPECT_NE(std::string(error.what()).find("attempts of a transfer: the wire is cut"), std::string::npos)
        << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Links, GpuPerRank, ::testing::Values(Way::kGpu, Way::kHost, Way::kPosted, Way::kNic),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace ark::test
