// Where what few processors take begins.
#include "engine/cuda/placement.h"

#include <gtest/gtest.h>

namespace ark::cuda {
namespace {

constexpr int32_t kProcessors = 16;
using Needed = std::vector<std::vector<int32_t>>;

std::vector<int32_t> bases(std::vector<Placed> all, const Needed& needed, int32_t processors = kProcessors) {
  place(all, needed, processors);
  std::vector<int32_t> found;
  for (const Placed& p : all) found.push_back(p.base);
  return found;
}
Placed product(int32_t base, int64_t few, int64_t more) { return {base, {few, more}}; }

TEST(Placement, ANormBeginsWhereProductsBeforeAndBehindHaveNoTile) {
  const auto found = bases({product(0, 4, 4), {}, product(8, 6, 6)}, {{}, {0}, {1}});
  EXPECT_EQ(found[0], 0);
  EXPECT_EQ(found[1], 14) << "behind which there are the one before's, not those of the one behind";
  EXPECT_EQ(found[2], 8);
  // Round the end.
  EXPECT_EQ(bases({product(12, 6, 6), {}, product(6, 6, 6)}, {{}, {0}, {1}})[1], 2);
}

TEST(Placement, WhereAllHaveTilesItIsLateWithTheOneBefore) {
  const int32_t base = bases({product(0, 8, 8), {}, product(8, 8, 8)}, {{}, {0}, {1}})[1];
  EXPECT_GT(base, 0) << "which has the borders of steps to look after";
  EXPECT_LT(base, 8);
}

TEST(Placement, BothKindsOfStepsCount) {
  EXPECT_EQ(bases({{}, product(0, 4, 12)}, {{}, {0}})[0], 12);
  EXPECT_EQ(bases({{}, product(0, 12, 4)}, {{}, {0}})[0], 12);
}

TEST(Placement, ProductsWithTilesForAllSayNothing) {
  EXPECT_EQ(bases({product(3, 16, 64), {}, product(5, 17, 17)}, {{}, {0}, {1}})[1], 1);
}

TEST(Placement, NeighboursThatNeedNothingOfEachOtherLieApart) {
  constexpr int32_t kMany = 132, kRows = 64;
  const auto found = bases({{}, {}}, {{}, {}}, kMany);
  const int32_t apart = (found[1] - found[0] + kMany) % kMany;
  EXPECT_GE(apart, kRows);
  EXPECT_LE(apart, kMany - kRows);
  for (const int32_t few : {2, 16, 33, 64, 66}) {
    const auto of_few = bases({{}, {}}, {{}, {}}, few);
    EXPECT_GE((of_few[1] - of_few[0] + few) % few, few / 2) << few << " processors";
  }
  // What stands between them, but is not run, does not part them.
  EXPECT_EQ(bases({{}, {Placed::kNothing}, {}}, {{}, {}, {}}, kMany)[2], found[1]);
}

TEST(Placement, OneProcessorHasAll) {
  EXPECT_EQ(bases({product(0, 4, 4), {}, {}}, {{}, {0}, {1}}, 1), (std::vector<int32_t>{0, 0, 0}));
}

}  // namespace
}  // namespace ark::cuda
