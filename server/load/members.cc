#include "server/load/members.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <set>

#include "base/cores.h"
#include "base/machine.h"
#include "base/sha256.h"
#include "dma/transports.h"
#include "server/version.h"

namespace ark {

Member Member::here() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  const dma::Place place = dma::Place::here();
  // Containers of one machine are told apart by their namespaces of processes: each has limits of its own.
  cpu_set_t set;
  CPU_ZERO(&set);
  ::sched_getaffinity(0, sizeof set, &set);
  const std::string container = place.machine + "/" + std::to_string(place.pid_namespace);
  // Containers of a machine that have the same processors compete for them, unless each has a quota.
  const bool has_quota = cpu_quota() < CPU_COUNT(&set);
  return {name, container,
          (has_quota ? container : place.machine) + " " +
              sha256_hex({reinterpret_cast<const char*>(&set), sizeof set}),
          Cores().threads(), available_memory()};
}

std::vector<Member> gather_members(dma::Bootstrap& bootstrap, dma::Deadline deadline) {
  const std::vector<std::string> blobs = bootstrap.all_gather(to_blob(Member::here(), kVersion), deadline);
  std::vector<Member> members;
  for (std::size_t rank = 0; rank < blobs.size(); ++rank)
    members.push_back(member_of(blobs[rank], static_cast<int>(rank), bootstrap.rank()));
  return members;
}

RanksHere ranks_here(std::span<const Member> members, int rank) {
  RanksHere here;
  for (std::size_t other = 0; other < members.size(); ++other) {
    if (members[other].cpu_set != members[static_cast<std::size_t>(rank)].cpu_set) continue;
    ++here.count;
    here.place += other < static_cast<std::size_t>(rank);
  }
  return here;
}

std::vector<Site> sites_of(std::span<const Member> members, int ranks) {
  std::vector<Site> sites;
  if (members.empty()) {
    sites.push_back({Member::here().host, {}, Cores().threads(), available_memory()});
    for (int rank = 0; rank < ranks; ++rank) sites[0].ranks.push_back(rank);
  }
  std::vector<std::string> machines;
  std::set<std::string> sets;  // whose processors are counted
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    const Member& member = members[rank];
    const auto known = std::ranges::find(machines, member.machine);
    const auto at = static_cast<std::size_t>(known - machines.begin());
    if (known == machines.end()) {
      machines.push_back(member.machine);
      sites.push_back({member.host, {}, 0, member.memory});
    }
    Site& site = sites[at];
    site.ranks.push_back(static_cast<int>(rank));
    // Launchers may give each rank processors of its own, or all ranks the same.
    if (sets.insert(member.machine + member.cpu_set).second) site.cpus += member.cpus;
    site.memory = std::min(site.memory, member.memory);
  }
  return sites;
}

std::string placement_text(std::span<const Site> sites) {
  std::string text;
  for (const Site& site : sites) {
    text += text.empty() ? "" : "; ";
    for (std::size_t i = 0; i < site.ranks.size(); ++i)
      text += (i == 0 ? "" : ", ") + std::to_string(site.ranks[i]);
    text += " on " + site.host;
  }
  return text;
}

int32_t machine_ranks_of(std::span<const Site> sites) {
  const auto each = static_cast<int32_t>(sites.empty() ? 0 : sites[0].ranks.size());
  int32_t next = 0;
  for (const Site& site : sites) {
    if (static_cast<int32_t>(site.ranks.size()) != each) return 1;
    for (const int rank : site.ranks)
      if (rank != next++) return 1;
  }
  return sites.size() > 1 ? each : 1;
}

int32_t threads_for(std::span<const Site> sites, int ranks) {
  if (sites.size() == 1) return sites[0].cpus;
  int32_t each = sites[0].cpus;
  for (const Site& site : sites) each = std::min(each, site.cpus / static_cast<int32_t>(site.ranks.size()));
  return std::max(1, each) * ranks;
}

int64_t pages_for(std::span<const Site> sites, const Compiled& compiled, int64_t reserve) {
  int64_t pages = std::numeric_limits<int64_t>::max();
  for (const Site& site : sites) {
    const RunnerMemory fixed = memory_at(site, compiled, 0);
    const int64_t each = std::max<int64_t>(1, memory_at(site, compiled, 1).pages);
    pages = std::min(pages, (site.memory - fixed.weights - fixed.other - reserve) / 2 / each);
  }
  return pages;
}

RunnerMemory memory_at(const Site& site, const Compiled& compiled, int64_t pages) {
  RunnerMemory sum;
  for (const int rank : site.ranks) {
    const RunnerMemory one = memory_of(compiled, pages, rank);
    sum.weights += one.weights;
    sum.other += one.other;
    sum.pages += one.pages;
  }
  return sum;
}

}  // namespace ark
