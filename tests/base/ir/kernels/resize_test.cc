// Resize picks elements as they are where it does not mix them.
#include <gtest/gtest.h>

#include "base/ir/kernel.h"
#include "base/ir/keys.h"

namespace ark {
namespace {

std::vector<int64_t> resized(const std::vector<int64_t>& x, int64_t size) {
  const Tensor in = Tensor::of<int64_t>(DType::kI64, {static_cast<int64_t>(x.size())}, x),
               out = Tensor::zeros(DType::kI64, {size});
  const Attributes attributes{{key::kSizes, Shape{Expr(size)}}, {key::kMode, "nearest"}};
  const TensorView from[] = {view_of(in)}, to[] = {view_of(out)};
  find_kernel(Op::kResize)->tile({Op::kResize, &attributes, from, to}, 0);
  return {out.as<int64_t>(), out.as<int64_t>() + size};
}

TEST(Resize, KeepsIntegersThatNoDoubleHolds) {
  const int64_t odd = (int64_t{1} << 53) + 1;
  EXPECT_EQ(resized({odd, -odd}, 2), (std::vector<int64_t>{odd, -odd}));
  EXPECT_EQ(resized({odd, -odd}, 4), (std::vector<int64_t>{odd, odd, -odd, -odd}));
}

}  // namespace
}  // namespace ark
