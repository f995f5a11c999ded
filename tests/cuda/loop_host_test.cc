// The host's half of a loop against a kernel that is a host function: it answers the mailbox as a loop must.
#include "engine/cuda/loop_host.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/cuda/fake/host_gpu.h"

namespace ark::cuda {
namespace {

using std::chrono::milliseconds;
using test::HostGpu;

constexpr StepCapacity kCapacity{
    .tokens = 8, .sequences = 4, .rows = 4, .bias = 4, .vocabulary = 10, .page_deltas = 8, .page_copies = 4};

// What the fake loop is to do besides answering: row r of step n gets token n * 10 + r + vals[rank 0][0].
struct Script {
  uint64_t lease = 0;    // 0: unbounded
  uint64_t hang_at = 0;  // never answers this step, until it is aborted
  uint64_t die_at = 0;
  bool report = false;   // a hang is reported with a fault record, as the loop's own deadline does
  bool is_deaf = false;  // nor does it raise its beat
  milliseconds linger{2};
  bool serves_two = false;
  bool leaves_first = false;  // the first launch goes without a look at the mailbox, as if its linger ended
  std::atomic<int> entered{0};
  std::atomic<bool> may_start{true};
};

// The fake loop's parameter.
struct Parameter {
  LaunchTerms terms;
  uint64_t mailbox = 0, control = 0;
};

std::function<std::vector<std::byte>(const LaunchTerms&)> parameter_of(
    const std::unique_ptr<LoopHost>& host) {
  return [&host](const LaunchTerms& terms) {
    const Parameter p{terms, host->mailbox_address(), host->control_address()};
    const auto bytes = std::as_bytes(std::span(&p, 1));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
}

uint32_t read(ControlWord& word) { return std::atomic_ref(word.value).load(); }

void fake_loop(Script& script, const Parameter& parameter, int ranks) {
  const LaunchTerms& terms = parameter.terms;
  if (!script.serves_two) {
    EXPECT_EQ(terms.first_turn, terms.first_step + static_cast<uint64_t>(script.entered));
  }
  ++script.entered;
  while (!script.may_start) std::this_thread::yield();
  if (script.leaves_first && script.entered == 1) return;
  const MailboxLayout layout = MailboxLayout::of(kCapacity, ranks, 2);
  Mailbox mailbox(kCapacity, ranks, layout, reinterpret_cast<std::byte*>(parameter.mailbox));
  auto& control = *reinterpret_cast<LoopControl*>(parameter.control);
  auto* records = reinterpret_cast<FaultRecord*>(&control + 1);
  for (uint64_t step = terms.first_step, leased = 0;; ++step, ++leased) {
    if (script.lease && leased == script.lease) return;
    const auto idle = std::chrono::steady_clock::now() + script.linger;
    while (mailbox.posted_counter().load() < step) {
      if (read(control.park) || read(control.abort) || std::chrono::steady_clock::now() > idle) return;
      std::this_thread::yield();
    }
    if (script.die_at == step) throw Error(Code::kUnavailable, "");
    if (script.hang_at == step) {
      if (script.report) {
        records[3] = {0, static_cast<unsigned>(LoopWait::kPhase), 1, 2, 5, 7, step, 40, 42};
        std::atomic_ref(records[3].kind).store(static_cast<unsigned>(dma::FaultKind::kDeadline));
        std::atomic_ref(control.faults.value).fetch_add(1);
        return;
      }
      while (!read(control.abort)) std::this_thread::yield();
      return;
    }
    if (!script.is_deaf) std::atomic_ref(control.beat.value).fetch_add(1);
    const StepRecord& record = mailbox.record(step);
    const auto* vals =
        reinterpret_cast<const int64_t*>(reinterpret_cast<const std::byte*>(&record) + layout.vals);
    for (uint32_t r = 0; r < record.extent(StepArray::kRows).count; ++r)
      mailbox.result_rows(step)[r].token =
          static_cast<int32_t>(step * 10 + r + static_cast<uint64_t>(vals[0]));
    for (int rank = 0; rank < ranks; ++rank) mailbox.done_counter(rank).raise();
    if (read(control.park)) return;
  }
}

struct Driven {
  explicit Driven(int ranks = 2, milliseconds deadline = std::chrono::seconds(20), uint64_t lease = 0)
      : gpu([this, ranks](const LaunchShape&, std::span<const std::byte> parameter) {
          Parameter own;
          std::memcpy(&own, parameter.data(), sizeof own);
          fake_loop(script, own, ranks);
        }),
        kernel(gpu.load({})) {
    LoopSetup setup;
    setup.kernel = kernel.get();
    setup.shape = {4, 288, 0};
    setup.ranks = ranks;
    setup.lease = lease;
    setup.parameter = parameter_of(host);
    setup.phase_name = [](int rank, int phase) { return "mlp" + std::to_string(rank * 100 + phase); };
    setup.step_deadline = deadline;
    host = std::make_unique<LoopHost>(gpu, kCapacity, 2, std::move(setup));
  }

  uint64_t post(int rows, int64_t value) {
    StepDescriptor step;
    step.tokens = {1};
    step.sequences = {{0, 0, 1, 0}};
    step.rows.resize(static_cast<std::size_t>(rows));
    write_record(step, host->mailbox().posted() + 1, kCapacity, host->free_slot());
    host->free_vals(0)[0] = value;
    return host->post();
  }
  StepResult wait() {
    for (int i = 0; i < 1000; ++i)
      if (auto result = host->poll(milliseconds(10))) return *std::move(result);
    throw std::runtime_error("no result");
  }
  std::string failure() {
    return failure([this] { return host->poll(milliseconds(10)); });
  }
  template <class Poll>
  std::string failure(const Poll& poll) {
    try {
      for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
           std::chrono::steady_clock::now() < end;)
        poll();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kUnavailable);
      return error.what();
    }
    return "nothing was thrown";
  }
  // As whoever has something else to look at too: for less than the time between two looks of the watchdog.
  std::optional<StepResult> glance() {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    return host->poll(std::chrono::microseconds(0));
  }

  Script script;
  HostGpu gpu;
  std::unique_ptr<Kernel> kernel;
  std::unique_ptr<LoopHost> host;
};

TEST(LoopHost, AnswersStepsInOrder) {
  Driven s;
  for (int i = 0; i < 100; ++i) {
    s.post(2, i);
    s.post(1, 1000);
    const StepResult a = s.wait(), b = s.wait();
    const auto n = static_cast<uint64_t>(2 * i + 1);
    EXPECT_EQ(a.step, n);
    ASSERT_EQ(a.rows.size(), 2u);
    EXPECT_EQ(a.rows[1].token, static_cast<int32_t>(n * 10 + 1) + i);
    EXPECT_EQ(b.step, n + 1);
    EXPECT_EQ(b.rows[0].token, static_cast<int32_t>((n + 1) * 10) + 1000);
  }
  EXPECT_EQ(s.host->poll(milliseconds(1)), std::nullopt);
}

TEST(LoopHost, ALeaseOfOneLaunchesOnceAStep) {
  Driven s;
  s.script.lease = 1;
  for (int i = 0; i < 20; ++i) {
    s.post(1, 0);
    if (i % 2) s.post(1, 0);  // the second has no launch of its own yet when the first ends
    s.wait();
    if (i % 2) s.wait();
  }
  EXPECT_EQ(s.script.entered, 30);
  EXPECT_EQ(s.host->launches(), 30);
}

// Else what a lease costs would be the host's interval between two looks.
TEST(LoopHost, ALeaseThatIsUsedUpIsRenewedAtTheFirstLook) {
  Driven s(2, std::chrono::seconds(20), 1);
  s.script.lease = 1;
  s.script.may_start = false;
  s.post(1, 0);
  s.post(1, 0);
  s.script.may_start = true;
  while (s.host->mailbox().done_count(0) == 0 || s.host->mailbox().done_count(1) == 0)
    std::this_thread::yield();
  ASSERT_TRUE(s.host->poll(std::chrono::microseconds(0)));
  for (int i = 0; i < 5000 && !s.host->is_parked(); ++i) std::this_thread::sleep_for(milliseconds(2));
  EXPECT_EQ(s.host->launches(), 1);
  s.host->poll(std::chrono::microseconds(0));
  EXPECT_EQ(s.host->launches(), 2);
  s.wait();
}

TEST(LoopHost, ParksWhenIdleAndGoesOn) {
  Driven s;
  s.post(1, 0);
  s.wait();
  for (int i = 0; i < 5000 && !s.host->is_parked(); ++i) std::this_thread::sleep_for(milliseconds(2));
  EXPECT_TRUE(s.host->is_parked());
  s.post(1, 5);
  EXPECT_EQ(s.wait().rows[0].token, 25);
  EXPECT_EQ(s.host->launches(), 2);
}

TEST(LoopHost, TheGateParksTheLoopAndWorkGoesOn) {
  Driven s;
  s.script.linger = std::chrono::hours(1);
  s.post(1, 0);
  s.wait();
  EXPECT_FALSE(s.host->is_parked());
  for (int i = 0; i < 50; ++i) {
    s.post(1, 0);
    std::jthread other([&] {
      const Gate::Work work = s.gpu.gate().enter();
      EXPECT_TRUE(s.host->is_parked());
    });
    EXPECT_EQ(s.wait().step, static_cast<uint64_t>(i) + 2);
  }
}

TEST(LoopHost, TwoLoopsShareAGpu) {
  Driven a;
  a.script.serves_two = true;
  a.script.linger = std::chrono::hours(1);
  LoopSetup setup;
  setup.kernel = a.kernel.get();
  setup.shape = {4, 288, 0};
  setup.ranks = 2;
  std::unique_ptr<LoopHost> b;
  setup.parameter = parameter_of(b);
  b = std::make_unique<LoopHost>(a.gpu, kCapacity, 2, std::move(setup));
  for (uint64_t i = 1; i <= 20; ++i) {
    a.post(1, 0);
    StepDescriptor step;
    step.tokens = {1};
    step.sequences = {{0, 0, 1, 0}};
    step.rows.resize(1);
    write_record(step, i, kCapacity, b->free_slot());
    b->free_vals(0)[0] = 3;
    b->post();
    EXPECT_EQ(a.wait().step, i);
    std::optional<StepResult> result;
    while (!result) result = b->poll(milliseconds(10));
    EXPECT_EQ(result->rows[0].token, static_cast<int32_t>(i * 10 + 3));
  }
}

TEST(LoopHost, ALoopsOwnFaultNamesThePlace) {
  Driven s;
  s.script.hang_at = 2;
  s.script.report = true;
  s.post(1, 0);
  s.wait();
  s.post(1, 0);
  EXPECT_EQ(
      s.failure(),
      "rank 1, processor 2, phase 5, trip 7: earlier phase: deadline passed (saw 40, needed 42) in mlp105, "
      "step 2");
}

TEST(LoopHost, TheWatchdogEndsALoopThatHangs) {
  Driven s(2, milliseconds(100));
  s.script.hang_at = 1;
  s.post(1, 0);
  const std::string text = s.failure();
  EXPECT_NE(text.find("no progress within its deadline"), std::string::npos) << text;
  EXPECT_TRUE(s.host->is_parked());
}

TEST(LoopHost, ADeadKernelIsAFault) {
  Driven s;
  s.script.die_at = 1;
  s.post(1, 0);
  EXPECT_EQ(s.failure(), "the loop kernel died: as the test wants");
  EXPECT_THROW(s.post(1, 0), Error);
}

TEST(LoopHost, ShortPollsRelaunchALoopThatLeftAsAStepWasPosted) {
  Driven s;
  s.script.leaves_first = true;
  s.post(1, 0);
  std::optional<StepResult> result;
  for (int i = 0; i < 50'000 && !result; ++i) result = s.glance();
  ASSERT_TRUE(result);
  EXPECT_EQ(s.host->launches(), 2);
}

TEST(LoopHost, ShortPollsSeeFaultsDeathsAndDeadlines) {
  {
    Driven s;
    s.script.die_at = 1;
    s.post(1, 0);
    EXPECT_EQ(s.failure([&] { return s.glance(); }), "the loop kernel died: as the test wants");
  }
  {
    Driven s;
    s.script.hang_at = 1;
    s.script.report = true;
    s.post(1, 0);
    EXPECT_NE(s.failure([&] { return s.glance(); }).find("deadline passed (saw 40, needed 42)"),
              std::string::npos);
  }
  Driven s(2, milliseconds(100));
  s.script.hang_at = 1;
  s.post(1, 0);
  EXPECT_NE(s.failure([&] { return s.glance(); }).find("no progress within its deadline"), std::string::npos);
}

TEST(LoopHost, AbortEndsWithItsReason) {
  Driven s(2, std::chrono::hours(1));
  s.script.hang_at = 1;
  s.post(1, 0);
  std::jthread other([&] {
    std::this_thread::sleep_for(milliseconds(30));
    s.host->abort("the test says so");
  });
  EXPECT_EQ(s.failure(), "the test says so");
}

TEST(LoopHost, ALoopThatCannotBeResidentIsRefused) {
  HostGpu gpu([](const LaunchShape&, std::span<const std::byte>) {}, 3);
  const auto kernel = gpu.load({});
  LoopSetup setup;
  setup.kernel = kernel.get();
  setup.shape = {4, 288, 100};
  EXPECT_THROW(LoopHost(gpu, kCapacity, 0, std::move(setup)), Error);
}

}  // namespace
}  // namespace ark::cuda
