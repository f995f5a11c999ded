// Cores, by trees as the kernel shows them (Documentation/ABI/testing/sysfs-devices-system-cpu and
// stable/sysfs-devices-node), of machines that are not here.
#include "base/cores.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <numeric>

namespace ark {
namespace {

namespace fs = std::filesystem;
using Seats = std::vector<CpuList>;

class CoresOf : public ::testing::Test {
 protected:
  CoresOf() : root_(fs::path(testing::TempDir()) / ("cores." + std::to_string(::getpid()))) {}
  ~CoresOf() override { fs::remove_all(root_); }
  void write(const std::string& name, const std::string& text) {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text << "\n";
  }
  void core(int cpu, const std::string& siblings, int capacity = 0) {
    const std::string folder = "sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/";
    write(folder + "topology/core_cpus_list", siblings);
    if (capacity > 0) write(folder + "cpu_capacity", std::to_string(capacity));
  }
  void node(int number, const std::string& cpus) {
    write("sys/devices/system/node/node" + std::to_string(number) + "/cpulist", cpus);
  }
  Cores cores(int cpus, int first = 0) const {
    CpuList list(static_cast<std::size_t>(cpus));
    std::iota(list.begin(), list.end(), first);
    return Cores(list, root_);
  }
  fs::path root_;
};

TEST_F(CoresOf, AMachineThatTellsNothing) {
  EXPECT_EQ(cores(3).threads(), 3);
  EXPECT_EQ(cores(3).seats(3), (Seats{{0}, {1}, {2}}));
  EXPECT_EQ(cores(3).seats(2), Seats()) << "the system finds free ones";
  EXPECT_EQ(cores(3).text(), "");
  EXPECT_EQ(cores(2, 6).seats(2), (Seats{{6}, {7}})) << "those of the mask";
}

TEST_F(CoresOf, AServerOfTwoNodesWhoseCoresHaveTwoThreads) {
  for (int cpu = 0; cpu < 8; ++cpu) core(cpu, std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4));
  node(0, "0-1,4-5");
  node(1, "2-3,6-7");
  write("sys/devices/system/node/possible", "0-1");
  write("sys/devices/system/node/node_states", "none of them");
  const Cores all = cores(8);
  EXPECT_EQ(all.threads(), 4);
  EXPECT_EQ(all.seats(4), (Seats{{0, 4}, {1, 5}, {2, 6}, {3, 7}})) << "of its core each may take either";
  EXPECT_EQ(all.seats(8), (Seats{{0}, {1}, {4}, {5}, {2}, {3}, {6}, {7}}));
  EXPECT_EQ(all.seats(5), Seats());
  EXPECT_EQ(all.text(), "one for each of 4 cores, which have 8 CPUs");
  EXPECT_EQ(all.ranks(0), 2);
  EXPECT_EQ(all.ranks(8), 2);
  EXPECT_EQ(all.ranks(3), 1) << "threads that are not pinned";
  const auto nodes = [&](int ranks, int threads) {
    std::vector<int> list;
    for (int rank = 0; rank < ranks; ++rank) list.push_back(all.node(rank, ranks, threads));
    return list;
  };
  EXPECT_EQ(nodes(2, 4), (std::vector<int>{0, 1}));
  EXPECT_EQ(nodes(4, 8), (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(nodes(1, 4), std::vector<int>{-1});
  EXPECT_EQ(nodes(2, 3), (std::vector<int>{-1, -1}));
  const Cores uneven(CpuList{0, 2, 3}, root_);
  EXPECT_EQ(uneven.ranks(0), 1) << "a rank of one thread and one of two";
  const Cores near(CpuList{2, 3, 6, 7}, root_);
  EXPECT_EQ(near.ranks(0), 1);
  EXPECT_EQ(near.node(0, 1, 2), -1) << "all of it is";
  // A cpuset of three CPUs, two of one core.
  const Cores some(CpuList{1, 5, 6}, root_);
  EXPECT_EQ(some.seats(some.threads()), (Seats{{1, 5}, {6}}));
}

TEST_F(CoresOf, ALaptopWhoseEfficiencyCoresAreNamed) {
  for (int cpu = 0; cpu < 4; ++cpu) core(cpu, cpu < 2 ? "0-1" : "2-3", 1024);
  for (int cpu = 4; cpu < 12; ++cpu) core(cpu, std::to_string(cpu), 1024);  // kernels with SMT tell no other
  write("sys/devices/cpu_core/cpus", "0-3");
  write("sys/devices/cpu_atom/cpus", "4-11");
  EXPECT_EQ(cores(12).threads(), 2);
  EXPECT_EQ(cores(12).seats(2), (Seats{{0, 1}, {2, 3}}));
  EXPECT_EQ(cores(12).text(),
            "one for each of 2 cores, which have 4 CPUs; 8 slower cores would hold them up");
  EXPECT_EQ(cores(12).seats(12).size(), 12u) << "who asks for all gets all";
  EXPECT_EQ(cores(8, 4).threads(), 8)
      << "where a cpuset has nothing else, they are no slower than each other";
  EXPECT_EQ(cores(8, 4).text(), "");
}

TEST_F(CoresOf, ABoardWhoseCoresHaveSpeeds) {
  const auto speeds = [&](std::vector<int> capacities) {
    for (int cpu = 0; cpu < 8; ++cpu)
      core(cpu, std::to_string(cpu), capacities[static_cast<std::size_t>(cpu)]);
    return cores(8);
  };
  // Four of 1 are more than eight of 0.4; eight of 0.6 are more than four of 1; one of 1 is less than four of 0.8.
  EXPECT_EQ(speeds({410, 410, 410, 410, 1024, 1024, 1024, 1024}).seats(4), (Seats{{4}, {5}, {6}, {7}}));
  EXPECT_EQ(speeds({615, 615, 615, 615, 1024, 1024, 1024, 1024}).threads(), 8);
  const Cores three = speeds({300, 300, 300, 300, 820, 820, 820, 1024});
  EXPECT_EQ(three.seats(three.threads()), (Seats{{7}, {4}, {5}, {6}}));
  EXPECT_EQ(three.text(), "4 slower cores would hold them up");
}

TEST_F(CoresOf, AQuotaOfLess) {
  write("proc/self/cgroup", "0::/");
  write("sys/fs/cgroup/cpu.max", "250000 100000");
  EXPECT_EQ(cores(8).threads(), 2);
  EXPECT_EQ(cores(8).seats(2), Seats());
  EXPECT_EQ(cores(8).seats(8), Seats()) << "also where all are asked for";
  EXPECT_EQ(cores(2).seats(2), (Seats{{0}, {1}}));
  EXPECT_EQ(cores(1).threads(), 1);
}

TEST_F(CoresOf, AServerOfFourNodes) {
  for (int n = 0; n < 4; ++n) node(n, std::to_string(2 * n) + "-" + std::to_string(2 * n + 1));
  EXPECT_EQ(cores(8).ranks(0), 4);
  EXPECT_EQ(cores(6).ranks(0), 1) << "three ranks have bits of their own";
}

// The kernel's word for where pages will come from.
TEST(Pages, AreAskedForFromANode) {
  const auto policy_of = [](const void* page, unsigned long& nodes) {
    int mode = -1;
    return ::syscall(SYS_get_mempolicy, &mode, &nodes, sizeof nodes * 8 + 1, page, MPOL_F_ADDR) == 0 ? mode
                                                                                                     : -1;
  };
  constexpr std::size_t kBytes = 1 << 16;
  void* const mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const std::span<std::byte> pages(static_cast<std::byte*>(mapped), kBytes);
  unsigned long nodes = 0;
  if (policy_of(mapped, nodes) != MPOL_DEFAULT) {
    ::munmap(mapped, kBytes);
    GTEST_SKIP() << "get_mempolicy is refused here, or all memory has a policy already";
  }
  place_on_node(pages, -1);
  EXPECT_EQ(policy_of(pages.data(), nodes), MPOL_DEFAULT);
  place_on_node(pages, 0);
  EXPECT_EQ(policy_of(pages.data(), nodes), MPOL_PREFERRED);
  EXPECT_EQ(nodes, 1u);
  EXPECT_EQ(policy_of(&pages.back(), nodes), MPOL_PREFERRED);
  ::munmap(mapped, kBytes);
}

// Of this machine, by another reader of the same kernel's knowledge.
TEST(CoresHere, AreAsManyAsTheSystemCounts) {
  std::ifstream info("/proc/cpuinfo");
  int processors = 0, threads = 1, cores = 1;
  for (std::string line; std::getline(info, line);) {
    const std::string value = line.substr(line.find(':') + 1);
    processors += line.starts_with("processor");
    if (line.starts_with("siblings")) threads = std::stoi(value);
    if (line.starts_with("cpu cores")) cores = std::stoi(value);
  }
  if (static_cast<int>(cpus_of_mask().size()) != processors || threads % cores != 0)
    GTEST_SKIP() << "only a part of the machine, or cores that differ";
  std::size_t all = 0;
  const Cores here;
  for (const Core& core : here.used()) {
    EXPECT_EQ(core.cpus.size(), static_cast<std::size_t>(threads / cores));
    all += core.cpus.size();
  }
  EXPECT_EQ(all, static_cast<std::size_t>(processors));
}

}  // namespace
}  // namespace ark
