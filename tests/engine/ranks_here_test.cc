// Which cores threads of a rank get among those of other processes (engine/run/ranks_here.h).
#include "engine/run/ranks_here.h"

#include <gtest/gtest.h>

#include "base/cores.h"

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

// On this machine, whatever it is: ranks of other machines change nothing, neighbours get different cores.
TEST(RanksHere, SeatsAreThoseOfTheMachineWhereverOthersAre) {
  const int cores = Cores().threads();
  const std::vector<CpuList> all = Cores().seats(cores);
  EXPECT_EQ(RanksHere{}.seats(0, 1, 1, cores), all);
  EXPECT_EQ((RanksHere{1, 0}.seats(3, 1, 4, 4 * cores)), all) << "rank 3 of 4, alone on its machine";
  if (all.empty() || cores % 2 != 0)
    GTEST_SKIP() << "this machine has no seats to share: " << cores << " threads";
  std::vector<CpuList> both = RanksHere{2, 0}.seats(2, 1, 4, 2 * cores);
  ASSERT_EQ(static_cast<int>(both.size()), cores / 2);
  const std::vector<CpuList> second = RanksHere{2, 1}.seats(3, 1, 4, 2 * cores);
  both.insert(both.end(), second.begin(), second.end());
  EXPECT_EQ(both, all) << "ranks 2 and 3 of 4";
  EXPECT_EQ((RanksHere{2, 1}.node(3, 4, 2 * cores)), Cores().node(1, 2, cores));
}

}  // namespace
}  // namespace ark
