// What ranks exchange by words in steps of few rows (engine/cuda/rank_parts.h).
#include "engine/cuda/rank_parts.h"

#include <gtest/gtest.h>

#include <set>

#include "engine/compile.h"
#include "engine/cuda/image.h"
#include "engine/cuda/taken_up.h"
#include "engine/program/opcodes.h"
#include "engine/program/unroll.h"
#include "tests/engine/token_graphs.h"

namespace ark::cuda {
namespace {

Program program_of(int32_t ranks, int64_t head_dim, int64_t layers = 3) {
  CompileOptions options;
  options.ranks = ranks;
  test::TokenGraphOptions shape{.layers = layers, .heads = 8, .kv_heads = 8, .head_dim = head_dim};
  shape.hidden = shape.heads * shape.head_dim;
  return compile_decoder(test::llama_tokens(shape), options).programs[0];
}

TEST(RankParts, AreOfEachSumOfAProduct) {
  for (const int32_t ranks : {2, 4, 8}) {
    const Program program = program_of(ranks, 8);
    const RankParts parts = plan_rank_parts(program, Appended(program));
    const std::vector<ark::Instance> all = unroll(program);
    std::set<int32_t> places;
    int sums = 0, left_out = 0, settling = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (parts.place[i] == 0) continue;
      if (is_send(code_of(program, all[i]))) ++left_out, settling += parts.settles[i] != 0;
      if (code_of(program, all[i]) != OpCode::kRecvReduce) continue;
      ++sums;
      EXPECT_EQ(code_of(program, all[static_cast<std::size_t>(parts.product[i])]), OpCode::kMatMul);
      EXPECT_EQ(parts.place[i] % 16, 0);
      EXPECT_TRUE(places.insert(parts.place[i]).second) << "two sums at one place";
      EXPECT_LE(parts.place[i] + 64, parts.pitch);
    }
    EXPECT_EQ(sums, 6);  // two of each layer
    EXPECT_EQ(left_out, sums * (ranks - 1));
    // Of each peer's channel the last one stands for all.
    EXPECT_EQ(settling, ranks - 1);
    for (std::size_t i = 0; i < all.size(); ++i)
      EXPECT_TRUE(parts.settles[i] == 0 || parts.settles[i] == sums) << i;
    EXPECT_EQ(parts.bytes(), uint64_t{2} * 32 * static_cast<uint64_t>(parts.pitch) * 4);
  }
}

// Each sum's first reader is a norm: in steps of few rows it adds up, but rows that would take one block long.
TEST(RankParts, AreLeftToTheNormsBehind) {
  CompileOptions options;
  options.ranks = 2;
  for (const int64_t hidden : {512, 5120}) {
    const test::TokenGraphOptions shape{
        .layers = 2, .hidden = hidden, .heads = 8, .kv_heads = 8, .head_dim = hidden == 512 ? 64 : 8};
    const Compiled compiled = compile_decoder(test::llama_tokens(shape), options);
    const Program& program = compiled.programs[0];
    RankParts parts = plan_rank_parts(program, Appended(program));
    parts.leave_to_norms(program, takers(program, compiled.bindings[0], longest_row(kLargeTiles)));
    const std::vector<ark::Instance> all = unroll(program);
    int left = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (parts.taker[i] < 0) continue;
      ++left;
      EXPECT_EQ(code_of(program, all[i]), OpCode::kRecvReduce);
      EXPECT_EQ(parts.taker[i], static_cast<int32_t>(i) + 1);
      EXPECT_EQ(code_of(program, all[i + 1]), OpCode::kNorm);
    }
    EXPECT_EQ(left, hidden == 512 ? 4 : 0);
  }
}

// Widths and depths of Llama 1B, 70B and 405B, two sums a layer.
TEST(RankParts, AreOfAsManyRowsAsMemoryAndLinksTake) {
  EXPECT_EQ(part_rows(8, 2048, 2048 * 32, 32), 32);
  EXPECT_EQ(part_rows(2, 8192, 8192 * 160, 32), 32);
  EXPECT_EQ(part_rows(4, 8192, 8192 * 160, 32), 16);  // of 32: 1.3 GB
  EXPECT_EQ(part_rows(8, 8192, 8192 * 160, 32), 8);
  EXPECT_EQ(part_rows(8, 8192, 8192 * 40, 32), 16);  // else 5.5 MB by a link
  EXPECT_EQ(part_rows(8, 8192, 8192 * 40, 31), 15);
  EXPECT_EQ(part_rows(8, 65536, 65536, 12), 8);
  EXPECT_EQ(part_rows(8, 16384, 16384 * 252, 32), 0);
}

// Rows of 56 elements: by counters.
TEST(RankParts, AreOfWholeRunsOfElements) {
  const Program program = program_of(2, 7 * 4);
  const RankParts whole = plan_rank_parts(program, Appended(program));
  EXPECT_GT(whole.pitch, 0);  // of 224
  CompileOptions options;
  options.ranks = 2;
  test::TokenGraphOptions shape{.layers = 2, .heads = 2, .kv_heads = 2, .head_dim = 28};
  shape.hidden = 56;
  const Program odd = compile_decoder(test::llama_tokens(shape), options).programs[0];
  const RankParts none = plan_rank_parts(odd, Appended(odd));
  EXPECT_EQ(none.pitch, 0);
  EXPECT_EQ(none.text(), "");
}

// Of one layer, behind which only wanted rows are left, ranks may exchange nothing in a step: then by counters.
TEST(RankParts, AreWhereRanksMeetInEachStep) {
  const Program program = program_of(2, 8, 1);
  EXPECT_EQ(plan_rank_parts(program, Appended(program)).pitch, 0);
  const Program deeper = program_of(2, 8, 2);
  EXPECT_GT(plan_rank_parts(deeper, Appended(deeper)).pitch, 0);
}

TEST(RankParts, OfOneRankAreNone) {
  const Program program = program_of(1, 8);
  EXPECT_EQ(plan_rank_parts(program, Appended(program)).pitch, 0);
}

}  // namespace
}  // namespace ark::cuda
