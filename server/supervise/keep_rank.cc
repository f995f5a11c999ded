#include "server/supervise/keep_rank.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "dma/bootstrap/socket.h"
#include "dma/launch.h"

namespace ark::supervise {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kStopped = 1500ms;    // after which a stopped rank counts as dead
constexpr auto kGlance = 20ms;       // at one that is stopped
constexpr auto kFirstPause = 100ms;  // after one that has met nobody; doubled each time
constexpr int kPausesDoubled = 5;

struct Descriptors {
  int read = -1, write = -1;
  Descriptors() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(Code::kOs, std::string("pipe: ") + std::strerror(errno));
    read = ends[0];
    write = ends[1];
  }
  ~Descriptors() {
    ::close(read);
    close_write();
  }
  void close_write() {
    if (write >= 0) ::close(write);
    write = -1;
  }
};

// Its rank ends with it. A handler, as the first process of a container hears of nothing else.
void end_at_once(int number) { ::_exit(128 + number); }

// How the process ends. One that stays stopped is killed.
siginfo_t await_end(pid_t pid) {
  siginfo_t info = {};
  const auto look = [&](int more) {
    info = {};
    while (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WCONTINUED | more) != 0)
      if (errno != EINTR) throw Error(Code::kOs, std::string("waitid: ") + std::strerror(errno));
    return info.si_pid != 0;
  };
  for (;;) {
    look(WSTOPPED);
    if (info.si_code == CLD_STOPPED) {
      const auto until = Clock::now() + kStopped;
      while (!look(WNOHANG) && Clock::now() < until) std::this_thread::sleep_for(kGlance);
      if (info.si_pid == 0) ::kill(pid, SIGKILL);
    }
    if (info.si_pid != 0 && info.si_code != CLD_CONTINUED && info.si_code != CLD_STOPPED) return info;
  }
}

// Runs the rank once. Whether it has met the others.
bool run_once(const StartRank& start, siginfo_t& end) {
  Descriptors pipe;
  const pid_t pid = start(pipe.write);
  pipe.close_write();
  std::atomic<bool> has_met = false;
  std::jthread listener([&] {
    char byte;
    ssize_t got;
    while ((got = ::read(pipe.read, &byte, 1)) < 0 && errno == EINTR) {
    }
    if (got != 1) return;
    has_met = true;
    ::signal(SIGTERM, SIG_IGN);
  });
  end = await_end(pid);
  listener.join();  // the pipe's other end is closed
  return has_met;
}

}  // namespace

int keep_rank(int rank, const StartRank& start, std::chrono::milliseconds patience) {
  const std::string name = "rank " + std::to_string(rank);
  auto alone_since = Clock::now();
  ::signal(SIGTERM, end_at_once);
  for (int failures = 0;;) {
    siginfo_t end;
    if (run_once(start, end)) {
      alone_since = Clock::now();
      failures = 0;
    }
    ::signal(SIGTERM, end_at_once);
    const bool has_exited = end.si_code == CLD_EXITED;
    const int unavailable = Error(Code::kUnavailable, "").exit_code(),
              system = Error(Code::kOs, "").exit_code();
    if (has_exited && end.si_status != unavailable && end.si_status != system) return end.si_status;
    if (Clock::now() - alone_since >= patience) return unavailable;
    log_line(LogLevel::kWarning, name + "'s process " +
                                     (has_exited ? "ended with status " : "was ended by signal ") +
                                     std::to_string(end.si_status) + "; it begins anew");
    std::this_thread::sleep_for(kFirstPause * (1 << std::min(failures++, kPausesDoubled)));
  }
}

void tell_met() {
  ::fcntl(dma::kHandedDescriptor, F_SETFD, FD_CLOEXEC);
  const char byte = 1;
  while (::write(dma::kHandedDescriptor, &byte, 1) < 0 && errno == EINTR) {
  }
}

}  // namespace ark::supervise
