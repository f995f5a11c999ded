// Linear quantisation and products of quantised operands, by their definitions.
#include <cmath>

#include "engine/cpu/kernels/registry.h"

namespace ark::kernels {
namespace {

// Which scale belongs to element i of x: per tensor, per axis, or blocked along the axis.
struct ScaleIndex {
  int64_t inner = 1, n = 1, block = 0, blocks = 1;
  bool single = true;
  int64_t operator()(int64_t i) const {
    if (single) return 0;
    if (block == 0) return i / inner % n;
    return (i / (inner * n) * blocks + i / inner % n / block) * inner + i % inner;
  }
};
ScaleIndex scale_index(const KernelCall& call) {
  const TensorView &x = call.inputs[0], &scale = call.inputs[1];
  ScaleIndex s;
  if (scale.size() == 1) return s;
  const auto axis = static_cast<std::size_t>(norm_axis(call.attributes->integer_or("axis", 1), x.rank));
  s.single = false;
  s.inner = product(x.shape().subspan(axis + 1));
  s.n = x.dims[axis];
  s.block = call.attributes->integer_or("block_size", 0);
  if (s.block) s.blocks = scale.dims[axis];
  const int64_t wanted = s.block ? x.size() / s.n * s.blocks : s.n;
  if (scale.size() != wanted || (s.block && s.blocks * s.block < s.n))
    misfit("scales " + dims_text(scale.shape()) + " do not fit " + dims_text(x.shape()));
  return s;
}

std::vector<OutputType> dequantize_shapes(const KernelCall& call) {
  return {{call.inputs[1].dtype, dims_of(call.inputs[0])}};
}
void dequantize_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const ScaleIndex index = scale_index(call);
  const int64_t default_zero = call.attributes->integer_or("zero_point", 0);
  const auto [begin, end] = elements_of(tile, y.size());
  for (int64_t i = begin; i < end; ++i) {
    const int64_t s = index(i);
    const auto zero = has_input(call, 2) ? load_one<int64_t>(call.inputs[2], s) : default_zero;
    store_one<float>(y, i,
                     static_cast<float>(load_one<int64_t>(x, i) - zero) * load_one<float>(call.inputs[1], s));
  }
}

std::pair<double, double> range_of(DType type) {
  switch (type) {
    case DType::kI8:
      return {-128, 127};
    case DType::kI4:
      return {-8, 7};
    case DType::kU4:
      return {0, 15};
    case DType::kU16:
      return {0, 65535};
    case DType::kI16:
      return {-32768, 32767};
    default:
      return {0, 255};
  }
}
std::vector<OutputType> quantize_shapes(const KernelCall& call) {
  const auto fallback = static_cast<DType>(call.attributes->integer_or("to", int64_t(DType::kU8)));
  const DType type = has_input(call, 2) ? call.inputs[2].dtype : fallback;
  return {{type, dims_of(call.inputs[0])}};
}
void quantize_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const ScaleIndex index = scale_index(call);
  const auto [low, high] = range_of(y.dtype);
  const auto [begin, end] = elements_of(tile, y.size());
  for (int64_t i = begin; i < end; ++i) {
    const int64_t s = index(i);
    const double zero = has_input(call, 2) ? load_one<double>(call.inputs[2], s) : 0;
    const double v =
        std::nearbyint(static_cast<double>(load_one<float>(x, i) / load_one<float>(call.inputs[1], s))) +
        zero;
    store_one<int64_t>(y, i, static_cast<int64_t>(std::clamp(v, low, high)));
  }
}

std::vector<OutputType> dynamic_shapes(const KernelCall& call) {
  return {{DType::kU8, dims_of(call.inputs[0])}, {DType::kF32, {}}, {DType::kU8, {}}};
}
void dynamic_tile(const KernelCall& call, int64_t) {
  const TensorView& x = call.inputs[0];
  float low = 0, high = 0;
  for (int64_t i = 0; i < x.size(); ++i) {
    low = std::min(low, load_one<float>(x, i));
    high = std::max(high, load_one<float>(x, i));
  }
  const float scale = high == low ? 1.f : (high - low) / 255.f;
  const float zero = std::nearbyint(std::clamp(-low / scale, 0.f, 255.f));
  for (int64_t i = 0; i < x.size(); ++i)
    store_one<int64_t>(
        call.outputs[0], i,
        static_cast<int64_t>(std::clamp(std::nearbyint(load_one<float>(x, i) / scale) + zero, 0.f, 255.f)));
  if (call.outputs[1].present()) store_one<float>(call.outputs[1], 0, scale);
  if (call.outputs[2].present()) store_one<float>(call.outputs[2], 0, zero);
}

std::vector<OutputType> integer_shapes(const KernelCall& call) {
  const TensorView &a = call.inputs[0], &b = call.inputs[1];
  if (a.rank < 2 || b.rank < 2 ||
      a.dims[static_cast<std::size_t>(a.rank) - 1] != b.dims[static_cast<std::size_t>(b.rank) - 2])
    misfit("MatMulInteger of " + dims_text(a.shape()) + " and " + dims_text(b.shape()));
  Dims dims = broadcast(a.shape().first(static_cast<std::size_t>(a.rank) - 2),
                        b.shape().first(static_cast<std::size_t>(b.rank) - 2));
  dims.push_back(a.dims[static_cast<std::size_t>(a.rank) - 2]);
  dims.push_back(b.dims[static_cast<std::size_t>(b.rank) - 1]);
  return {{DType::kI32, dims}};
}
// One row of the output a tile.
int64_t integer_grid(const KernelCall& call) {
  const TensorView& y = call.outputs[0];
  return product(y.shape().first(static_cast<std::size_t>(y.rank) - 1));
}
void integer_tile(const KernelCall& call, int64_t tile) {
  const TensorView &a = call.inputs[0], &b = call.inputs[1], &y = call.outputs[0];
  const int64_t k = a.dims[static_cast<std::size_t>(a.rank) - 1],
                n = b.dims[static_cast<std::size_t>(b.rank) - 1],
                m = y.dims[static_cast<std::size_t>(y.rank) - 2];
  const auto outer = y.shape().first(static_cast<std::size_t>(y.rank) - 2);
  TensorView ab = a, bb = b;
  ab.rank -= 2, bb.rank -= 2;
  Index sa = broadcast_strides(ab, outer), sb = broadcast_strides(bb, outer);
  const Odometer at(outer, {sa, sb}, tile / m);
  const int64_t a_base = (at.offset(0) * m + tile % m) * k, b_base = at.offset(1) * k * n;
  const auto zero = [&](std::size_t input, int64_t i) {
    if (!has_input(call, input)) return int64_t{0};
    return load_one<int64_t>(call.inputs[input], call.inputs[input].size() == 1 ? 0 : i);
  };
  const int64_t a_zero = zero(2, tile % m);
  std::vector<int64_t> sum(static_cast<std::size_t>(n)), row(static_cast<std::size_t>(n));
  for (int64_t i = 0; i < k; ++i) {
    const int64_t v = load_one<int64_t>(a, a_base + i) - a_zero;
    load(b, b_base + i * n, n, row.data());
    for (int64_t j = 0; j < n; ++j)
      sum[static_cast<std::size_t>(j)] += v * (row[static_cast<std::size_t>(j)] - zero(3, j));
  }
  store(y, tile * n, n, sum.data());
}

std::vector<OutputType> nbits_shapes(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  Dims dims = dims_of(x);
  if (dims.empty() || dims.back() != call.attributes->integer("K"))
    misfit("MatMulNBits: the input's last axis is not K");
  dims.back() = call.attributes->integer("N");
  return {{x.dtype, dims}};
}
int64_t nbits_grid(const KernelCall& call) { return call.attributes->integer("N"); }
// One output column: its weights are decoded once for all rows.
void nbits_tile(const KernelCall& call, int64_t column) {
  const TensorView &x = call.inputs[0], &b = call.inputs[1], &scales = call.inputs[2], &y = call.outputs[0];
  const Attributes& a = *call.attributes;
  const int64_t k = a.integer("K"), n = a.integer("N"), bits = a.integer_or("bits", 4),
                block = a.integer("block_size");
  const int64_t blocks = (k + block - 1) / block, bytes = block * bits / 8,
                zero_bytes = (blocks * bits + 7) / 8;
  const auto field = [&](const std::byte* from, int64_t i) {
    const int64_t per_byte = 8 / bits;
    return std::to_integer<int>(from[i / per_byte]) >> (i % per_byte * bits) & ((1 << bits) - 1);
  };
  std::vector<float> weights(static_cast<std::size_t>(k)), row(static_cast<std::size_t>(k));
  for (int64_t i = 0; i < k; ++i) {
    const int64_t g = has_input(call, 4) ? load_one<int64_t>(call.inputs[4], i) : i / block;
    float zero = static_cast<float>(1 << (bits - 1));
    if (has_input(call, 3))
      zero = call.inputs[3].dtype == DType::kU8
                 ? static_cast<float>(field(call.inputs[3].data + column * zero_bytes, g))
                 : load_one<float>(call.inputs[3], column * blocks + g);
    const int q = field(b.data + (column * blocks + i / block) * bytes, i % block);
    weights[static_cast<std::size_t>(i)] =
        (static_cast<float>(q) - zero) * load_one<float>(scales, column * blocks + g);
  }
  const float bias = has_input(call, 5) ? load_one<float>(call.inputs[5], column) : 0;
  for (int64_t m = 0; m < x.size() / k; ++m) {
    load(x, m * k, k, row.data());
    float sum = 0;
    for (int64_t i = 0; i < k; ++i)
      sum += row[static_cast<std::size_t>(i)] * weights[static_cast<std::size_t>(i)];
    store_one<float>(y, m * n + column, sum + bias);
  }
}

}  // namespace

void register_quantized(std::vector<Kernel>& into) {
  into.push_back({Op::kDequantizeLinear, dequantize_shapes, grid_by_elements, dequantize_tile});
  into.push_back({Op::kQuantizeLinear, quantize_shapes, grid_by_elements, quantize_tile});
  into.push_back({Op::kDynamicQuantizeLinear, dynamic_shapes, grid_one, dynamic_tile});
  into.push_back({Op::kMatMulInteger, integer_shapes, integer_grid, integer_tile});
  into.push_back({Op::kMatMulNBits, nbits_shapes, nbits_grid, nbits_tile});
}

}  // namespace ark::kernels
