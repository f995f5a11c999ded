// Starts the rank processes of a group on this machine: copies of this program with the environment
// bootstrap set. The caller is rank 0.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "dma/bootstrap.h"

namespace ark::dma {

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
// this one is doing. Does nothing where another launcher started it.
void end_with_launcher();

}  // namespace ark::dma
