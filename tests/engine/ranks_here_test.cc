// Which cores threads of a rank get among those of other processes (engine/run/ranks_here.h).
#include "engine/run/ranks_here.h"

#include <gtest/gtest.h>

#include <numeric>

namespace ark {
namespace {

TEST(RanksHere, CountThreadsOfThoseThatShareProcessors) {
  EXPECT_EQ(RanksHere{}.threads(16, 3), 16);
  EXPECT_EQ((RanksHere{3, 1}.threads(16, 3)), 16)
      << "also the one that no rank gets: all cores have seats, or none";
  EXPECT_EQ((RanksHere{2, 0}.threads(32, 4)), 16) << "two ranks on each of two machines";
  EXPECT_EQ((RanksHere{1, 0}.threads(2, 4)), 1) << "a rank has one at least";
  EXPECT_EQ(processors_of(16, 3), 5);
}

// Of a machine of 16 cores that tells nothing else.
TEST(RanksHere, SeatsAreThoseOfTheMachineWhereverOthersAre) {
  CpuList cpus(16);
  std::iota(cpus.begin(), cpus.end(), 0);
  const Cores cores(cpus, testing::TempDir() + "no such folder");
  const std::vector<CpuList> all = cores.seats(16);
  ASSERT_EQ(all.size(), 16u);
  const std::vector<CpuList> first(all.begin(), all.begin() + 8), second(all.begin() + 8, all.end());
  EXPECT_EQ(RanksHere{}.seats(0, 2, 2, 16, cores), all) << "both ranks of one process";
  EXPECT_EQ((RanksHere{1, 0}.seats(3, 1, 4, 64, cores)), all) << "rank 3 of 4, alone on its machine";
  EXPECT_EQ((RanksHere{2, 0}.seats(2, 1, 4, 32, cores)), first) << "ranks 2 and 3 of 4";
  EXPECT_EQ((RanksHere{2, 1}.seats(3, 1, 4, 32, cores)), second);
  const std::vector<CpuList> of_three(all.begin() + 5, all.begin() + 10);
  EXPECT_EQ((RanksHere{3, 1}.seats(1, 1, 3, 16, cores)), of_three) << "one core is left over";
  EXPECT_EQ((RanksHere{2, 0}.seats(0, 1, 4, 64, cores)), std::vector<CpuList>()) << "more threads than cores";
  EXPECT_EQ((RanksHere{2, 1}.node(3, 4, 32, cores)), cores.node(1, 2, 16));
}

}  // namespace
}  // namespace ark
