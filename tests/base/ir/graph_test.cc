#include "base/ir/graph.h"

#include <gtest/gtest.h>

namespace ark {
namespace {

ConstantPtr reals(const Dims& dims, float value) {
  const std::vector<float> values(element_count(dims), value);
  return make_constant(Tensor::of<float>(DType::kF32, dims, values));
}

TEST(Graph, ConstantsOfOneContentBecomeOneValue) {
  Graph g;
  const ConstantPtr large = reals({100}, 1);
  const ValueId x = g.add_value("x", DType::kF32, Shape{2});
  g.inputs = {x};
  const auto use = [&](const ConstantPtr& c) {
    const ValueId y = g.add_value("y", DType::kF32, std::nullopt);
    const NodeId n = g.add_node(Op::kAdd, "n", {x, g.add_constant(c)}, {y});
    g.outputs.push_back(y);
    return n;
  };
  const NodeId small = use(reals({2}, 1)), equal = use(reals({2}, 1)), other = use(reals({2}, 2)),
               shaped = use(reals({1, 2}, 1));
  const NodeId view = use(large), same_view = use(std::make_shared<Constant>(*large)),
               part = use(sliced(large, 0, 0, 99)), copy = use(reals({100}, 1));
  ASSERT_TRUE(g.merge_constants());
  const auto read = [&](NodeId n) { return g.node(n).inputs[1]; };
  EXPECT_EQ(read(small), read(equal));
  EXPECT_NE(read(small), read(other));
  EXPECT_NE(read(small), read(shaped));
  EXPECT_EQ(read(view), read(same_view));
  EXPECT_NE(read(view), read(part));
  EXPECT_NE(read(view), read(copy));  // large ones are not compared by content
  EXPECT_FALSE(g.merge_constants());
}

}  // namespace
}  // namespace ark
