#include "base/memory.h"

#include <gtest/gtest.h>
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
  write("sys/fs/cgroup/outer/memory.stat", "anon 600000\ninactive_file 50000\n");
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

}  // namespace
}  // namespace ark
