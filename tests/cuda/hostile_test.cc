// The device executor over drivers that do what they may: calls that wait for running kernels, launches that are late,
// refused, or one at a time; memory that ends at any call. Its promises hold: an Error of one line, no wait without an
// end, and nothing of the driver's is left behind.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "engine/cuda/control.h"
#include "engine/cuda/executor.h"
#include "engine/cuda/image.h"
#include "engine/run/mailbox.h"
#include "tests/cuda/fake/driver.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"

namespace ark::cuda {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Of the kernels below, which know their parameter alone.
RunnerLimits limits;
std::atomic<bool> needs_two;  // no step ends before two kernels run
std::atomic<int> inside;

// Answers the mailbox as a loop must: token = number of the step.
void answer(const void* parameter, int, int) {
  LoopParameters p;
  std::memcpy(&p, parameter, sizeof p);
  const StepCapacity capacity = StepCapacity::of(limits);
  Mailbox mailbox(capacity, p.rank_count, MailboxLayout::of(capacity, p.rank_count, p.vals_each),
                  reinterpret_cast<std::byte*>(p.mailbox));
  auto& control = *reinterpret_cast<LoopControl*>(p.host);
  const auto is_set = [](ControlWord& word) { return std::atomic_ref(word.value).load() != 0; };
  const auto nap = [] { std::this_thread::sleep_for(std::chrono::microseconds(50)); };
  ++inside;
  for (uint64_t step = p.first_step;; ++step, std::atomic_ref(control.beat.value).fetch_add(1)) {
    const auto end = Clock::now() + std::chrono::nanoseconds(p.linger_ns);
    bool ends = false;
    while (!ends && mailbox.posted_counter().load() < step) {
      ends = is_set(control.park) || is_set(control.abort) || Clock::now() > end;
      nap();
    }
    const auto deadline = Clock::now() + std::chrono::nanoseconds(p.deadline_ns);
    for (; !ends && needs_two && inside < 2; nap()) {
      if (Clock::now() > deadline) std::atomic_ref(control.abort.value).store(1);
      ends = is_set(control.abort);
    }
    if (ends) break;
    mailbox.result_rows(step)[0].token = static_cast<int32_t>(step);
    for (int rank = 0; rank < p.rank_count; ++rank) mailbox.done_counter(rank).raise();
    if (is_set(control.park)) break;
  }
  --inside;
}

class HostileDriver : public test::FakeDriver {
 protected:
  void SetUp() override {
    FakeDriver::SetUp();
    if (IsSkipped()) return;
    fake_->kernel = answer;
    fake_->parameter_bytes = sizeof(LoopParameters);
    fake_->waited_in_vain = 0;
    needs_two = false;
    started_ = Clock::now();
    before_ = handles();
  }
  void TearDown() override {
    if (fake_ && !IsSkipped()) {
      EXPECT_EQ(fake_->waited_in_vain, 0) << "a call waited for a kernel that nobody ended";
      EXPECT_EQ(fake_->running, 0);
      EXPECT_EQ(handles(), before_);
    }
    FakeDriver::TearDown();
  }

  using Handles = std::array<uint64_t, 7>;
  Handles handles() const {
    const FakeCuda& f = *fake_;
    const auto number = [](const std::atomic<int>& n) { return static_cast<uint64_t>(n.load()); };
    return {f.used,           number(f.modules), number(f.streams), number(f.events), number(f.contexts),
            number(f.mapped), number(f.graphs)};
  }

  // `linger`: how long a loop waits for work. Beyond the test's time: it leaves when it is asked to, or never.
  static std::unique_ptr<RaggedRunner> runner(std::shared_ptr<Gpu> gpu, milliseconds linger,
                                              bool as_graph = false) {
    test::RunnerSetup setup{.max_tokens = 8, .max_rows = 4, .pages = 8};
    setup.options.gpu = std::move(gpu);
    setup.options.device.linger = linger;
    setup.options.device.as_graph = as_graph;
    setup.options.step_deadline = milliseconds(500);
    static const DecoderModel model = test::gpt2_tokens({.layers = 1});
    auto made = test::make_runner(model, setup);
    limits = made->limits();
    return made;
  }
  static void post(StepRunner& runner) {
    StepDescriptor step;
    test::Sequence sequence{.slot = 0, .tokens = {1}};
    int32_t page = 0;
    test::add_chunk(step, sequence, 1, runner.limits().page_size, page, true, kWantToken);
    runner.post(step);
  }
  static int32_t step(StepRunner& runner) {
    post(runner);
    return test::wait_for(runner).rows.at(0).token;
  }
  static std::string failure_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == Code::kUnavailable || error.code() == Code::kExhausted) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      return error.what();
    }
    return "";
  }

  // Of all tests here: the loop is compiled once.
  static const std::string& code() {
    static const test::ScratchFolder folder;
    static const std::string path = folder.path();
    return path;
  }
  const test::Environment code_{"ARK_CACHE_DIR", code()};
  Handles before_{};
  Clock::time_point started_;
};

constexpr milliseconds kLong = std::chrono::hours(1), kShort{2};

TEST_F(HostileDriver, EachCallMayBeRefusedOnce) {
  int refusals = 0;
  for (const bool as_graph : {false, true}) {
    for (int n = as_graph ? refusals - 3 : 1; n < 500; ++n) {  // graphs differ at the end
      fake_->hostile.refuse_in = n;
      const std::string why = failure_of([&] {
        const auto served = runner(open_gpu(), kShort, as_graph);
        EXPECT_EQ(step(*served), 1);
      });
      ASSERT_EQ(handles(), before_) << "call " << n << " was refused: " << why;
      ASSERT_EQ(fake_->running, 0) << n;
      const bool was_refused = fake_->hostile.refuse_in == 0;
      fake_->hostile = {};
      if (!was_refused) break;
      EXPECT_TRUE(why.find("GPU") != std::string::npos || why.find("CUDA") != std::string::npos)
          << "call " << n << ": " << why;
      ++refusals;
    }
  }
  EXPECT_GT(refusals, 40);
}

TEST_F(HostileDriver, CallsThatWaitForKernelsFindNoneRunning) {
  fake_->hostile.waits = true;
  fake_->hostile.late_ms = 3;
  const std::shared_ptr<Gpu> gpu = open_gpu();
  auto first = runner(gpu, kLong);
  EXPECT_EQ(step(*first), 1);
  const auto second = runner(gpu, kLong);  // while the first one's loop waits for work
  EXPECT_EQ(step(*second), 1);
  EXPECT_EQ(step(*first), 2);
  EXPECT_EQ(step(*second), 2);
  post(*first);
  first.reset();  // with a step in flight
  EXPECT_EQ(step(*second), 3);
  EXPECT_LT(Clock::now() - started_, std::chrono::seconds(20));
}

TEST_F(HostileDriver, ALaunchThatFailsOnceIsNamedAndNothingRunsOn) {
  fake_->hostile.waits = true;
  for (int call = 1; call <= 4; ++call) {
    SCOPED_TRACE(call);
    const auto served = runner(open_gpu(), kShort);
    EXPECT_EQ(step(*served), 1);
    while (!served->is_parked()) std::this_thread::yield();
    fake_->hostile.refuse_in = call;  // occupancy, event, launch, the event's place in the stream
    EXPECT_NE(failure_of([&] { step(*served); }).find("the GPU refuses "), std::string::npos);
    EXPECT_EQ(fake_->hostile.refuse_in, 0);
    EXPECT_EQ(fake_->running, 0) << "a loop that nobody sees";
  }
}

TEST_F(HostileDriver, GridsThatRunOneAtATimeTakeTurns) {
  fake_->hostile.one_grid = true;
  const auto first = runner(open_gpu(), kShort),
             second = runner(open_gpu(), kShort);  // each a gate of its own
  for (int n = 1; n <= 3; ++n) {
    post(*first);
    post(*second);
    EXPECT_EQ(test::wait_for(*second).rows.at(0).token, n);
    EXPECT_EQ(test::wait_for(*first).rows.at(0).token, n);
  }
}

TEST_F(HostileDriver, GridsThatWaitForEachOtherButRunOneAtATimeMissTheirDeadline) {
  fake_->hostile.one_grid = true;
  needs_two = true;
  {
    const auto first = runner(open_gpu(), kShort), second = runner(open_gpu(), kShort);
    post(*first);
    post(*second);
    for (const auto& one : {first.get(), second.get()}) {
      const std::string why = failure_of([&] { test::wait_for(*one); });
      EXPECT_TRUE(why.find("within its deadline") != std::string::npos ||
                  why.find("aborted") != std::string::npos)
          << why;
    }
  }
  EXPECT_LT(Clock::now() - started_, std::chrono::seconds(20));
}

TEST_F(HostileDriver, ASlowStartIsAwaitedAndAFailedOneIsNamed) {
  fake_->hostile.init_ms = 300;
  EXPECT_EQ(open_gpu()->info().name, "Fake GPU");
  fake_->hostile.init_result = 999;
  const std::string text = test::refusal([] { open_gpu(); }, Code::kUnavailable);
  EXPECT_NE(text.find("no CUDA here: CUDA_ERROR"), std::string::npos) << text;
  EXPECT_EQ(Error(Code::kUnavailable, "").exit_code(), 69);
}

}  // namespace
}  // namespace ark::cuda
