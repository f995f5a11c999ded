// Movement and Resize go by rows and cut tensors into tiles: each element is where its definition says, wherever a tile
// ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/ir/kernel.h"
#include "base/ir/keys.h"

namespace ark {
namespace {

Tensor counted(DType type, Dims dims) {
  Tensor t = Tensor::empty(type, std::move(dims));
  for (int64_t i = 0; i < t.size(); ++i) {
    if (type == DType::kU8) t.as<uint8_t>()[i] = static_cast<uint8_t>(i * 7 % 251);
    if (type == DType::kI16) t.as<int16_t>()[i] = static_cast<int16_t>(i);
    if (type == DType::kF32) t.as<float>()[i] = static_cast<float>(i);
    if (type == DType::kF64) t.as<double>()[i] = static_cast<double>(i);
  }
  return t;
}

Tensor run_tiles(Op op, const Attributes& attributes, const std::vector<Tensor>& inputs) {
  const Kernel& kernel = *find_kernel(op);
  std::vector<TensorView> in, out(1);
  for (const Tensor& t : inputs) in.push_back(t.dtype == DType::kUndefined ? TensorView{} : view_of(t));
  const KernelCall call{op, &attributes, in, out};
  const OutputType type = kernel.shapes(call)[0];
  Tensor result = Tensor::zeros(type.dtype, type.dims);
  out[0] = view_of(result);
  for (int64_t tile = kernel.grid(call); tile-- > 0;) kernel.tile(call, tile);
  return result;
}

// f(index of the output) gives the index of x.
template <typename F>
void expect_moved(const Tensor& x, const Tensor& y, F f) {
  const auto element = static_cast<std::size_t>(bits_of(x.dtype) / 8);
  Dims at(y.dims.size());
  for (int64_t i = 0; i < y.size(); ++i) {
    int64_t rest = i, from = 0;
    for (std::size_t a = at.size(); a-- > 0; rest /= y.dims[a]) at[a] = rest % y.dims[a];
    const Dims source = f(at);
    for (std::size_t a = 0; a < source.size(); ++a) from = from * x.dims[a] + source[a];
    ASSERT_EQ(0, std::memcmp(y.data.get() + static_cast<std::size_t>(i) * element,
                             x.data.get() + static_cast<std::size_t>(from) * element, element))
        << "element " << i;
  }
}

TEST(Rows, TransposesOfAllPermutations) {
  for (const DType type : {DType::kU8, DType::kI16, DType::kF32, DType::kF64}) {
    const Tensor x = counted(type, {7, 33, 1, 90});
    Dims perm{0, 1, 2, 3};
    do {
      expect_moved(x, run_tiles(Op::kTranspose, {{key::kPerm, perm}}, {x}), [&](const Dims& at) {
        Dims from(4);
        for (std::size_t a = 0; a < 4; ++a) from[static_cast<std::size_t>(perm[a])] = at[a];
        return from;
      });
    } while (std::next_permutation(perm.begin(), perm.end()));
  }
}

TEST(Rows, PadsTilesAndExpandsAcrossTiles) {
  const Tensor x = counted(DType::kF32, {3, 50, 121});
  for (const std::string mode : {"edge", "reflect", "wrap"}) {
    const Dims pads{0, 2, 5, 1, -3, 40};
    const Attributes attributes{{key::kPadding, Shape(pads.begin(), pads.end())}, {key::kMode, mode}};
    expect_moved(x, run_tiles(Op::kPad, attributes, {x}), [&](Dims at) {
      for (std::size_t a = 0; a < 3; ++a) {
        const int64_t n = x.dims[a], j = at[a] - pads[a], period = 2 * (n - 1),
                      turn = (j % period + period) % period;
        at[a] = mode == "edge"      ? std::clamp<int64_t>(j, 0, n - 1)
                : mode == "reflect" ? (turn < n ? turn : period - turn)
                                    : (j % n + n) % n;
      }
      return at;
    });
  }
  const Tensor padded = run_tiles(Op::kPad, {{key::kPadding, Shape{0, -1, 3, 1, 2, -4}}}, {x});
  ASSERT_EQ(padded.dims, (Dims{4, 51, 120}));
  double sum = 0, wanted = 0;
  for (int64_t i = 0; i < padded.size(); ++i) sum += padded.as<float>()[i];
  for (int64_t i = 0; i < x.size(); ++i)
    if (i / 121 % 50 >= 1 && i % 121 < 117) wanted += x.as<float>()[i];
  EXPECT_EQ(sum, wanted);
  EXPECT_EQ(padded.as<float>()[3], 121.f);
  expect_moved(x, run_tiles(Op::kTile, {{key::kRepeats, Shape{2, 1, 3}}}, {x}), [&](Dims at) {
    for (std::size_t a = 0; a < 3; ++a) at[a] %= x.dims[a];
    return at;
  });
}

// Of two axes that grow and one that shrinks: each output is the sum over all of its taps.
TEST(Rows, ResizeSumsAllTaps) {
  const Tensor x = counted(DType::kF32, {2, 21, 90});
  const Tensor scales = Tensor::of<float>(DType::kF32, {3}, std::vector<float>{1, 3.f, 2.f});
  const Tensor y = run_tiles(Op::kResize, {{key::kMode, "linear"}}, {x, scales});
  ASSERT_EQ(y.dims, (Dims{2, 63, 180}));
  const auto at = [](int64_t o, double scale, int64_t n) {
    return std::clamp((static_cast<double>(o) + 0.5) / scale - 0.5, 0.0, static_cast<double>(n - 1));
  };
  for (int64_t i = 0; i < y.size();
       ++i) {  // x grows by 1, 90 and 1890 along its axes: its resize is their sum
    const double wanted =
        static_cast<double>(i / (63 * 180)) * 1890 + at(i / 180 % 63, 3, 21) * 90 + at(i % 180, 2, 90);
    ASSERT_TRUE(std::fabs(y.as<float>()[i] - wanted) <= 3780 * 0x1p-22) << i;  // places are of f32
  }
  // Long rows of which little is read.
  const Tensor longer = counted(DType::kF32, {3, 5000});
  const Tensor few = run_tiles(Op::kResize, {{key::kMode, "linear"}},
                               {longer, Tensor::of<float>(DType::kF32, {2}, std::vector<float>{1, 0.01f})});
  ASSERT_EQ(few.dims, (Dims{3, 50}));
  for (int64_t i = 0; i < few.size(); ++i) {
    const double wanted =
        static_cast<double>(i / 50) * 5000 + (static_cast<double>(i % 50) + 0.5) * 100 - 0.5;
    ASSERT_TRUE(std::fabs(few.as<float>()[i] - wanted) <= 15000 * 0x1p-22) << i;
  }
}

}  // namespace
}  // namespace ark
