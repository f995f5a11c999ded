// Starts processes on this machine that are this program again; above all the rank processes of a group, with the
// environment bootstrap set. The caller is rank 0.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "dma/bootstrap.h"

namespace ark::dma {

inline constexpr int kHandedDescriptor = 3;

// Of this process, without the program's name.
std::vector<std::string> own_arguments();
// Runs /proc/self/exe with `arguments` and the caller's environment, in which `variables` ("NAME=value") replace those
// of their names. Of the caller's descriptors it gets the standard ones, and `descriptor` as kHandedDescriptor if that
// is not -1. It ends when the calling *thread* ends, once it has called end_with_launcher(). Throws Error(kOs).
pid_t start_again(const std::vector<std::string>& arguments, std::vector<std::string> variables,
                  int descriptor = -1);
// "ended with status 3", "was ended by signal 9", or "" while it runs. Looks without reaping: the id stays ours.
std::string end_of(pid_t pid);

class RankProcesses {
 public:
  // Ranks 1 .. size - 1 run /proc/self/exe with `arguments` (without the program's name) and find
  // ARK_RANK, ARK_WORLD_SIZE and ARK_BOOTSTRAP. The meeting place is an abstract unix socket with a random
  // name: nothing is left in a file system. Throws Error(kOs).
  RankProcesses(int size, const std::vector<std::string>& arguments);
  // Gives the processes a second to end by themselves, then kills and reaps them.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // Of rank 0, for join_group or join_environment; used while this object lives.
  const Environment& environment() const { return environment_; }
  pid_t pid(int rank) const { return pids_.at(rank - 1); }

 private:
  std::string lost() const;
  void kill_all();

  Environment environment_;
  std::vector<pid_t> pids_;  // of rank i + 1
};

// For rank processes, first of all: from now on this process ends when the one that started it ends, whatever
// this one is doing. False, and nothing is done, where another launcher started it.
bool end_with_launcher();

}  // namespace ark::dma
