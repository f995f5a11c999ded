// Which sums over ranks are added up by shares (engine/cuda/rank_shares.h), and what of them each tile has.
#include "engine/cuda/rank_shares.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/compile.h"
#include "engine/cuda/dealing.h"
#include "engine/cuda/image.h"
#include "engine/program/opcodes.h"
#include "engine/program/unroll.h"
#include "tests/engine/token_graphs.h"

namespace ark::cuda {
namespace {

Compiled compiled_for(int32_t ranks, int32_t max_tokens, int64_t hidden = 64, int32_t machine_ranks = 1,
                      bool is_parallel = false) {
  CompileOptions options;
  options.ranks = ranks;
  options.max_tokens = max_tokens;
  options.max_rows = 16;
  options.machine_ranks = machine_ranks;
  // So many that ranks share the table.
  test::TokenGraphOptions shape{.layers = 3, .heads = 8, .kv_heads = 8, .head_dim = 8, .vocabulary = 4099};
  shape.hidden = hidden, shape.is_parallel = is_parallel;
  // So long that sums over ranks take less than what they are of.
  if (hidden > 64) shape.head_dim = 64, shape.intermediate = hidden;
  return compile_decoder(test::llama_tokens(shape), options);
}

RankShares shares_of(const Program& program, int64_t from) {
  return plan_rank_shares(program, MergedSends(program), Appended(program), from);
}

TEST(RankShares, AreOfEachSum) {
  for (const int32_t ranks : {2, 4, 8}) {
    const Compiled compiled = compiled_for(ranks, 32);
    for (const Program& program : compiled.programs) {
      const RankShares shares = shares_of(program, 1);
      const std::vector<ark::Instance> all = unroll(program);
      int32_t sums = 0, rows = 0, stored = 0;
      for (std::size_t i = 0; i < all.size(); ++i) {
        const OpCode code = program.variants[program.phases[all[i].phase].variant].code;
        const bool adds_up = code == OpCode::kRecvReduce || code == OpCode::kRecvRows;
        if (adds_up) {
          EXPECT_EQ(shares.number[i], ++sums);
          rows += code == OpCode::kRecvRows;
        }
        // The first of the sends stands for all; products store what they would send.
        const bool sends_first = is_send(code) && shares.number[i] != 0;
        const bool stores = is_product(code) && shares.number[i] != 0;
        EXPECT_TRUE(!(sends_first || stores) || shares.number[i] == sums + 1) << i;
        EXPECT_TRUE(adds_up || sends_first || stores || shares.number[i] == 0) << i;
        EXPECT_EQ(shares.parts_at[i] != 0, stores || (shares.number[i] != 0 && code != OpCode::kSendRows &&
                                                      code != OpCode::kRecvRows));
        stored += stores;
      }
      EXPECT_EQ(stored, 6);
      EXPECT_EQ(sums, 7);  // two of each layer, and the tokens' rows
      EXPECT_EQ(rows, 1);
      EXPECT_EQ(shares.count, sums);
      EXPECT_EQ(shares.elements, 32 * 64);
      EXPECT_EQ(shares.parts_offset(), kShareWordBytes + 32 * 64 * 4);
      EXPECT_EQ(shares.room_bytes, 32 * 64 * 4);  // ranks' parts of one's share
      EXPECT_EQ(shares.bytes(), shares.parts_offset() + 2 * shares.room_bytes);
      EXPECT_EQ(shares.text(), shares_of(compiled.programs[0], 1).text());
    }
  }
}

// From so many elements on that the link is what takes long, where products store parts meanwhile; of two ranks never
// where they do not, of which each sends the other all.
TEST(RankShares, AreOfSumsThatTheLinkTakesLongFor) {
  for (const auto& [ranks, most_tokens] : {std::pair{2, 512}, {4, 112}, {8, 40}}) {
    EXPECT_EQ(shares_of(compiled_for(ranks, most_tokens, 2048).programs[0], 0).text(), "") << ranks;
    EXPECT_NE(shares_of(compiled_for(ranks, most_tokens + 1, 2048).programs[0], 0).text(), "") << ranks;
  }
  const Program program = compiled_for(2, 1024, 2048).programs[0];
  const RankShares shares = shares_of(program, 0);
  const std::vector<ark::Instance> all = unroll(program);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(shares.number[i] != 0, shares.parts_at[i] != 0) << i;
  EXPECT_GT(shares.count, 0);
}

// A product may run before the sum before has been added up, where both are of the same x: their parts have rooms in
// turns. It comes behind that sum all the same, or sends what it computes.
TEST(RankShares, AreStoredInTurns) {
  Program program = compiled_for(4, 32, 64, 1, true).programs[0];
  const auto stored = [&] {
    const RankShares shares = shares_of(program, 1);
    const std::vector<ark::Instance> all = unroll(program);
    int32_t sums = 0, products = 0;
    std::vector<bool> are_stored;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const OpCode code = code_of(program, all[i]);
      if (code == OpCode::kRecvReduce) are_stored.push_back(shares.parts_at[i] != 0);
      if (shares.parts_at[i] == 0) continue;
      EXPECT_EQ(shares.parts_at[i],
                shares.parts_offset() + static_cast<uint64_t>(sums % 2) * shares.room_bytes);
      EXPECT_LE(shares.parts_at[i] + shares.room_bytes, shares.bytes());
      products += is_product(code), sums += code == OpCode::kRecvReduce;
      EXPECT_LE(products - sums, 1) << i;
    }
    return are_stored;
  };
  EXPECT_EQ(stored(), std::vector<bool>(6, true));
  // The first layer's second sum: its product before the first one's.
  std::size_t sum = 0;
  const auto code = [&](std::size_t phase) { return program.variants[program.phases[phase].variant].code; };
  while (code(sum) != OpCode::kRecvReduce) ++sum;
  std::size_t product = sum;
  const auto multiplies = [&](std::size_t phase) { return code(phase) == OpCode::kMatMul && phase > sum; };
  while (!multiplies(product)) ++product;
  const auto at = [&](std::size_t phase) {
    return program.phases.begin() + static_cast<std::ptrdiff_t>(phase);
  };
  std::rotate(at(sum), at(product), at(product + 1));
  const std::vector<bool> are_stored = stored();
  EXPECT_TRUE(are_stored[0]);
  EXPECT_FALSE(are_stored[1]);
  EXPECT_EQ(shares_of(program, 1).count, 7) << "sums, stored or sent, and the tokens' rows";
}

// Where a sum is larger than the one before, that one may go by message in a step in which it is shared, whose
// processors wait for less.
TEST(RankShares, AreNotStoredBehindSmallerSums) {
  Program program = compiled_for(4, 32).programs[0];
  const std::vector<ark::Instance> all = unroll(program);
  const SymbolValues step = {{"items", 13}, {"pages", 11}, {"rows", 5}, {"tokens", 7}};
  const auto found =
      std::ranges::find_if(program.vals, [&](const Val& v) { return v.e.evaluate(step) == 5; });
  ASSERT_NE(found, program.vals.end());
  const auto rows = static_cast<ValId>(found - program.vals.begin());
  std::vector<bool> stored;
  const auto look = [&] {
    const RankShares shares = shares_of(program, 1);
    stored.clear();
    for (std::size_t i = 0; i < all.size(); ++i)
      if (code_of(program, all[i]) == OpCode::kRecvReduce) stored.push_back(shares.parts_at[i] != 0);
  };
  look();
  EXPECT_EQ(stored, std::vector<bool>(6, true));
  // The first sum: of the rows that are wanted alone, as those of the last layer are.
  const auto sum = std::ranges::find_if(
      all, [&](const ark::Instance& i) { return code_of(program, i) == OpCode::kRecvReduce; });
  for (const std::size_t n : {std::size_t{0}, program.phases[sum->phase].operands.size() - 1}) {
    const BufferId changed = root(program, resolve(program, *sum, n));
    for (std::size_t b = 0; b < program.buffers.size(); ++b)
      if (root(program, static_cast<BufferId>(b)) == changed) program.buffers[b].dims[0] = rows;
  }
  look();
  EXPECT_EQ(stored, (std::vector<bool>{true, false, false, false, true, true}));
}

// A machine's ranks first, then machines: but for the tokens' rows not by all ranks at once.
TEST(RankShares, AreOfAllRanksAtOnce) {
  EXPECT_EQ(shares_of(compiled_for(8, 32, 64, 4).programs[0], 1).count, 1);
  EXPECT_EQ(shares_of(compiled_for(1, 32).programs[0], 1).text(), "");
}

TEST(RankShares, CoverAllOfASumOnce) {
  for (const int32_t ranks : {2, 3, 8}) {
    for (const int32_t processors : {1, 2, 7, 132}) {
      for (const int32_t all : {1, 7, 16, 513, 1056, 13312, 1 << 20}) {
        int32_t next = 0;
        for (int32_t rank = 0; rank < ranks; ++rank) {
          for (int32_t tile = 0; tile < processors; ++tile) {
            const Fours own = fours_of(all, ranks, processors, rank, tile);
            ASSERT_LE(own.first, own.last);
            if (own.first == own.last) continue;
            ASSERT_EQ(own.first, next) << ranks << " ranks, " << processors << " processors, " << all;
            next = own.last;
          }
        }
        ASSERT_EQ(next, all);
      }
    }
  }
}

}  // namespace
}  // namespace ark::cuda
