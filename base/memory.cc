#include "base/memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

namespace ark {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kUnlimited = INT64_MAX;

// A file that holds one number; nullopt for "max", or if there is no such file.
std::optional<int64_t> number_in(const fs::path& file) {
  std::ifstream in(file);
  int64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

int64_t machine_left(const fs::path& root) {
  std::ifstream info(root / "proc/meminfo");
  for (std::string key, rest; info >> key;) {
    int64_t kilobytes = 0;
    info >> kilobytes;
    std::getline(info, rest);
    if (key == "MemAvailable:") return kilobytes << 10;
  }
  return kUnlimited;
}

// What one control group leaves. Its page cache is counted as used but goes when memory is short.
int64_t group_left(const fs::path& group, const char* limit, const char* used) {
  const std::optional<int64_t> most = number_in(group / limit);
  if (!most) return kUnlimited;
  int64_t cache = 0;
  std::ifstream stat(group / "memory.stat");
  for (std::string key; stat >> key;) {
    int64_t value = 0;
    stat >> value;
    if (key == "inactive_file" || key == "total_inactive_file") cache = std::max(cache, value);
  }
  return std::max<int64_t>(0, *most - std::max<int64_t>(0, number_in(group / used).value_or(0) - cache));
}

}  // namespace

int64_t available_memory(const fs::path& root) {
  int64_t left = machine_left(root);
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/path" (v2), "5:memory:/path" (v1)
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_v2 = controllers.empty();
    if (!is_v2 && controllers != "memory") continue;
    const fs::path mount = root / (is_v2 ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    fs::path path = fs::path(line.substr(second + 1)).relative_path();
    for (;; path = path.parent_path()) {
      left =
          std::min(left, is_v2 ? group_left(mount / path, "memory.max", "memory.current")
                               : group_left(mount / path, "memory.limit_in_bytes", "memory.usage_in_bytes"));
      if (path.empty()) break;
    }
  }
  return left == kUnlimited ? int64_t{1} << 32 : left;
}

}  // namespace ark
