// Where ranks run and what their GPUs have room for.
#include "server/load/device.h"

#include <gtest/gtest.h>

#include "engine/cuda/rank_ways.h"
#include "engine/ragged_runner.h"
#include "engine/run/weight_store.h"
#include "tests/engine/token_graphs.h"

namespace ark {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;

Compiled compiled(int ranks) {
  const CompileOptions options{
      .ranks = ranks, .max_tokens = 8, .max_rows = 4, .max_items = 8, .page_size = 4, .pages = 8};
  return compile_decoder(test::gpt2_tokens(), options);
}

// Bytes that ranks [first, first + step, ...) need beside pages, and of a page of them.
std::pair<int64_t, int64_t> needs(const Compiled& c, std::size_t first, std::size_t step) {
  int64_t fixed = 0, page = 0;
  for (std::size_t r = first; r < c.programs.size(); r += step) {
    for (const WeightUse& use : c.programs[r].weights) fixed += packed_bytes(use);
    fixed +=
        static_cast<int64_t>(cuda::exchanged_bytes(c.programs[r])) + cuda::most_told_bytes(c.programs[r]);
    fixed += 2 * (c.bindings[r].act_bytes + c.bindings[r].inbox_bytes);
    page += page_bytes({c.programs[r]});
  }
  return {fixed, page};
}

TEST(PagesWithRoom, AreThoseOfTheFullestGpu) {
  const Compiled c = compiled(2);
  const auto pages = [&](std::vector<int64_t> free) { return pages_with_room(c, free, true); };
  const auto [fixed, page] = needs(c, 0, 2);
  EXPECT_EQ(pages({10 * kMebibyte, 100 * kMebibyte}), (9 * kMebibyte - fixed) / page);
  const auto [fixed_1, page_1] = needs(c, 1, 2);
  EXPECT_EQ(pages({100 * kMebibyte, 10 * kMebibyte}), (9 * kMebibyte - fixed_1) / page_1);
  EXPECT_LT(pages({100 * kMebibyte, 0}), 1);
}

// Which weights and activations leave unsaid.
TEST(PagesWithRoom, LeaveRoomForWhatRanksExchange) {
  EXPECT_EQ(cuda::exchanged_bytes(compiled(1).programs[0]), 0u);
  const Compiled c = compiled(2);
  const Program& program = c.programs[0];
  const cuda::Appended appended(program);
  const uint64_t parts = cuda::plan_rank_parts(program, appended).bytes(),
                 shares = cuda::plan_rank_shares(program, cuda::MergedSends(program), appended, 0).bytes();
  EXPECT_GT(parts, 0u);
  EXPECT_EQ(cuda::exchanged_bytes(program), 2 * parts + shares);
}

TEST(PagesWithRoom, LeaveRoomForTheContextsOfOtherProcesses) {
  const Compiled c = compiled(3);
  const auto [fixed, page] = needs(c, 0, 1);
  const std::vector<int64_t> one = {10'000 * kMebibyte};
  EXPECT_EQ(pages_with_room(c, one, false), (9'000 * kMebibyte - fixed) / page);
  EXPECT_EQ(pages_with_room(c, one, true), (9'000 * kMebibyte - 2 * 512 * kMebibyte - fixed) / page);
  // Ranks 0 and 2 share the first of two.
  const auto [fixed_02, page_02] = needs(c, 0, 2);
  const std::vector<int64_t> two = {10'000 * kMebibyte, 100'000 * kMebibyte};
  EXPECT_EQ(pages_with_room(c, two, true), (9'000 * kMebibyte - 512 * kMebibyte - fixed_02) / page_02);
}

}  // namespace
}  // namespace ark
