// The processes of a group and the machines that they run on: what each tells the others when they meet, and what
// rank 0 makes of it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dma/bootstrap.h"
#include "engine/compile.h"
#include "engine/ragged_runner.h"

namespace ark {

struct Member {
  std::string host;     // its machine's name, for people
  std::string machine;  // equal for ranks that share memory and processors: a container is one
  std::string cpu_set;  // equal for ranks that compete for the same processors, of whatever containers
  int32_t cpus = 1;     // and how many of them at once
  int64_t memory = 0;   // that it may still take there

  static Member here();
};
std::string to_blob(const Member& member, std::string_view version);
// Throws Error(kUsage) naming both ranks and versions where `rank` runs another version than this, kUnavailable.
Member member_of(std::string_view blob, int rank, int own_rank);

// Collective. Throws as member_of.
std::vector<Member> gather_members(dma::Bootstrap& bootstrap, dma::Deadline deadline);

// Ranks of one machine, and what they may take of it together.
struct Site {
  std::string host;
  std::vector<int> ranks;
  int32_t cpus = 0;
  int64_t memory = 0;
};
// Of a rank: who competes for its processors.
RanksHere ranks_here(std::span<const Member> members, int rank);

// In the order of their first ranks. Without members: `ranks` threads of this process.
std::vector<Site> sites_of(std::span<const Member> members, int ranks);

// "0, 1 on node-a; 2 on node-b".
std::string placement_text(std::span<const Site> sites);
// Where there are several sites of as many ranks each, one after the other: so many. Else 1.
int32_t machine_ranks_of(std::span<const Site> sites);
// Of all ranks together, as the least of the machines allows.
int32_t threads_for(std::span<const Site> sites, int ranks);
// Keys and values for which the machine that has least has room: half of what weights, activations and `reserve` bytes
// leave. May be negative.
int64_t pages_for(std::span<const Site> sites, const Compiled& compiled, int64_t reserve);
// What the ranks of a site take with so many pages.
RunnerMemory memory_at(const Site& site, const Compiled& compiled, int64_t pages);

}  // namespace ark
