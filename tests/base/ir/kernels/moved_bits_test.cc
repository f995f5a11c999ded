// What an operator only moves keeps its bits, signalling NaN and payloads too: the oracle is the input.
#include <gtest/gtest.h>

#include <numeric>

#include "base/ir/kernel.h"
#include "base/ir/keys.h"

namespace ark {
namespace {

Tensor run(Op op, const Attributes& attributes, const std::vector<Tensor>& inputs) {
  std::vector<TensorView> in, out(1);
  for (const Tensor& t : inputs) in.push_back(view_of(t));
  const KernelCall call{op, &attributes, in, out};
  const Kernel& kernel = *find_kernel(op);
  const std::vector<OutputType> types = kernel.shapes(call);
  Tensor result = Tensor::zeros(types[0].dtype, types[0].dims);
  out[0] = view_of(result);
  for (int64_t tile = 0; tile < kernel.grid(call); ++tile) kernel.tile(call, tile);
  return result;
}

// Each pattern of bits once.
Tensor all_of(DType type) {
  Tensor t = Tensor::empty(type, {type == DType::kF8E4M3 ? 256 : 65536});
  if (type == DType::kF8E4M3)
    std::iota(t.as<uint8_t>(), t.as<uint8_t>() + t.size(), uint8_t{0});
  else
    std::iota(t.as<uint16_t>(), t.as<uint16_t>() + t.size(), uint16_t{0});
  return t;
}

TEST(MovedBits, AreKept) {
  for (const DType type : {DType::kF16, DType::kBF16, DType::kF8E4M3}) {
    const Tensor x = all_of(type);
    const Attributes to{{key::kTo, static_cast<int64_t>(type)}};
    EXPECT_TRUE(run(Op::kIdentity, {}, {x}) == x) << name_of(type);
    EXPECT_TRUE(run(Op::kCast, to, {x}) == x) << name_of(type);
    for (const uint8_t condition : {0, 1}) {
      const Tensor which = Tensor::of<uint8_t>(DType::kBool, {}, std::span(&condition, 1));
      const Tensor none = Tensor::zeros(type, x.dims);
      EXPECT_TRUE(
          run(Op::kWhere, {}, condition ? std::vector{which, x, none} : std::vector{which, none, x}) == x)
          << name_of(type);
    }
  }
}

}  // namespace
}  // namespace ark
