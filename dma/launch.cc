#include "dma/launch.h"

#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/random.h"

namespace ark::dma {
namespace {

constexpr const char* kLauncherVariable = "ARK_LAUNCHER";  // its process id

std::string random_name() {
  return "@ark-" + std::to_string(random_word()) + "-" + std::to_string(random_word());
}

// `variables`, then what else the caller's environment has.
void add_environment(std::vector<std::string>& variables) {
  const std::size_t own = variables.size();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry, name = text.substr(0, text.find('=') + 1);
    const bool is_given = std::any_of(variables.begin(), variables.begin() + static_cast<std::ptrdiff_t>(own),
                                      [&](const std::string& given) { return given.starts_with(name); });
    if (!is_given) variables.emplace_back(text);
  }
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

std::vector<std::string> own_arguments() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string word; std::getline(in, word, '\0');) arguments.push_back(word);
  if (!arguments.empty()) arguments.erase(arguments.begin());
  return arguments;
}

pid_t start_again(const std::vector<std::string>& arguments, std::vector<std::string> variables,
                  int descriptor) {
  std::vector<std::string> command = {own_program()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  variables.push_back(kLauncherVariable + ("=" + std::to_string(getpid())));
  add_environment(variables);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  if (descriptor >= 0) posix_spawn_file_actions_adddup2(&files, descriptor, kHandedDescriptor);
  posix_spawn_file_actions_addclosefrom_np(&files, kHandedDescriptor + (descriptor >= 0 ? 1 : 0));
  pid_t pid = 0;
  const int error = posix_spawn(&pid, "/proc/self/exe", &files, nullptr, pointers(command).data(),
                                pointers(variables).data());
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) throw Error(Code::kOs, std::string("cannot start a process: ") + std::strerror(error));
  return pid;
}

std::string end_of(pid_t pid) {
  siginfo_t info = {};
  if (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
    return {};
  return (info.si_code == CLD_EXITED ? "ended with status " : "was ended by signal ") +
         std::to_string(info.si_status);
}

RankProcesses::RankProcesses(int size, const std::vector<std::string>& arguments)
    : environment_{0, size, random_name(), [this] { return lost(); }} {
  try {
    for (int rank = 1; rank < size; ++rank)
      pids_.push_back(start_again(
          arguments, {"ARK_RANK=" + std::to_string(rank), "ARK_WORLD_SIZE=" + std::to_string(size),
                      "ARK_BOOTSTRAP=" + environment_.address}));
  } catch (const Error&) {
    kill_all();
    throw;
  }
}

std::string RankProcesses::lost() const {
  for (std::size_t i = 0; i < pids_.size(); ++i)
    if (const std::string end = end_of(pids_[i]); !end.empty())
      return "rank " + std::to_string(i + 1) + " is dead: its process " + end + " before it joined";
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

bool end_with_launcher() {
  const char* launcher = std::getenv(kLauncherVariable);
  if (launcher == nullptr) return false;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // It may have ended before the call.
  if (std::to_string(getppid()) != launcher) _exit(69);
  return true;
}

}  // namespace ark::dma
