// The table of OpCodes: one row each, in order; what variants may have.
#include "engine/program/opcodes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/ir/keys.h"

namespace ark::test {
namespace {

TEST(OpCodes, HaveOneRowEachInTheirOrder) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < all_opcodes().size(); ++i) {
    const OpCodeInfo& info = all_opcodes()[i];
    EXPECT_EQ(static_cast<std::size_t>(info.code), i) << info.name;
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    const auto is_many = [](const OperandInfo& o) { return o.flags & kMany; };
    EXPECT_LE(std::count_if(info.operands.begin(), info.operands.end(), is_many), 1) << info.name;
  }
  EXPECT_EQ(all_opcodes().back().code, OpCode::kSample);
}

TEST(OpCodes, VariantsHaveWhatTheirRowSays) {
  Variant norm{.code = OpCode::kNorm};
  norm.attributes.set(key::kRms, 1);
  EXPECT_EQ(variant_problem(norm), "has no attribute 'epsilon'");
  norm.attributes.set(key::kEpsilon, 1e-5);
  EXPECT_EQ(variant_problem(norm), "");
  norm.attributes.set_named("epsilom", 1e-6);
  EXPECT_EQ(variant_problem(norm), "knows no attribute 'epsilom'");
  Variant send{.code = OpCode::kSend};
  send.epilogue = kEpilogueBias;
  EXPECT_EQ(variant_problem(send), "has an epilogue");
  Variant matmul{.code = OpCode::kMatMul};
  matmul.epilogue = kEpilogueRelu | kEpilogueSilu;
  EXPECT_EQ(variant_problem(matmul), "epilogue");
}

TEST(OpCodes, WrittenOperandsAreCountedFromTheEndBehindMany) {
  const Variant pointwise{.code = OpCode::kPointwise}, append{.code = OpCode::kKvAppend},
      reduce{.code = OpCode::kRecvReduce}, send{.code = OpCode::kSend};
  const auto written = [](const Variant& v, std::size_t count) {
    std::string text;
    for (std::size_t i = 0; i < count; ++i) text += is_written(v, i, count) ? 'w' : 'r';
    return text;
  };
  EXPECT_EQ(written(pointwise, 4), "rrrw");
  EXPECT_EQ(written(append, 4), "rrww");
  EXPECT_EQ(written(reduce, 7), "rrrrrrw");  // own part, three inboxes, bias, residual, out
  EXPECT_EQ(written(send, 1), "r");
}

}  // namespace
}  // namespace ark::test
