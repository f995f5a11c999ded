#include "dma/launch.h"

#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "base/error.h"

namespace ark::dma {
namespace {

constexpr const char* kLauncherVariable = "ARK_LAUNCHER";  // its process id

std::string random_name() {
  std::random_device random;
  std::string name = "@ark-";
  for (int i = 0; i < 4; ++i) name += std::to_string(random()) + (i < 3 ? "-" : "");
  return name;
}

// The caller's environment with the variables of `rank`.
std::vector<std::string> variables_of(const Environment& group, int rank) {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!text.starts_with("ARK_RANK=") && !text.starts_with("ARK_WORLD_SIZE=") &&
        !text.starts_with("ARK_BOOTSTRAP=") && !text.starts_with(std::string(kLauncherVariable) + "=")) {
      variables.emplace_back(text);
    }
  }
  variables.push_back("ARK_RANK=" + std::to_string(rank));
  variables.push_back("ARK_WORLD_SIZE=" + std::to_string(group.size));
  variables.push_back("ARK_BOOTSTRAP=" + group.address);
  variables.push_back(kLauncherVariable + ("=" + std::to_string(getpid())));
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// The program's path, not the /proc link: the new process shows its own name.
std::string own_program() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "/proc/self/exe";
}

}  // namespace

RankProcesses::RankProcesses(int size, const std::vector<std::string>& arguments)
    : environment_{0, size, random_name(), [this] { return lost(); }} {
  std::vector<std::string> command = {own_program()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  for (int rank = 1; rank < size; ++rank) {
    std::vector<std::string> variables = variables_of(environment_, rank);
    pid_t pid = 0;
    const int error = posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, pointers(command).data(),
                                  pointers(variables).data());
    if (error != 0) {
      kill_all();
      throw Error(Code::kOs, "cannot start rank " + std::to_string(rank) + ": " + std::strerror(error));
    }
    pids_.push_back(pid);
  }
}

// Looks without reaping: a process id stays ours until the destructor is done with it.
std::string RankProcesses::lost() const {
  for (std::size_t i = 0; i < pids_.size(); ++i) {
    siginfo_t info = {};
    if (waitid(P_PID, static_cast<id_t>(pids_[i]), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0)
      continue;
    return "rank " + std::to_string(i + 1) + " is dead: its process " +
           (info.si_code == CLD_EXITED ? "ended with status " : "was ended by signal ") +
           std::to_string(info.si_status) + " before it joined";
  }
  return {};
}

RankProcesses::~RankProcesses() {
  const Deadline patience = Deadline::after(std::chrono::seconds(1));
  for (pid_t& pid : pids_) {
    while (pid > 0 && !patience.passed()) {
      const pid_t ended = waitpid(pid, nullptr, WNOHANG);
      if (ended != 0) pid = 0;  // reaped, or not ours any more
      if (pid > 0) detail::blind_sleep(5'000'000);
    }
  }
  kill_all();
}

void RankProcesses::kill_all() {
  for (pid_t& pid : pids_) {
    if (pid <= 0) continue;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    pid = 0;
  }
}

void end_with_launcher() {
  const char* launcher = std::getenv(kLauncherVariable);
  if (launcher == nullptr) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // It may have ended before the call.
  if (std::to_string(getppid()) != launcher) _exit(69);
}

}  // namespace ark::dma
