#include "engine/cuda/loop_host.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/error.h"
#include "dma/fault.h"

namespace ark::cuda {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// The loop cannot wake the host: it looks without a pause for so long, then naps. A nap takes twice its time
// (the kernel's timer slack), so that the steps of most models must end within the spin; an emulated GPU
// needs the CPU itself, and steps of it take milliseconds.
constexpr microseconds kSpin{2000}, kNap{50}, kNapEmulated{300};
// Between two looks at whether the loop still runs and moves, which cost a call of the driver; over calls of
// poll() too, whose time-outs may be shorter.
constexpr microseconds kWatchEvery{500};

uint32_t load(const ControlWord& word) {
  // Acquire: pairs with the loop's release of the word at system scope.
  return std::atomic_ref(const_cast<unsigned&>(word.value)).load(std::memory_order_acquire);
}
void store(ControlWord& word, uint32_t value) {
  std::atomic_ref(word.value).store(value, std::memory_order_release);
}

const char* text_of(unsigned what) {
  switch (static_cast<LoopWait>(what)) {
    case LoopWait::kStep:
      return "next step";
    case LoopWait::kRankLeader:
      return "the rank's leader";
    case LoopWait::kPhase:
      return "earlier phase";
    case LoopWait::kArrival:
      return "message";
    case LoopWait::kCredit:
      return "credit";
    case LoopWait::kWeights:
      return "streamed weights";
    case LoopWait::kEnd:
      return "all processors";
    case LoopWait::kBarrier:
      return "barrier";
    case LoopWait::kRequests:
      return "room in the request ring";
  }
  return "";
}

}  // namespace

LoopHost::LoopHost(Gpu& gpu, const StepCapacity& capacity, uint64_t vals_each, LoopSetup setup)
    : gpu_(gpu), setup_(std::move(setup)), progress_at_(Clock::now()) {
  refuse_unless_resident(*setup_.kernel, setup_.shape);
  const MailboxLayout layout = MailboxLayout::of(capacity, setup_.ranks, vals_each);
  mailbox_memory_ = gpu_.allocate_mapped(layout.bytes, "the mailbox");
  try {
    control_ = gpu_.allocate_mapped(
        sizeof(LoopControl) + sizeof(FaultRecord) * static_cast<uint64_t>(setup_.shape.blocks),
        "control words");
    mailbox_ = std::make_unique<Mailbox>(capacity, setup_.ranks, layout, mailbox_memory_.host);
  } catch (...) {
    release_memory();
    throw;
  }
}

LoopHost::~LoopHost() {
  // Between steps the gate's request to park is enough; steps in flight are lost.
  if (completed() != mailbox_->posted()) store(control().abort, 1);
  Gate::Work work = gpu_.gate().enter();
  work.ended(*this);
  launch_.reset();
  release_memory();
}

void LoopHost::release_memory() noexcept {
  if (control_.host) gpu_.release(control_);
  gpu_.release(mailbox_memory_);
}

int64_t* LoopHost::free_vals(int rank) {
  const MailboxLayout& layout = mailbox_->layout();
  return reinterpret_cast<int64_t*>(free_slot().data() + layout.vals) +
         static_cast<uint64_t>(rank) * layout.vals_each;
}

uint64_t LoopHost::post() {
  throw_if_failed();
  if (polled_ == mailbox_->posted()) progress_at_ = Clock::now();
  mailbox_->publish();
  launch_if_needed();
  return mailbox_->posted();
}

std::optional<StepResult> LoopHost::poll(microseconds timeout) {
  throw_if_failed();
  if (polled_ == mailbox_->posted()) return std::nullopt;
  const Clock::time_point start = Clock::now();
  const bool is_emulated = gpu_.info().is_emulated;
  const microseconds spin = is_emulated ? microseconds(0) : kSpin, nap = is_emulated ? kNapEmulated : kNap;
  for (;;) {
    if (mailbox_->is_done(polled_ + 1)) return mailbox_->read_result(++polled_);
    const Clock::time_point now = Clock::now();
    if (now - watched_at_ >= kWatchEvery || needs_launch()) {
      watched_at_ = now;
      watch();
    }
    if (now - start >= timeout) return std::nullopt;
    if (now - start >= spin) std::this_thread::sleep_for(nap);
  }
}

// ---- launches

// Its lease is used up, or it was asked to park: launched again as soon as it has left.
bool LoopHost::needs_launch() {
  return load(control().park) != 0 || (setup_.lease != 0 && polled_ + 1 >= launched_step_ + setup_.lease);
}

void LoopHost::launch_if_needed() {
  if (is_running()) return;
  if (launch_) launch_->is_running();             // throws if it died
  if (completed() == mailbox_->posted()) return;  // it has left behind the last step
  Gate::Work work = gpu_.gate().enter();
  work.ended(*this);
  store(control().park, 0);
  const uint64_t next = completed() + 1;
  const std::vector<std::byte> parameter = setup_.parameter({next, next + static_cast<uint64_t>(launches_)});
  auto launch = setup_.kernel->launch(setup_.shape, parameter);
  const std::lock_guard lock(mutex_);
  launch_ = std::move(launch);
  ++launches_;
  launched_step_ = next;
  work.started(*this);
}

void LoopHost::request_park() noexcept { store(control().park, 1); }

// Parking takes at most the rest of a step, whose waits have a deadline; a loop beyond it is aborted.
bool LoopHost::await_end() noexcept {
  const Clock::time_point end = Clock::now() + setup_.step_deadline + setup_.step_deadline / 2;
  while (is_running()) {
    if (load(control().abort) != 0 || Clock::now() > end) {
      store(control().abort, 1);
      end_launch();
      return !is_running();
    }
    std::this_thread::sleep_for(microseconds(20));
  }
  return true;
}

bool LoopHost::is_running() noexcept {
  try {
    return launch_ && launch_->is_running();
  } catch (const Error&) {
    return false;  // it died; launch_if_needed() and watch() say so
  }
}

bool LoopHost::is_parked() const {
  const std::lock_guard lock(mutex_);
  return !const_cast<LoopHost*>(this)->is_running();
}

uint64_t LoopHost::completed() const {
  uint64_t least = mailbox_->done_count(0);
  for (int rank = 1; rank < setup_.ranks; ++rank) least = std::min(least, mailbox_->done_count(rank));
  return least;
}

// ---- what goes wrong

void LoopHost::watch() {
  throw_if_failed();
  if (const std::string why = setup_.interrupted ? setup_.interrupted() : ""; !why.empty()) interrupt(why);
  if (load(control().faults) != 0 || load(control().abort) != 0) {
    end_launch();
    fail(faults_text());
    throw_if_failed();
  }
  try {
    if (launch_ && !launch_->is_running()) launch_if_needed();
  } catch (const Error& error) {
    fail(error.what());
    throw_if_failed();
  }
  uint64_t progress = load(control().beat);
  for (int rank = 0; rank < setup_.ranks; ++rank) progress += mailbox_->done_count(rank) << 32;
  if (progress != seen_progress_) {
    seen_progress_ = progress;
    progress_at_ = Clock::now();
  } else if (Clock::now() - progress_at_ > setup_.step_deadline + setup_.step_deadline / 2) {
    store(control().abort, 1);
    end_launch();
    fail("the loop made no progress within its deadline; " + faults_text());
    throw_if_failed();
  }
}

// Of an aborted loop.
void LoopHost::end_launch() noexcept {
  const Clock::time_point end = Clock::now() + setup_.last_words;
  while (is_running()) {
    if (gpu_.gate().is_lost() || Clock::now() > end) return gpu_.gate().lose();
    std::this_thread::sleep_for(kNap);
  }
}

// The first deadline explains the rest: blocks that were aborted only say where they stood.
std::string LoopHost::faults_text() {
  std::string first, others;
  int aborted = 0;
  for (int block = 0; block < setup_.shape.blocks; ++block) {
    const FaultRecord& r = records()[block];
    const auto kind = static_cast<dma::FaultKind>(
        std::atomic_ref(const_cast<unsigned&>(r.kind)).load(std::memory_order_acquire));
    if (kind == dma::FaultKind::kNone) continue;
    dma::Fault fault{kind, {text_of(r.what), r.rank, r.processor, r.phase, r.trip}, r.seen, r.needed};
    std::string text = fault.text();
    if (r.phase >= 0 && setup_.phase_name) text += " in " + escaped(setup_.phase_name(r.rank, r.phase));
    text += ", step " + std::to_string(r.step);
    if (kind == dma::FaultKind::kAborted) {
      if (++aborted <= 3) others += "; " + text;
    } else if (first.empty()) {
      first = text;
    } else {
      others += "; " + text;
    }
  }
  if (aborted > 3) others += "; and " + std::to_string(aborted - 3) + " more blocks were aborted";
  if (first.empty()) first = is_running() ? "the GPU does not answer" : "the loop was aborted";
  return first + others;
}

void LoopHost::fail(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = why.empty() ? "aborted" : why;
}

void LoopHost::abort(const std::string& why) {
  fail(why);
  store(control().abort, 1);
}

void LoopHost::interrupt(const std::string& why) {
  const std::string step = "step " + std::to_string(polled_ + 1);
  if (mailbox_->posted() == 0) return abort(why);  // it has not begun
  if (polled_ == mailbox_->posted()) return abort(why + " (before " + step + ")");
  store(control().abort, 1);
  end_launch();
  fail(why + " (in " + step + ": " + faults_text() + ")");
}

void LoopHost::throw_if_failed() {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw Error(Code::kUnavailable, failure_);
}

}  // namespace ark::cuda
