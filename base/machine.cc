#include "base/machine.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <fstream>
#include <new>
#include <optional>
#include <string>
#include <thread>

#include "base/descriptor.h"
#include "base/per_thread.h"

namespace ark {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kUnlimited = INT64_MAX;
// Of the address space, for what maps more than it touches: stacks of threads, heaps of their own.
constexpr int64_t kAddressReserve = int64_t{192} << 20;

// A file that begins with a number; nullopt for "max", or if there is no such file.
std::optional<int64_t> number_in(const std::string& file) {
  std::ifstream in(file);
  int64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

// Names are joined as texts: libstdc++'s operator/ of paths corrupts them where it finds no memory.
std::string below(const fs::path& root, const std::string& name) { return root.string() + "/" + name; }

// Calls visit(folder, is_v2) for the process's group of `controller` and those above it, in both versions.
template <class Visit>
void for_groups(const fs::path& root, const std::string& controller, Visit visit) {
  std::ifstream groups(below(root, "proc/self/cgroup"));
  for (std::string line; std::getline(groups, line);) {  // "0::/path" (v2), "4:cpu,cpuacct:/path" (v1)
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_v2 = controllers.empty();
    if (!is_v2 && ("," + controllers + ",").find("," + controller + ",") == std::string::npos) continue;
    const std::string mount = below(root, "sys/fs/cgroup/" + controllers);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    for (std::size_t end = path.size(); end != std::string::npos; end = path.rfind('/')) {
      path.resize(end);
      visit(mount + path, is_v2);
    }
  }
}

int64_t machine_left(const fs::path& root) {
  std::ifstream info(below(root, "proc/meminfo"));
  for (std::string key, rest; info >> key;) {
    int64_t kilobytes = 0;
    info >> kilobytes;
    std::getline(info, rest);
    if (key == "MemAvailable:") return kilobytes << 10;
  }
  return kUnlimited;
}

// What one control group leaves. Its page cache is counted as used but goes when memory is short.
int64_t group_left(const std::string& group, const char* limit, const char* used) {
  const std::optional<int64_t> most = number_in(group + "/" + limit);
  if (!most) return kUnlimited;
  int64_t own = 0, total = 0;  // version 1 tells both of the group alone and with those below it
  std::ifstream stat(group + "/memory.stat");
  for (std::string key; stat >> key;) {
    int64_t value = 0;
    stat >> value;
    if (key == "inactive_file" || key == "active_file") own += value;
    if (key == "total_inactive_file" || key == "total_active_file") total += value;
  }
  const int64_t cache = std::max(own, total);
  return std::max<int64_t>(0,
                           *most - std::max<int64_t>(0, number_in(group + "/" + used).value_or(0) - cache));
}

int64_t address_space_left(const fs::path& root) {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnlimited;
  const int64_t used = number_in(below(root, "proc/self/statm")).value_or(0) * sysconf(_SC_PAGESIZE);
  return std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_cur) - used - kAddressReserve);
}

// CPUs' worth of time in a period; 0: no limit.
double quota_of(const std::string& group, bool is_v2) {
  std::ifstream v2(group + "/cpu.max");
  double quota = 0, period = 0;
  if (is_v2) return v2 >> quota >> period && period > 0 ? quota / period : 0;  // "max 100000" does not read
  quota = static_cast<double>(number_in(group + "/cpu.cfs_quota_us").value_or(-1));
  period = static_cast<double>(number_in(group + "/cpu.cfs_period_us").value_or(0));
  return quota > 0 && period > 0 ? quota / period : 0;
}

struct Schedstat {  // of the thread that makes it
  Descriptor file{::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)};
};

}  // namespace

int64_t available_memory(const fs::path& root) {
  int64_t left = std::min(machine_left(root), address_space_left(root));
  for_groups(root, "memory", [&](const std::string& group, bool is_v2) {
    left = std::min(left, is_v2 ? group_left(group, "memory.max", "memory.current")
                                : group_left(group, "memory.limit_in_bytes", "memory.usage_in_bytes"));
  });
  return left == kUnlimited ? int64_t{1} << 32 : left;
}

CpuList cpus_of_mask() {
  CpuList cpus;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  // Refused on a machine of more CPUs than the mask has bits.
  const bool is_told = sched_getaffinity(getpid(), sizeof mask, &mask) == 0;
  const int all = is_told ? CPU_SETSIZE : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  for (int cpu = 0; cpu < all; ++cpu)
    if (!is_told || CPU_ISSET(cpu, &mask)) cpus.push_back(cpu);
  return cpus;
}

int cpu_quota(const fs::path& root) {
  int cpus = INT_MAX;
  for_groups(root, "cpu", [&](const std::string& group, bool is_v2) {
    const double quota = quota_of(group, is_v2);
    if (quota > 0) cpus = std::min(cpus, static_cast<int>(std::min(quota, 1e6)));
  });
  return cpus;
}

int available_cpus(const fs::path& root) {
  return std::max(1, std::min(static_cast<int>(cpus_of_mask().size()), cpu_quota(root)));
}

// The second number of the thread's schedstat.
int64_t coreless_ns() try {
  static PerThread<Schedstat> files;
  const Descriptor& file = files.get().file;
  char text[96];
  const ssize_t size = !file ? 0 : ::pread(file.number, text, sizeof text - 1, 0);
  if (size <= 0) return 0;
  text[size] = 0;
  long long ns = 0;
  return std::sscanf(text, "%*d %lld", &ns) == 1 ? ns : 0;
} catch (const std::bad_alloc&) {
  return 0;
}

}  // namespace ark
