// Each rule of the machine: kernels that keep it run and compute what they should in every schedule; kernels
// that break it are reported, as what they are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <thread>

#include "tests/emulator/emulator.h"
#include "tests/emulator/kernels/small.h"

namespace ark::test {
namespace {

using namespace ark::emulator;

using Kernel = void (*)(const Words&);

struct Memories {
  explicit Memories(const Options& options) : machine(options) {
    words.data = reinterpret_cast<float*>(machine.memory().allocate(4096, 0, "data"));
    words.counter = reinterpret_cast<dev::u32*>(machine.memory().allocate(256, 0, "counter"));
    std::memset(words.counter, 0, 256);
    machine.memory().initialise(words.counter, 256);
    auto* constant =
        reinterpret_cast<float*>(machine.memory().allocate(1024, 0, "constant", Memory::kConstant));
    for (int i = 0; i < 256; i++) constant[i] = static_cast<float>(i);
    machine.memory().initialise(constant, 1024);
    words.constant = constant;
  }

  void launch(Kernel kernel, int blocks, int threads, int variant = 0, int gpu = 0) {
    words.variant = variant;
    LaunchRequest request;
    request.gpu = gpu;
    request.blocks = blocks;
    request.threads = threads;
    request.shared_bytes = 4096;
    request.kernel = [kernel](const void* p) { kernel(*static_cast<const Words*>(p)); };
    request.parameter.resize(sizeof words);
    std::memcpy(request.parameter.data(), &words, sizeof words);
    machine.launch(std::move(request));
  }
  std::optional<Fault> run() {
    try {
      machine.run();
      return std::nullopt;
    } catch (const Failure& failure) {
      report = failure.what();
      return failure.fault();
    }
  }

  Machine machine;
  Words words{};
  std::string report;
};

// All schedules and landings, two seeds each, with the detector.
std::vector<Options> all_options() {
  std::vector<Options> all;
  for (Schedule schedule : {Schedule::kFixed, Schedule::kRandom, Schedule::kPct}) {
    for (Landing landing : {Landing::kAtOnce, Landing::kLate, Landing::kRandom}) {
      for (uint64_t seed = 1; seed <= 2; seed++) {
        all.push_back({.schedule = schedule, .landing = landing, .seed = seed, .detector = true});
      }
    }
  }
  return all;
}

struct Case {
  const char* name;
  Kernel kernel;
  int blocks, threads, variant;
  std::vector<Fault> faults;  // any of them; none: the kernel is right
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// In every schedule and landing: right kernels end, wrong ones are reported as what they are.
class Rules : public testing::TestWithParam<Case> {};

TEST_P(Rules, HoldInEverySchedule) {
  const Case& c = GetParam();
  for (const Options& options : all_options()) {
    Memories m(options);
    m.launch(c.kernel, c.blocks, c.threads, c.variant);
    const auto fault = m.run();
    const std::string what = "schedule " + std::to_string(static_cast<int>(options.schedule)) + ", landing " +
                             std::to_string(static_cast<int>(options.landing)) + "\n" + m.report;
    ASSERT_EQ(fault.has_value(), !c.faults.empty()) << what;
    if (fault) {
      EXPECT_TRUE(std::find(c.faults.begin(), c.faults.end(), *fault) != c.faults.end()) << what;
    }
  }
}

constexpr Fault kRace = Fault::kRace, kBounds = Fault::kBounds, kFresh = Fault::kUninitialised,
                kInFlight = Fault::kInFlight, kMbarrier = Fault::kMbarrier, kDeadlock = Fault::kDeadlock;

std::vector<Case> cases() {
  return {
      {"signal", write_then_signal, 2, 64, 0, {}},
      {"relaxed_signal", write_then_signal, 2, 64, 1, {kRace}},
      {"no_barrier_before_signal", write_then_signal, 2, 64, 2, {kRace, kFresh}},
      {"no_wait", write_then_signal, 2, 64, 3, {kRace, kFresh}},
      {"waits_for_too_much", write_then_signal, 2, 64, 4, {kDeadlock}},
      {"block_scope_release", write_then_signal, 2, 64, 5, {kRace}},
      {"fences", write_then_signal, 2, 64, 6, {}},
      {"no_release_fence", write_then_signal, 2, 64, 7, {kRace}},
      {"barrier", barriers, 1, 64, 0, {}},
      {"no_barrier", barriers, 1, 64, 1, {kRace, kFresh}},
      {"early_exit", barriers, 1, 64, 2, {kDeadlock}},
      {"different_counts", barriers, 1, 64, 3, {Fault::kBarrier, kFresh}},
      {"arrival", barriers, 1, 64, 4, {}},
      {"no_arrival", barriers, 1, 64, 5, {kDeadlock}},
      {"memory", memory_rules, 1, 1, 0, {}},
      {"past_the_end", memory_rules, 1, 1, 1, {kBounds}},
      {"unwritten_shared", memory_rules, 1, 1, 2, {kFresh}},
      {"constant_write", memory_rules, 1, 1, 3, {Fault::kConstant}},
      {"constant_read", memory_rules, 1, 1, 4, {Fault::kConstant, kFresh}},
      {"host_memory", memory_rules, 1, 1, 5, {Fault::kHostMemory}},
      {"unaligned_vector", memory_rules, 1, 1, 6, {Fault::kAlignment}},
      {"past_shared", memory_rules, 1, 1, 8, {kBounds}},
      {"unwritten_global", memory_rules, 1, 1, 9, {kFresh}},
      {"unaligned_double", memory_rules, 1, 1, 10, {Fault::kAlignment}},
      {"trap", memory_rules, 1, 1, 11, {Fault::kTrap}},
      {"collectives", collectives, 1, 64, 0, {}},
      {"half_a_shuffle", collectives, 1, 64, 1, {Fault::kDivergence}},
      {"two_shuffles", collectives, 1, 64, 2, {Fault::kDivergence}},
      {"no_sync_warp", collectives, 1, 64, 3, {kRace, kFresh}},
      {"cp_async", copies, 1, 64, 0, {}},
      {"cp_async_no_barrier", copies, 1, 64, 2, {kRace, kInFlight, kFresh}},
      {"cp_async_early_refill", copies, 1, 64, 4, {kRace, kInFlight}},
      {"cp_async_unaligned", copies, 1, 64, 5, {Fault::kAlignment}},
      {"copy_ahead", mbarriers, 1, 64, 0, {}},
      {"copy_ahead_no_wait", mbarriers, 1, 64, 1, {kRace, kInFlight, kFresh}},
      {"mbarrier_anew", mbarriers, 1, 64, 2, {}},
      {"mbarrier_twice", mbarriers, 1, 64, 3, {kMbarrier}},
      {"mbarrier_ends_in_use", mbarriers, 1, 64, 4, {kRace, kMbarrier}},
      {"mbarrier_ends_in_a_phase", mbarriers, 1, 64, 5, {kMbarrier}},
      {"bulk", bulk, 1, 64, 0, {}},
      {"bulk_no_full", bulk, 1, 64, 1, {kRace, kInFlight, kFresh}},
      {"bulk_no_empty", bulk, 1, 64, 2, {kRace, kInFlight, kMbarrier, kDeadlock}},
      {"bulk_parity", bulk, 1, 64, 3, {kRace, kInFlight, kFresh, kDeadlock, kMbarrier}},
      {"bulk_no_init_barrier", bulk, 1, 64, 4, {kRace, kMbarrier}},
      {"bulk_unaligned", bulk, 1, 64, 5, {Fault::kAlignment}},
      {"bulk_twice_arrived", bulk, 1, 64, 7, {kMbarrier, kDeadlock}},
      {"bulk_of_written", bulk, 1, 64, 8, {Fault::kProxy}},
      {"bulk_of_fenced", bulk, 1, 64, 9, {}},
      {"bulk_store_unfenced", bulk, 1, 64, 10, {Fault::kProxy}},
      {"registers", registers, 1, 384, 0, {}},
      {"too_few_registers", registers, 1, 384, 1, {kDeadlock}},
      {"check_and_act", ordering, 1, 32, 0, {}},
      {"matrices", matrices, 1, 32, 1, {kFresh}},
  };
}
INSTANTIATE_TEST_SUITE_P(Machine, Rules, testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

// What the detector cannot see, since words never race: only late stores and stale loads show it.
TEST(WeakWords, ShowMissingOrderAndNothingElse) {
  for (int variant = 0; variant <= 5; variant++) {
    int wrong[2] = {};
    for (const bool weak : {false, true}) {
      for (uint64_t seed = 1; seed <= (weak ? 100 : 20); seed++) {
        Memories m({.schedule = Schedule::kRandom,
                    .landing = Landing::kRandom,
                    .seed = seed,
                    .detector = true,
                    .weak_words = weak});
        m.launch(messages, 2, 64, variant);
        ASSERT_FALSE(m.run()) << m.report;
        wrong[weak] += m.words.data[0] != 7;
      }
    }
    std::printf("variant %d: %d of 100\n", variant, wrong[1]);
    EXPECT_EQ(wrong[0], 0) << variant;
    const bool is_sound = variant == 0 || variant >= 4;
    EXPECT_EQ(wrong[1] == 0, is_sound) << variant << ": " << wrong[1] << " of 100";
  }
}

// Copies that come at once hide that nobody waits for them; late ones do not.
TEST(Landing, LateCopiesShowAMissingWait) {
  for (int variant : {1, 3}) {
    for (Schedule schedule : {Schedule::kFixed, Schedule::kRandom}) {
      Memories m({.schedule = schedule, .landing = Landing::kLate, .detector = true});
      m.launch(copies, 1, 64, variant);
      const auto fault = m.run();
      ASSERT_TRUE(fault) << variant;
      EXPECT_THAT((std::vector{kRace, kInFlight, Fault::kCopy}), testing::Contains(*fault)) << m.report;
    }
  }
  Memories m({.landing = Landing::kLate, .detector = true});
  m.launch(bulk, 1, 64, 6);  // the phase completes before all bytes are there, or never in step again
  EXPECT_TRUE(m.run());
}

TEST(Report, DeadlockNamesWhoWaitsForWhat) {
  Memories m({});
  m.launch(write_then_signal, 2, 64, 4);
  ASSERT_EQ(m.run(), kDeadlock);
  EXPECT_THAT(m.report,
              testing::HasSubstr("block 1: 1 threads, the first 0: waits for counter+0 (gpu 0): seen 1, "
                                 "needed 2 at"));
  EXPECT_THAT(m.report, testing::HasSubstr("block 1: 63 threads, the first 1: sync at"));
  EXPECT_THAT(m.report, testing::HasSubstr("small_kernel.cc:"));
}

TEST(Report, RaceNamesBothSides) {
  Memories m({.detector = true});
  m.launch(write_then_signal, 2, 64, 1);
  ASSERT_EQ(m.run(), kRace);
  EXPECT_THAT(m.report,
              testing::ContainsRegex("read after write of data\\+[0-9]+ .*block 1, thread [0-9]+ at "
                                     ".*small_kernel.cc:[0-9]+, before by .*block 0, thread [0-9]+ at "
                                     ".*small_kernel.cc:[0-9]+"));
}

TEST(Scope, WordsOfAnotherGpuAndOfTheHostNeedSystemScope) {
  Memories m({});
  m.launch(memory_rules, 1, 1, 7, 1);
  EXPECT_EQ(m.run(), Fault::kScope);
  m.words.counter = reinterpret_cast<dev::u32*>(m.machine.memory().allocate(64, kHost, "host word"));
  m.launch(memory_rules, 1, 1, 7, 0);
  EXPECT_EQ(m.run(), Fault::kScope);
}

// 64 threads of block 1 add while block 0 stands between its load and its store: only some orders lose a
// count.
TEST(Schedules, RandomAndPctFindALostUpdate) {
  auto runs_that_lose = [](Schedule schedule) {
    int lost = 0;
    for (uint64_t seed = 1; seed <= 150; seed++) {
      Memories m({.schedule = schedule, .seed = seed});
      m.launch(ordering, 2, 32);
      EXPECT_FALSE(m.run()) << m.report;
      lost += *m.words.counter == 1;
    }
    return lost;
  };
  EXPECT_EQ(runs_that_lose(Schedule::kFixed), 0);
  EXPECT_GT(runs_that_lose(Schedule::kRandom), 0);
  EXPECT_GT(runs_that_lose(Schedule::kPct), 0);
}

TEST(Schedules, SameSeedSameRun) {
  auto counts = [](uint64_t seed) {
    Memories m({.schedule = Schedule::kRandom, .landing = Landing::kRandom, .seed = seed});
    m.launch(bulk, 3, 64);
    EXPECT_FALSE(m.run());
    return m.machine.counts().switches;
  };
  EXPECT_EQ(counts(5), counts(5));
  EXPECT_NE(counts(5), counts(6));
}

TEST(Host, AnswersWhileTheKernelWaits) {
  Memories m({.detector = true});
  auto* word = reinterpret_cast<dev::u32*>(m.machine.memory().allocate(64, kHost, "host word"));
  m.words.counter = word;
  m.launch(host_words, 1, 64);
  for (dev::u32 turn = 1; turn <= 3; turn++) {
    ASSERT_EQ(m.machine.advance(1 << 20), Machine::Progress::kIdle);
    EXPECT_EQ(word[1], turn - 1);
    std::atomic_ref(word[0]).store(turn);
  }
  EXPECT_EQ(m.machine.advance(1 << 20), Machine::Progress::kDone);
  EXPECT_EQ(word[1], 3u);
}

TEST(Host, AnotherThreadMayAnswer) {
  Memories m({});
  auto* word = reinterpret_cast<dev::u32*>(m.machine.memory().allocate(64, kHost, "host word"));
  m.words.counter = word;
  m.launch(host_words, 1, 64);
  std::thread host([&] {
    for (dev::u32 turn = 1; turn <= 3; turn++) {
      std::atomic_ref(word[0]).store(turn);
      while (std::atomic_ref(word[1]).load() < turn) std::this_thread::yield();
    }
  });
  EXPECT_FALSE(m.run());
  host.join();
}

TEST(Launches, RunTogetherAndAfterEachOther) {
  Memories m({.schedule = Schedule::kRandom, .detector = true});
  for (int round = 0; round < 3; round++) {
    std::memset(m.words.counter, 0, 256);
    m.launch(bulk, 2, 64);
    m.launch(collectives, 1, 64);
    m.launch(barriers, 1, 64, 4, 1);
    EXPECT_EQ(m.run(), kRace);  // they share `data`
    m.launch(collectives, 1, 64);
    EXPECT_FALSE(m.run()) << m.report;  // memory outlives the failure
  }
}

TEST(Collectives, MoveWhatTheyShould) {
  Memories m({});
  m.launch(collectives, 1, 64);
  ASSERT_FALSE(m.run()) << m.report;
  for (int t = 0; t < 64; t++) {
    const int lane = t % 32;
    auto x = [](int l) { return static_cast<float>(l ^ 1); };
    EXPECT_EQ(m.words.data[t], 31 * 16 + 31 * 1000.0f);
    EXPECT_EQ(m.words.data[64 + t], lane < 24 ? x(lane + 8) : x(lane));
    EXPECT_EQ(m.words.data[128 + t], (lane >= 8 ? x(lane - 8) : x(lane)) + x(3));
    EXPECT_EQ(m.words.data[192 + t], 11);
  }
}

TEST(Copies, BringWhatTheyShould) {
  for (Landing landing : {Landing::kAtOnce, Landing::kLate, Landing::kRandom}) {
    Memories m({.schedule = Schedule::kRandom, .landing = landing});
    m.launch(copies, 1, 64);
    ASSERT_FALSE(m.run()) << m.report;
    for (int t = 0; t < 64; t++) {
      const int next = (4 * t + 4) % 256;
      EXPECT_EQ(m.words.data[t], 255.0f - t + next + 0 + (252 - 4 * t));
    }
    m.launch(bulk, 1, 64);
    ASSERT_FALSE(m.run()) << m.report;
    for (int lane = 0; lane < 32; lane++)
      EXPECT_EQ(m.words.data[300 + lane], 3 * (4 * lane + 128 + 4 * lane));
    for (int i = 0; i < 256; i++) EXPECT_EQ(m.words.data[512 + i], i);
    m.launch(mbarriers, 1, 64);
    ASSERT_FALSE(m.run()) << m.report;
    for (int i = 0; i < 192; i++) EXPECT_EQ(m.words.data[i], 2 * i);
  }
}

}  // namespace
}  // namespace ark::test
