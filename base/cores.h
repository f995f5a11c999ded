// Which CPUs are one core, how fast cores are, and which memory is near them, as the kernel's sysfs shows it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/machine.h"

namespace ark {

struct Core {
  CpuList cpus;      // more than one: threads of one core (SMT), which share its arithmetic
  int node = 0;      // whose memory is near
  double speed = 1;  // what the kernel says it does, as a part of what the fastest does; 0: less, unknown
};

// Where loop threads belong. Tiles are dealt evenly and a step is as slow as its slowest thread, so there is one for
// each core, and of cores that differ (P and E) the fastest n are used for which n times the slowest's speed is most.
class Cores {
 public:
  // $ARK_TOPOLOGY, or "/".
  static std::filesystem::path folder();
  explicit Cores(const CpuList& cpus = cpus_of_mask(), const std::filesystem::path& root = folder());

  const std::vector<Core>& used() const { return used_; }  // by node
  // Where none are asked for: one a core, but no more than the control groups' quota has whole CPUs. At least 1.
  int threads() const;
  // The CPUs that each of so many threads may use; neighbours are on one node. Empty: any, as there are cores to spare,
  // or less time than cores (a quota), and a pinned thread would wait for a busy one beside an idle one.
  std::vector<CpuList> seats(int threads) const;
  // Where none are asked for: one for each node that is used, with threads() or as many as are asked for, if those are
  // alike and 2, 4, 8 and so on (whose results are those of one rank); else 1.
  int ranks(int asked_threads) const;
  // Whose memory is near to all threads of a rank, where they are pinned; -1: none is, or all memory is.
  int node(int rank, int ranks, int threads) const;
  // What threads() leaves idle, and why, for people; empty where it is nothing.
  std::string text() const;

 private:
  std::vector<Core> all_, used_;
  std::size_t cpus_;
  int quota_;
};

// Asks for these pages, which nobody has touched yet, from a node's memory, as long as it has some: threads that fill
// them may run anywhere. -1: from where they are touched first. Advice only.
void place_on_node(std::span<std::byte> pages, int node);

}  // namespace ark
