#include "base/cores.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include "base/files.h"

namespace ark {
namespace {

namespace fs = std::filesystem;

// Names are joined as texts: libstdc++'s operator/ of paths corrupts them where it finds no memory.
std::string cpu_folder(const std::string& root, int cpu) {
  return root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu);
}

// "0-3,8": as the kernel writes lists of CPUs. Empty where there is no such file.
CpuList list_in(const std::string& file) {
  std::ifstream in(file);
  CpuList list;
  for (int first = 0; in >> first;) {
    int last = first;
    if (in.peek() == '-' && in.ignore()) in >> last;
    for (int cpu = first; cpu <= last && cpu < CPU_SETSIZE; ++cpu) list.push_back(cpu);
    if (in.peek() == ',') in.ignore();
  }
  return list;
}

bool has(const CpuList& list, int cpu) { return std::ranges::find(list, cpu) != list.end(); }

// The first CPU of its core, of all that the machine has.
int core_of(const std::string& root, int cpu) {
  for (const char* name :
       {"/topology/core_cpus_list", "/topology/thread_siblings_list"})  // since Linux 5.3, before
    if (const CpuList list = list_in(cpu_folder(root, cpu) + name); has(list, cpu)) return list.front();
  return cpu;
}

double capacity_of(const std::string& root, int cpu) {
  double value = 0;
  std::ifstream(cpu_folder(root, cpu) + "/cpu_capacity") >> value;
  return value;
}

std::map<int, int> nodes_of_cpus(const std::string& root) {
  const std::string folder = root + "/sys/devices/system/node";
  std::map<int, int> nodes;
  for (const std::string& name : names_in(folder)) {
    if (!name.starts_with("node") || name.size() == 4 || name.size() > 8 ||
        name.find_first_not_of("0123456789", 4) != std::string::npos)
      continue;
    for (const int cpu : list_in(folder + "/" + name + "/cpulist")) nodes[cpu] = std::stoi(name.substr(4));
  }
  return nodes;
}

std::vector<Core> cores_of(const CpuList& cpus, const std::string& root) {
  const std::map<int, int> nodes = nodes_of_cpus(root);
  CpuList slow;  // Intel's efficiency cores, whose capacity many kernels do not tell
  for (const char* name : {"cpu_atom", "cpu_lowpower"})
    for (const int cpu : list_in(root + "/sys/devices/" + name + "/cpus")) slow.push_back(cpu);
  const auto is_slow = [&](int cpu) { return has(slow, cpu); };
  const bool are_alike = std::ranges::all_of(cpus, is_slow);
  std::map<int, Core> cores;
  double most = 0;
  for (const int cpu : cpus) {
    Core& core = cores[core_of(root, cpu)];
    if (core.cpus.empty()) core.speed = capacity_of(root, cpu);
    core.cpus.push_back(cpu);
    if (const auto node = nodes.find(cpu); node != nodes.end()) core.node = node->second;
    most = std::max(most, core.speed);
  }
  std::vector<Core> list;
  for (auto& [first, core] : cores) {
    if (core.speed > 0 && core.speed < most)
      core.speed /= most;
    else
      core.speed = is_slow(core.cpus[0]) && !are_alike ? 0 : 1;
    list.push_back(std::move(core));
  }
  std::ranges::stable_sort(list, std::greater{}, &Core::speed);
  return list;
}

}  // namespace

fs::path Cores::folder() {
  const char* named = std::getenv("ARK_TOPOLOGY");
  return named && *named ? named : "/";
}

Cores::Cores(const CpuList& cpus, const fs::path& root)
    : all_(cores_of(cpus, root.string())), cpus_(cpus.size()), quota_(cpu_quota(root)) {
  double best = 0;
  std::size_t count = 0;
  for (std::size_t n = 1; n <= all_.size(); ++n) {
    const double together = static_cast<double>(n) * all_[n - 1].speed;
    if (together <= best) continue;
    best = together;
    count = n;
  }
  used_.assign(all_.begin(), all_.begin() + static_cast<std::ptrdiff_t>(count));
  std::ranges::stable_sort(used_, {}, &Core::node);
  std::ranges::stable_sort(all_, {}, &Core::node);
}

int Cores::threads() const { return std::max(1, std::min(static_cast<int>(used_.size()), quota_)); }

std::vector<CpuList> Cores::seats(int threads) const {
  std::vector<CpuList> seats;
  const auto count = static_cast<std::size_t>(threads);
  if (threads > quota_) return seats;
  if (count == used_.size()) {
    for (const Core& core : used_) seats.push_back(core.cpus);
  } else if (count == cpus_) {
    for (auto core = all_.begin(); core != all_.end();) {
      // A node's first threads of cores, then their second ones: who takes a part of them takes whole cores.
      const auto end = std::find_if(core, all_.end(), [&](const Core& c) { return c.node != core->node; });
      std::size_t most = 0;
      for (auto c = core; c != end; ++c) most = std::max(most, c->cpus.size());
      for (std::size_t thread = 0; thread < most; ++thread)
        for (auto c = core; c != end; ++c)
          if (thread < c->cpus.size()) seats.push_back({c->cpus[thread]});
      core = end;
    }
  }
  return seats;
}

int Cores::node(int rank, int ranks, int threads) const {
  const std::vector<CpuList> seats = this->seats(threads);
  const std::size_t each = static_cast<std::size_t>(threads / ranks),
                    first = static_cast<std::size_t>(rank) * each;
  if (each == 0 || first + each > seats.size() || all_.front().node == all_.back().node) return -1;
  const auto node_of = [&](const CpuList& seat) {
    return std::ranges::find_if(all_, [&](const Core& core) { return has(core.cpus, seat[0]); })->node;
  };
  const int node = node_of(seats[first]);
  return node_of(seats[first + each - 1]) == node ? node : -1;  // they are by node
}

int Cores::ranks(int asked_threads) const {
  const int all = asked_threads > 0 ? asked_threads : threads();
  for (int ranks = 2; all % ranks == 0; ranks *= 2) {
    std::set<int> nodes;
    for (int rank = 0; rank < ranks; ++rank) nodes.insert(node(rank, ranks, all));
    if (std::ssize(nodes) == ranks && !nodes.contains(-1)) return ranks;
  }
  return 1;
}

std::string Cores::text() const {
  std::size_t cpus = 0;
  for (const Core& core : used_) cpus += core.cpus.size();
  std::string text;
  if (cpus > used_.size())
    text = (used_.size() == 1 ? "one for the only core, which has "
                              : "one for each of " + std::to_string(used_.size()) + " cores, which have ") +
           std::to_string(cpus) + " CPUs";
  if (all_.size() > used_.size())
    text += (text.empty() ? "" : "; ") + std::to_string(all_.size() - used_.size()) +
            " slower cores would hold them up";
  return text;
}

void place_on_node(std::span<std::byte> pages, int node) {
  constexpr int kBits = 8 * sizeof(unsigned long);
  if (node < 0 || pages.empty()) return;
  std::vector<unsigned long> nodes(static_cast<std::size_t>(node / kBits) + 1);
  nodes.back() = 1UL << (node % kBits);
  // The kernel takes one bit less than it is told.
  ::syscall(SYS_mbind, pages.data(), pages.size(), MPOL_PREFERRED, nodes.data(), nodes.size() * kBits + 1, 0);
}

}  // namespace ark
