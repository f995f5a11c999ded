#include "server/supervise/supervised_runner.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "base/log.h"
#include "dma/launch.h"
#include "server/supervise/messages.h"

namespace ark::supervise {
namespace {

using namespace std::chrono_literals;

constexpr auto kSilence = 2500ms;    // after which the process counts as dead; it speaks every 250 ms
constexpr auto kHalted = 1500ms;     // the same for one that a signal has stopped, as no load does
constexpr auto kStarved = 30'000ms;  // the same for one that would speak but gets no processor
constexpr auto kLook = 50ms;         // between looks
constexpr auto kMessageTime = 2s;    // for what has begun to come
constexpr auto kRetryDelay = 100ms;  // after a load that failed; doubled each time
constexpr int kMostDoublings = 5;

short ready_for(int descriptor, short events, std::chrono::milliseconds timeout) {
  pollfd one = {descriptor, events, 0};
  return ::poll(&one, 1, static_cast<int>(timeout.count())) > 0 ? one.revents : short{0};
}

// How long a process may be silent, as one of its threads is. One that waits for a lock is neither of the first two.
std::chrono::milliseconds patience_with(pid_t process, uint32_t thread) {
  std::ifstream in("/proc/" + std::to_string(process) + "/task/" + std::to_string(thread) + "/stat");
  const std::string stat(std::istreambuf_iterator<char>(in), {});
  const std::size_t name_end = stat.rfind(')');
  const char state = name_end != stat.npos && name_end + 2 < stat.size() ? stat[name_end + 2] : ' ';
  return state == 'R' ? kStarved : state == 'T' ? kHalted : kSilence;  // waits for a processor; was stopped
}

double seconds_since(std::chrono::steady_clock::time_point then) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

}  // namespace

SupervisedRunner::Starter::Starter(Start start)
    : start_(std::move(start)), thread_([this](const std::stop_token& stop) {
        std::unique_lock lock(mutex_);
        while (changed_.wait(lock, stop, [this] { return task_.has_value(); }))
          std::exchange(task_, {})->operator()();
      }) {}

pid_t SupervisedRunner::Starter::start(int descriptor) {
  std::packaged_task<pid_t()> task([this, descriptor] { return start_(descriptor); });
  std::future<pid_t> pid = task.get_future();
  {
    const std::lock_guard lock(mutex_);
    task_ = std::move(task);
  }
  changed_.notify_one();
  return pid.get();
}

SupervisedRunner::SupervisedRunner(Start start, int32_t config_length,
                                   const std::function<void(std::string_view)>& on_stage)
    : starter_(std::move(start)), config_length_(config_length) {
  ::signal(SIGCHLD, SIG_DFL);          // processes stay until they are reaped
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // the ranks of a dead process are awaited before the next begins
  try {
    while (!ready(kLook)) on_stage(stage_);
  } catch (const Error& error) {
    end(2s);
    throw Error(error.code(), error.what());
  }
}

SupervisedRunner::~SupervisedRunner() {
  socket_ = {};  // the process ends at the end of its messages
  if (state_ == State::kServing) end(1s);
  if (pid_ > 0) ::kill(pid_, SIGKILL);
  end(2s);
}

uint64_t SupervisedRunner::post(const StepDescriptor& step) {
  ARK_CHECK(state_ == State::kServing, "a step for a process that is not ready");
  ARK_CHECK(static_cast<int32_t>(rows_.size() + results_.size()) < limits_.depth,
            "more steps in flight than the runner's depth");
  rows_.push_back(step.rows.size());
  ++posted_;
  send(dma::FrameKind::kStep, to_blob(step));
  return posted_;
}

void SupervisedRunner::give_up(int32_t slot) {
  if (state_ == State::kServing) send(dma::FrameKind::kGiveUp, "", slot);
}

std::optional<StepResult> SupervisedRunner::poll(std::chrono::microseconds timeout) {
  check_aborted();
  const auto until = dma::Deadline::after(timeout);
  while (results_.empty() && !rows_.empty() && !until.passed()) listen(until);
  if (results_.empty()) return std::nullopt;
  StepResult result = std::move(results_.front());
  results_.pop_front();
  return result;
}

bool SupervisedRunner::ready(std::chrono::microseconds timeout) {
  const auto until = dma::Deadline::after(timeout);
  for (;;) {
    check_aborted();
    if (state_ == State::kEnding && all_gone() && Clock::now() >= not_before_) begin();
    if (state_ == State::kEnding)
      std::this_thread::sleep_for(1ms);
    else
      listen(state_ == State::kServing ? dma::Deadline::after(0ms) : until);
    if (state_ == State::kServing) return true;
    if (until.passed()) return false;
  }
}

void SupervisedRunner::abort(const std::string& why) {
  std::lock_guard lock(mutex_);
  aborted_ = why;
}

void SupervisedRunner::check_aborted() {
  std::lock_guard lock(mutex_);
  if (!aborted_.empty()) throw Error(Code::kUnavailable, aborted_);
}

void SupervisedRunner::begin() {
  state_ = State::kLoading;
  begun_ = listened_ = Clock::now();
  quiet_ = {};
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    lose(Code::kOs, std::string("socketpair: ") + std::strerror(errno));
  socket_ = dma::Socket(ends[0]);
  const dma::Socket theirs(ends[1]);
  try {
    pid_ = starter_.start(theirs.descriptor());
    speaker_ = static_cast<uint32_t>(pid_);  // until it has said another
  } catch (const Error& error) {
    lose(error.code(), error.what());
  }
  send(dma::FrameKind::kBlob, to_blob(ModelTerms{config_length_, limits_.pages, machine_ranks_}));
}

// What does not go now goes later: the process may be in the middle of a step, which takes as long as it takes.
void SupervisedRunner::send(dma::FrameKind kind, const std::string& payload, int32_t slot) {
  outgoing_ += dma::frame_bytes(kind, slot, 0, payload);
  flush();
}

void SupervisedRunner::flush() {
  while (!outgoing_.empty()) {
    const ssize_t sent =
        ::send(socket_.descriptor(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) return;  // a closed connection is noticed by who listens
    outgoing_.erase(0, static_cast<std::size_t>(sent));
  }
}

// Takes what is there, or waits for it, a look at most.
void SupervisedRunner::listen(dma::Deadline until) {
  const auto left = std::chrono::milliseconds((until.left_ns() + 999'999) / 1'000'000);
  const auto events = static_cast<short>(outgoing_.empty() ? POLLIN : POLLIN | POLLOUT);
  const short ready =
      ready_for(socket_.descriptor(), events, std::clamp<std::chrono::milliseconds>(left, 0ms, kLook));
  if (ready & POLLOUT) flush();
  bool heard = (ready & ~POLLOUT) != 0;
  const auto now = Clock::now();
  quiet_ += std::min<Clock::duration>(now - std::exchange(listened_, now), 2 * kLook);
  if (!heard && quiet_ > kHalted) {
    const std::chrono::milliseconds patience = patience_with(pid_, speaker_);
    if (quiet_ > patience)
      lose(Code::kUnavailable,
           "the model's process has been silent for " + std::to_string(patience.count()) + " ms");
  }
  for (; heard; heard = ready_for(socket_.descriptor(), POLLIN, 0ms) != 0) {
    quiet_ = {};
    dma::Frame frame;
    const dma::Received got =
        dma::receive_frame(socket_, frame, dma::kMaxPayload, dma::Deadline::after(kMessageTime));
    if (got == dma::Received::kFrame) {
      take(frame);
      continue;
    }
    std::string end = "has closed its connection";
    if (got == dma::Received::kClosed)
      for (const auto patience = dma::Deadline::after(500ms); !patience.passed();
           std::this_thread::sleep_for(1ms))
        if (const std::string how = dma::end_of(pid_); !how.empty()) {
          end = how;
          break;
        }
    if (got == dma::Received::kMalformed || got == dma::Received::kDamaged) end = "sends what is no message";
    if (got == dma::Received::kLate) end = "has stopped in the middle of a message";
    lose(Code::kUnavailable,
         "the model's process " + end + (state_ == State::kLoading ? " as it loaded" : ""));
  }
}

void SupervisedRunner::take(const dma::Frame& frame) {
  switch (frame.header.kind) {
    case dma::FrameKind::kAlive:
      stage_ = frame.payload;
      speaker_ = frame.header.rank;
      return;
    case dma::FrameKind::kRefused:
      lose(static_cast<Code>(std::min(frame.header.rank, static_cast<uint32_t>(Code::kOs))), frame.payload);
    case dma::FrameKind::kBlob:
      if (state_ == State::kLoading) return take_facts(frame.payload);
      break;
    case dma::FrameKind::kResult:
      if (state_ == State::kServing && !rows_.empty()) return take_result(frame.payload);
      break;
    default:
      break;
  }
  lose(Code::kUnavailable, "the model's process sends a message out of turn");
}

void SupervisedRunner::take_facts(const std::string& payload) {
  if (facts_.empty()) {
    facts_ = payload;
    const ModelFacts facts = facts_of(payload);
    limits_ = facts.limits;
    machine_ranks_ = facts.machine_ranks;
  } else if (payload != facts_) {
    throw Error(
        Code::kUnavailable,
        "the model's files are no longer those that were loaded at first, so that what runs cannot go on; "
        "start again");
  } else {
    log_line(LogLevel::kInfo, "the model's process serves again", {{"seconds", seconds_since(begun_)}});
  }
  state_ = State::kServing;
  failed_loads_ = 0;
}

// A process whose memory is spoilt may answer anything: what would harm us is its death.
void SupervisedRunner::take_result(const std::string& payload) {
  StepResult result;
  const std::size_t rows = rows_.front();
  const auto is_beyond = [&](int32_t token) {
    return token < -1 || token >= limits_.vocabulary;
  };  // -1: none
  bool fits = true;
  try {
    result = result_of(payload);
    fits = result.rows.size() == rows;
    for (const RowResult& row : result.rows) {
      fits = fits && !is_beyond(row.token);
      for (const auto& entry : row.top) fits = fits && !is_beyond(entry.first);
    }
  } catch (const Error&) {
    fits = false;
  }
  if (!fits) lose(Code::kUnavailable, "the model's process gives a result that does not fit its step");
  result.step = posted_ - rows_.size() + 1;
  rows_.pop_front();
  results_.push_back(std::move(result));
}

void SupervisedRunner::lose(Code code, const std::string& why) {
  if (pid_ > 0) ::kill(pid_, SIGKILL);  // its ranks end with it
  socket_ = {};
  outgoing_.clear();
  rows_.clear();
  results_.clear();
  if (state_ == State::kLoading)
    not_before_ = Clock::now() + kRetryDelay * (1 << std::min(failed_loads_++, kMostDoublings));
  state_ = State::kEnding;
  throw RunnerLost(code, why);
}

// Reaps what has ended. Whether nothing is left, neither the process nor what it started.
bool SupervisedRunner::all_gone() {
  pid_t ended;
  while ((ended = ::waitpid(-1, nullptr, WNOHANG)) > 0)
    if (ended == pid_) pid_ = -1;
  return ended < 0;
}

void SupervisedRunner::end(std::chrono::milliseconds patience) {
  for (const auto until = dma::Deadline::after(patience); !until.passed(); std::this_thread::sleep_for(1ms))
    if (all_gone()) return;
}

}  // namespace ark::supervise
