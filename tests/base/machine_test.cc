#include "base/machine.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace ark {
namespace {

namespace fs = std::filesystem;

class Memory : public testing::Test {
 protected:
  Memory() : root_(fs::path(testing::TempDir()) / ("memory." + std::to_string(::getpid()))) {}
  ~Memory() override { fs::remove_all(root_); }
  void write(const std::string& name, const std::string& text) {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  fs::path root_;
};

TEST_F(Memory, OfTheMachine) {
  write("proc/meminfo", "MemTotal: 100 kB\nMemFree: 20 kB\nMemAvailable:   64 kB\nBuffers: 1 kB\n");
  EXPECT_EQ(available_memory(root_), 64 << 10);
}

TEST_F(Memory, OfTheControlGroupsAbove) {
  write("proc/meminfo", "MemAvailable: 1048576 kB\n");
  write("proc/self/cgroup", "0::/outer/inner\n");
  write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  write("sys/fs/cgroup/outer/memory.max", "1000000\n");
  write("sys/fs/cgroup/outer/memory.current", "700000\n");
  write("sys/fs/cgroup/outer/memory.stat", "anon 600000\ninactive_file 30000\nactive_file 20000\n");
  EXPECT_EQ(available_memory(root_), 350000);
}

TEST_F(Memory, OfAContainersOwnGroup) {
  write("proc/meminfo", "MemAvailable: 1048576 kB\n");
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "5000000\n");
  write("sys/fs/cgroup/memory.current", "6000000\n");
  EXPECT_EQ(available_memory(root_), 0);
}

TEST_F(Memory, OfAGroupOfTheFirstVersion) {
  write("proc/meminfo", "MemAvailable: 1048576 kB\n");
  write("proc/self/cgroup", "7:cpu:/x\n5:memory:/box\n");
  write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "4000\n");
  write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(available_memory(root_), 3000);
}

TEST_F(Memory, IsGuessedWhereNothingCanBeRead) { EXPECT_EQ(available_memory(root_), int64_t{1} << 32); }

// In a process of its own, which dies of what it sees, as limits cannot be raised again.
TEST_F(Memory, OfTheAddressSpace) {
  write("proc/meminfo", "MemAvailable: 1073741824 kB\n");
  write("proc/self/statm", "1000 500 100 0 0 0 0\n");
  const auto look = [&] {
    const rlimit limit{rlim_t{1} << 30, rlim_t{1} << 30};
    setrlimit(RLIMIT_AS, &limit);
    const int64_t left = available_memory(root_);
    _exit(left > int64_t{512} << 20 && left < (int64_t{1} << 30) - 1000 * sysconf(_SC_PAGESIZE) ? 0 : 1);
  };
  EXPECT_EXIT(look(), testing::ExitedWithCode(0), "");
}

using Cpus = Memory;

TEST_F(Cpus, AreThoseOfTheMask) {
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  EXPECT_EQ(available_cpus(root_), CPU_COUNT(&mask));
}

TEST_F(Cpus, AreTheQuotasWholeOnes) {
  write("proc/self/cgroup", "0::/outer/inner\n");
  write("sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
  EXPECT_EQ(available_cpus(root_), available_cpus("/nowhere"));
  write("sys/fs/cgroup/outer/cpu.max", "150000 100000\n");
  EXPECT_EQ(available_cpus(root_), 1);
  write("sys/fs/cgroup/outer/cpu.max", "20000 100000\n");
  EXPECT_EQ(available_cpus(root_), 1);
}

TEST_F(Cpus, OfAGroupOfTheFirstVersion) {
  write("proc/self/cgroup", "4:cpu,cpuacct:/box\n");
  write("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(available_cpus(root_), available_cpus("/nowhere"));
  write("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "100000\n");
  EXPECT_EQ(available_cpus(root_), 1);
}

}  // namespace
}  // namespace ark
