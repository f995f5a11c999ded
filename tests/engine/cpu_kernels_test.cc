// The CPU's faster kernels against the plain ones.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/ir/kernel.h"
#include "engine/cpu/kernels.h"

namespace ark {
namespace {

Tensor bytes(DType type, Dims dims, std::mt19937& random) {
  Tensor t = Tensor::empty(type, std::move(dims));
  for (int64_t i = 0; i < t.size(); ++i) t.as<uint8_t>()[i] = static_cast<uint8_t>(random());
  return t;
}

Tensor run(const Kernel& kernel, const std::vector<Tensor>& inputs) {
  const Attributes none;
  std::vector<TensorView> in, out(1);
  for (const Tensor& t : inputs) in.push_back(view_of(t));
  const KernelCall call{Op::kMatMulInteger, &none, in, out};
  Tensor result = Tensor::empty(DType::kI32, kernel.shapes(call)[0].dims);
  out[0] = view_of(result);
  for (int64_t tile = 0; tile < kernel.grid(call); ++tile) kernel.tile(call, tile);
  return result;
}

TEST(CpuKernels, IntegerProductsAreThePlainOnes) {
  std::mt19937 random(7);
  for (const auto& [m, k, n] : {std::tuple{1, 1, 1}, {130, 300, 70}, {5, 513, 64}, {3, 0, 4}}) {
    const std::vector<Tensor> in{bytes(DType::kU8, {2, m, k}, random), bytes(DType::kI8, {k, n}, random),
                                 bytes(DType::kU8, {m}, random), bytes(DType::kI8, {n}, random)};
    const Tensor plain = run(*find_kernel(Op::kMatMulInteger), in),
                 fast = run(*find_cpu_kernel(Op::kMatMulInteger), in);
    ASSERT_EQ(plain.dims, fast.dims);
    EXPECT_EQ(0, std::memcmp(plain.data.get(), fast.data.get(), plain.bytes()));
  }
}

TEST(CpuKernels, OthersAreThePlainOnes) {
  EXPECT_EQ(find_cpu_kernel(Op::kGather), find_kernel(Op::kGather));
  EXPECT_EQ(find_cpu_kernel(Op::kAllReduce), nullptr);
}

}  // namespace
}  // namespace ark
