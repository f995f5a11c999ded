#include "server/ending.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/log_writer.h"

namespace ark {
namespace {

using namespace std::chrono_literals;

constexpr auto kMore = 800ms;       // beyond the timeout, of the second that is promised
constexpr auto kLastWords = 100ms;  // for standard error to take the last line
volatile std::sig_atomic_t asked_count = 0, reload_count = 0;
int wake = -1;  // an eventfd

void on_signal(int number) {
  const int why = errno;
  volatile std::sig_atomic_t& count = number == SIGHUP ? reload_count : asked_count;
  count = count + 1;
  const uint64_t one = 1;
  if (::write(wake, &one, sizeof one) < 0) errno = why;
  errno = why;
}

}  // namespace

int Ending::asked() { return asked_count; }
int Ending::reloads() { return reload_count; }

Ending::Ending(std::chrono::milliseconds timeout) : timeout_(timeout) {
  wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) throw Error(Code::kOs, "eventfd: no descriptor for signals");
  std::thread([this] { watch(); }).detach();
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) ::sigaction(number, &action, nullptr);
  for (const int number : {SIGUSR1, SIGUSR2, SIGALRM}) std::signal(number, SIG_IGN);
}

void Ending::now(const std::string& what, std::function<std::string()> held_up_by) {
  std::lock_guard lock(mutex_);
  what_ = what;
  if (held_up_by) held_up_by_ = std::move(held_up_by);
}

void Ending::begin(std::chrono::milliseconds patience, int code) {
  const uint64_t one = 1;
  std::lock_guard lock(mutex_);
  deadline_ = std::min(deadline_, Clock::now() + patience);
  code_ = code;
  if (::write(wake, &one, sizeof one) < 0) return;  // it is awake already
}

void Ending::watch() {
  for (int seen = 0;;) {
    std::unique_lock lock(mutex_);
    if (asked_count > seen) {
      seen = asked_count;
      if (what_.empty()) {
        log_line(LogLevel::kInfo, "stopped while loading");
        LogWriter::instance().flush(kLastWords);
        ::_exit(0);
      }
      deadline_ = std::min(deadline_, Clock::now() + (seen == 1 ? timeout_ + kMore : kMore));
    }
    if (Clock::now() >= deadline_) force();
    const auto left = deadline_ == Clock::time_point::max()
                          ? 1h
                          : std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now());
    lock.unlock();
    pollfd poller{wake, POLLIN, 0};
    uint64_t count = 0;
    if (::poll(&poller, 1, static_cast<int>(std::min<std::chrono::milliseconds>(left, 1h).count())) > 0 &&
        ::read(wake, &count, sizeof count) < 0)
      continue;
  }
}

void Ending::force() {
  const std::string held_up = held_up_by_ ? held_up_by_() : "";
  LogWriter::instance().put("ark-serve: error: did not end in time: stuck in " + what_ +
                                (held_up.empty() ? "" : ", with " + held_up),
                            true);
  LogWriter::instance().flush(kLastWords);
  ::_exit(code_);
}

}  // namespace ark
