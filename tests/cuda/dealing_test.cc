// How tiles are dealt to processors (engine/cuda/dealing.h).
#include "engine/cuda/dealing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/cuda/product_tiles.h"
#include "engine/program/program.h"

namespace ark::cuda {
namespace {

// Each tile is dealt once; all together raise a counter as often as there are processors, who has tiles does.
void expect_whole(const Lineup& line, i32 base, int processors) {
  std::vector<int> times(static_cast<std::size_t>(line.grid));
  int raises = 0;
  for (int p = 0; p < processors; ++p) {
    const Share share = dealt(line, p, base, processors);
    const Tiles streamed = dealt<Side::kStreaming>(line, p, base, processors).tiles;
    ASSERT_TRUE(streamed.first == share.tiles.first && streamed.last == share.tiles.last);
    ASSERT_LE(0, share.tiles.first);
    ASSERT_LE(share.tiles.last, line.grid);
    for (i64 t = share.tiles.first; t < share.tiles.last; ++t) ++times[static_cast<std::size_t>(t)];
    ASSERT_TRUE(share.raises > 0 || share.tiles.first >= share.tiles.last);
    raises += share.raises;
  }
  ASSERT_EQ(raises, processors);
  ASSERT_TRUE(std::all_of(times.begin(), times.end(), [](int n) { return n == 1; }));
}

TEST(Dealing, EachTileIsDealtOnceAndCountersAreRaisedInFull) {
  for (const int processors : {1, 2, 3, 16, 132}) {
    for (const i64 grid : {0, 1, 2, 5, 16, 64, 131, 132, 133, 256, 1000}) {
      for (const i32 base : {0, processors / 2, processors - 1})
        ASSERT_NO_FATAL_FAILURE(expect_whole(grid, base, processors)) << grid << " on " << processors;
      for (const i64 before : {0, 1, 17, 132, 300}) {
        if (grid == 0) break;  // then neighbours, which have the same rows, have none either
        for (const i64 behind : {0, 1, 40, 500}) {
          const Lineup line(grid, before, before + grid + behind);
          for (const i32 base : {0, processors - 1})
            ASSERT_NO_FATAL_FAILURE(expect_whole(line, base, processors))
                << grid << " behind " << before << " of " << line.all << " on " << processors;
        }
      }
    }
  }
}

TEST(Dealing, OfManyTilesIsWhatProgramsSay) {
  for (const int processors : {1, 7, 132, 2047}) {
    for (const i64 grid : {(1 << 20) - 1, 1 << 20, 123456789, INT32_MAX}) {
      for (const int p : {0, processors / 2, processors - 1}) {
        const Range own = ark::tiles_of(grid, p, processors);
        const int behind = (p + 1) % processors;  // ranges begin behind processor 0, wherever few tiles do
        for (const Tiles& tiles : {dealt(grid, behind, 0, processors).tiles,
                                   dealt<Side::kStreaming>(grid, behind, processors / 3, processors).tiles}) {
          EXPECT_EQ(tiles.first, own.begin);
          EXPECT_EQ(tiles.last, own.end);
        }
      }
    }
  }
}

// Queries, keys and values of a prompt: nobody has more than one tile more than others of all three.
TEST(Dealing, NeighboursShareProcessorsEvenly) {
  constexpr int kProcessors = 132;
  int least = 1000, most = 0;
  for (int p = 0; p < kProcessors; ++p) {
    i64 own = 0;
    for (const Lineup& line : {Lineup(256, 0, 384), Lineup(64, 256, 384), Lineup(64, 320, 384)}) {
      const Tiles tiles = dealt(line, p, 0, kProcessors).tiles;
      own += tiles.last - tiles.first;
    }
    least = std::min(least, static_cast<int>(own)), most = std::max(most, static_cast<int>(own));
  }
  EXPECT_EQ(least, 2);
  EXPECT_EQ(most, 3);
}

// Few tiles of neighbours lie side by side from the base on: nobody has two of them, whatever the step's tiles are.
TEST(Dealing, FewTilesOfNeighboursMeetNowhere) {
  constexpr int kProcessors = 132;
  for (const i32 base : {0, 40, 131}) {
    for (int p = 0; p < kProcessors; ++p) {
      i64 own = 0;
      for (const Lineup& line : {Lineup(64, 0, 128), Lineup(32, 64, 128), Lineup(32, 96, 128)}) {
        const Tiles tiles = dealt(line, p, base, kProcessors).tiles;
        own += tiles.last - tiles.first;
      }
      ASSERT_EQ(own, (p - base + kProcessors) % kProcessors < 128 ? 1 : 0) << p << " from " << base;
    }
  }
}

// As engine/cuda/README.md has them, of blocks with 227 KiB.
TEST(Dealing, TheRingTakesWhatProductsLeaveOfTheScratch) {
  const auto stages = [](i32 rows, i32 leaving_rows) {
    return ring_stages(14, rows, leaving_rows, kLargestTiles.scratch);
  };
  EXPECT_EQ(stages(1, kWarpRows), 21);
  EXPECT_EQ(stages(9, kWarpRows), 21);
  EXPECT_EQ(stages(16, kWarpRows), 16);
  EXPECT_EQ(stages(17, kWarpRows), 14);
  EXPECT_EQ(stages(8, kFewRows), 20);
  EXPECT_EQ(stages(9, kFewRows), 14);
  EXPECT_EQ(stages(1, 0), 14);
  for (const TileShape& tiles : {kLargestTiles, kLargeTiles, kSmallTiles}) {
    for (const i32 leaving : {0, kFewRows, kWarpRows}) {
      for (i32 rows = 1; rows <= 64; ++rows) {
        const auto taken = static_cast<u32>(ring_stages(10, rows, leaving, tiles.scratch) - 10) * kStageBytes;
        EXPECT_LE(scratch_of(rows, leaving, tiles.scratch), tiles.scratch - taken) << rows << " rows";
      }
    }
  }
}

TEST(Dealing, LongPiecesKeepTheirScratchFromALongRing) {
  Stream of_16_bits{}, of_4_bits{};
  of_16_bits.longest_piece = 64, of_4_bits.longest_piece = 128;
  const Stream all[] = {of_16_bits, of_4_bits};
  EXPECT_EQ(leaving_rows({all, 1}, 14), kWarpRows);
  EXPECT_EQ(leaving_rows(all, 14), kFewRows);
  EXPECT_EQ(leaving_rows(all, 6), kWarpRows);
}

}  // namespace
}  // namespace ark::cuda
