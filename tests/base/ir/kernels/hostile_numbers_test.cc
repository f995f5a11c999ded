// Numbers that only a hostile file has: kernels neither read beyond their operands for them, nor take memory or time
// that nothing in the file pays for.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/ir/kernel.h"
#include "base/ir/keys.h"

namespace ark {
namespace {

Tensor floats(Dims dims, const std::vector<float>& values) {
  return Tensor::of<float>(DType::kF32, std::move(dims), values);
}

// Output 0 of all tiles. Throws as the kernel's shapes() does.
Tensor computed(Op op, const Attributes& attributes, const std::vector<TensorView>& in) {
  std::vector<TensorView> out(1);
  const Kernel& kernel = *find_kernel(op);
  const OutputType type = kernel.shapes({op, &attributes, in, {}})[0];
  Tensor y = Tensor::zeros(type.dtype, type.dims);
  out[0] = view_of(y);
  const KernelCall call{op, &attributes, in, out};
  for (int64_t tile = 0; tile < kernel.grid(call); ++tile) kernel.tile(call, tile);
  return y;
}

std::string refusal(Op op, const Attributes& attributes, const std::vector<Tensor>& inputs) {
  std::vector<TensorView> in;
  for (const Tensor& t : inputs) in.push_back(t.dtype == DType::kUndefined ? TensorView{} : view_of(t));
  try {
    find_kernel(op)->shapes({op, &attributes, in, {}});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// An axis whose last point, 16777219, is no f32: the next one is. Behind the axis lies another number.
struct LongAxis {
  static constexpr int64_t kSize = (1 << 24) + 4;
  Tensor all = Tensor::zeros(DType::kF16, {kSize + 1});
  LongAxis() {
    all.as<uint16_t>()[kSize - 1] = 0x3c00;  // 1
    all.as<uint16_t>()[kSize] = 0x4000;      // 2
  }
  TensorView view(Dims dims) const { return view_of(all).sized(dims); }
};

TEST(HostileNumbers, SamplesOfALongAxisEndWithIt) {
  const LongAxis axis;
  const Tensor grid = floats({1, 1, 1}, {1});
  for (const char* mode : {"nearest", "linear"}) {
    const Tensor y = computed(Op::kGridSample,
                              {{key::kMode, mode}, {key::kPaddingMode, "border"}, {key::kAlignCorners, 1}},
                              {axis.view({1, 1, LongAxis::kSize}), view_of(grid)});
    EXPECT_EQ(y.real(0), 1) << mode;
  }
}

TEST(HostileNumbers, PooledRegionsOfALongAxisEndWithIt) {
  const LongAxis axis;
  const Tensor region = floats({1, 5}, {0, 16777200, 0, 16777300, 0});
  const Tensor y = computed(Op::kMaxRoiPool, {{key::kOutputShape, {1, 1}}},
                            {axis.view({1, 1, 1, LongAxis::kSize}), view_of(region)});
  EXPECT_EQ(y.real(0), 1);
}

TEST(HostileNumbers, RegionsOfAnEmptyImageReadNothing) {
  const Tensor region = floats({1, 4}, {0, 0, 4, 4}), images = Tensor::zeros(DType::kI64, {1});
  for (const Dims& dims : {Dims{1, 1, 0, 4}, Dims{1, 1, 4, 0}})
    for (const char* mode : {"avg", "max"}) {
      const Tensor x = floats(dims, {});
      const Tensor y =
          computed(Op::kRoiAlign, {{key::kOutputShape, {2, 2}}, {key::kMode, mode}, {key::kScale, 1.0}},
                   {view_of(x), view_of(region), view_of(images)});
      for (int64_t i = 0; i < y.size(); ++i) EXPECT_EQ(y.real(i), 0);
    }
}

TEST(HostileNumbers, RegionsWithoutEndAreSampledInTime) {
  const Tensor x = floats({1, 1, 2, 2}, {1, 2, 3, 4}), images = Tensor::zeros(DType::kI64, {1});
  for (const float far : {5e37f, 3e38f, 1e20f, 1e10f, 1e9f, INFINITY, NAN}) {
    const Tensor region = floats({1, 4}, {-far, -far, far, far});
    const Tensor y = computed(Op::kRoiAlign,
                              {{key::kOutputShape, {1, 1}},
                               {key::kMode, "avg"},
                               {key::kCoordinateTransformationMode, "half_pixel"}},
                              {view_of(x), view_of(region), view_of(images)});
    EXPECT_FALSE(y.real(0) > 4) << far;
  }
}

TEST(HostileNumbers, WindowsThatAreMostlyPaddingTakeWhatTheySee) {
  constexpr int64_t kHuge = INT32_MAX;
  const Tensor x = floats({1, 1, 2, 3}, {1, 2, 3, 4, 5, 6});
  const Attributes window{{key::kKernelShape, {kHuge, kHuge}},
                          {key::kStrides, {2 * kHuge, 2 * kHuge}},
                          {key::kPads, std::vector<int64_t>(4, kHuge - 1)}};
  EXPECT_EQ(computed(Op::kMaxPool, window, {view_of(x)}).real(0), 1);  // it ends at the first point
  EXPECT_EQ(computed(Op::kAveragePool, window, {view_of(x)}).real(0), 1);
  Attributes padded = window;
  padded.set(key::kCountIncludePad, 1);
  EXPECT_EQ(computed(Op::kAveragePool, padded, {view_of(x)}).real(0),
            static_cast<float>(1 / std::pow(static_cast<double>(kHuge), 2)));
}

TEST(HostileNumbers, WhatNothingInTheFilePaysForIsRefused) {
  const Tensor one = floats({1, 1, 1}, {1});
  const auto length = [](int64_t n) { return Tensor::of<int64_t>(DType::kI64, {}, std::vector<int64_t>{n}); };
  EXPECT_EQ(refusal(Op::kDft, {{key::kAxis, 1}}, {one, length(4096)}), "");
  EXPECT_NE(
      refusal(Op::kDft, {{key::kAxis, 1}}, {one, length(1 << 20)}).find("a transform of length 1048576"),
      std::string::npos);
  const Attributes samples{{key::kOutputShape, {1024, 1024}}, {key::kSamplingRatio, 1024}};
  EXPECT_NE(
      refusal(Op::kRoiAlign, samples,
              {floats({1, 1, 1, 1}, {1}), floats({1, 4}, {0, 0, 1, 1}), Tensor::zeros(DType::kI64, {1})})
          .find("samples a region"),
      std::string::npos);
}

}  // namespace
}  // namespace ark
