// Linear quantization and products of quantized operands, by their definitions.
#include <cmath>

#include "base/ir/kernels/common.h"
#include "base/ir/kernels/integer_product.h"
#include "base/ir/keys.h"

namespace ark::kernels {
namespace {

// Which scale and zero point belong to element i of x: per tensor, per axis, or blocked along the axis. Made
// anew by every tile: the sizes are those of a call, and a wrong one must not be read.
struct ScaleIndex {
  int64_t inner = 1, n = 1, block = 0, blocks = 1;
  bool single = true;

  explicit ScaleIndex(const KernelCall& call) {
    const TensorView &x = call.inputs[0], &scale = call.inputs[1];
    if (has_input(call, 2) && call.inputs[2].size() != scale.size())
      misfit("zero points " + dims_text(call.inputs[2].shape()) + " and scales " + dims_text(scale.shape()) +
             " must be equally many");
    if (scale.size() == 1) return;
    single = false;
    const auto axis = static_cast<std::size_t>(norm_axis(call.attributes->get_or(key::kAxis, 1), x.rank));
    if (x.rank > 0) {
      inner = product(x.shape().subspan(axis + 1));
      n = x.dims[axis];
    }
    block = call.attributes->get_or(key::kBlockSize, 0);
    if (block > 0 && n > 0) blocks = (n - 1) / block + 1;
    const int64_t wanted = block > 0 && n > 0 ? x.size() / n * blocks : n;
    if (block < 0 || scale.size() != wanted)
      misfit("scales " + dims_text(scale.shape()) + " do not fit " + dims_text(x.shape()));
  }
  int64_t operator()(int64_t i) const {
    if (single) return 0;
    if (block == 0) return i / inner % n;
    return (i / (inner * n) * blocks + i / inner % n / block) * inner + i % inner;
  }
};

std::vector<OutputType> scaled_shapes(const KernelCall& call) {
  const ScaleIndex checked(call);
  return by_rule(call);
}
void dequantize_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const ScaleIndex index(call);
  const auto default_zero = static_cast<double>(call.attributes->get_or(key::kZeroPoint, 0));
  const auto [begin, end] = elements_of(tile, y.size());
  for (int64_t i = begin; i < end; ++i) {
    const int64_t s = index(i);
    // Codes are integers of 32 bits at most, or floats: their difference as f64 is exact.
    const double zero = has_input(call, 2) ? load_one<double>(call.inputs[2], s) : default_zero;
    store_one<float>(y, i,
                     static_cast<float>(load_one<double>(x, i) - zero) * load_one<float>(call.inputs[1], s));
  }
}

// NaN (-inf by a scale of inf, which quantizers write for masks) is the lowest, as in ONNX Runtime.
int64_t within(double v, double low, double high) {
  return static_cast<int64_t>(v > low ? std::min(v, high) : low);
}

std::pair<double, double> range_of(DType type) {
  const double count = std::exp2(bits_of(type)), low = is_signed(type) ? -count / 2 : 0;
  return {low, low + count - 1};
}
void quantize_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const ScaleIndex index(call);
  const auto [begin, end] = elements_of(tile, y.size());
  if (is_floating(y.dtype)) {  // without zero points
    for (int64_t i = begin; i < end; ++i)
      store_one<float>(y, i, load_one<float>(x, i) / load_one<float>(call.inputs[1], index(i)));
    return;
  }
  const auto [low, high] = range_of(y.dtype);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t s = index(i);
    const double zero = has_input(call, 2) ? load_one<double>(call.inputs[2], s) : 0;
    const double v =
        std::nearbyint(static_cast<double>(load_one<float>(x, i) / load_one<float>(call.inputs[1], s))) +
        zero;
    store_one<int64_t>(y, i, within(v, low, high));
  }
}

void dynamic_tile(const KernelCall& call, int64_t) {
  const TensorView& x = call.inputs[0];
  float low = 0, high = 0;
  for (int64_t i = 0; i < x.size(); ++i) {
    low = std::min(low, load_one<float>(x, i));
    high = std::max(high, load_one<float>(x, i));
  }
  const float scale = high == low ? 1.f : (high - low) / 255.f;
  const auto zero = static_cast<float>(within(std::nearbyint(-low / scale), 0, 255));
  for (int64_t i = 0; i < x.size(); ++i)
    store_one<int64_t>(call.outputs[0], i,
                       within(std::nearbyint(load_one<float>(x, i) / scale) + zero, 0, 255));
  if (call.outputs[1].present()) store_one<float>(call.outputs[1], 0, scale);
  if (call.outputs[2].present()) store_one<float>(call.outputs[2], 0, zero);
}

// One zero point for all, or one for each of `count` rows or columns.
void check_zeros(const KernelCall& call, std::size_t input, int64_t count, const char* of) {
  if (!has_input(call, input)) return;
  const int64_t size = call.inputs[input].size();
  if (size != 1 && size != count)
    misfit("MatMulInteger: " + std::to_string(size) + " zero points for " + std::to_string(count) + of);
}
void check_integer_zeros(const KernelCall& call, int64_t m, int64_t n) {
  check_zeros(call, 2, m, " rows");
  check_zeros(call, 3, n, " columns");
}

std::vector<OutputType> integer_product_shapes(const KernelCall& call) {
  const TensorView &a = call.inputs[0], &b = call.inputs[1];
  if (a.rank < 2 || b.rank < 2) misfit("MatMulInteger of a vector");
  check_integer_zeros(call, a.dims[a.rank - 2], b.dims[b.rank - 1]);
  return by_rule(call);
}
// [batch..., M, K] x [batch..., K, N] of 8-bit integers, by tiles of rows x one panel of columns.
struct IntegerProduct {
  static constexpr int64_t kRows = 128, kPanel = kIntegerPanel;
  // Products of two differences of 8-bit numbers: so many of them add up exactly in f32 (2^8 x 255^2 < 2^24).
  static constexpr int64_t kChunk = 256;

  explicit IntegerProduct(const KernelCall& call)
      : a(call.inputs[0]),
        b(call.inputs[1]),
        y(call.outputs[0]),
        m(y.dims[y.rank - 2]),
        k(a.dims[a.rank - 1]),
        n(y.dims[y.rank - 1]),
        row_tiles((m + kRows - 1) / kRows),
        panels((n + kPanel - 1) / kPanel) {
    check_integer_zeros(call, m, n);
  }

  const TensorView &a, &b, &y;
  const int64_t m, k, n, row_tiles, panels;
};
int64_t integer_grid(const KernelCall& call) {
  const IntegerProduct p(call);
  return product(p.y.shape().first(static_cast<std::size_t>(p.y.rank) - 2)) * p.row_tiles * p.panels;
}

// One zero for all, or one for each of [first, first + count).
std::vector<float> zeros_of(const KernelCall& call, std::size_t input, int64_t first, int64_t count) {
  std::vector<float> zeros(static_cast<std::size_t>(count));
  if (!has_input(call, input)) return zeros;
  const TensorView& view = call.inputs[input];
  if (view.size() == 1)
    std::fill(zeros.begin(), zeros.end(), load_one<float>(view, 0));
  else
    load(view, first, count, zeros.data());
  return zeros;
}

void plain_panel_product(const float* x, const float* w, int64_t rows, int32_t k, float*, float* sums) {
  std::fill(sums, sums + rows * kIntegerPanel, 0.f);
  for (int64_t r = 0; r < rows; ++r)
    for (int32_t i = 0; i < k; ++i)
      for (int64_t j = 0; j < kIntegerPanel; ++j)
        sums[r * kIntegerPanel + j] += x[r * k + i] * w[i * kIntegerPanel + j];
}

// size == the product of `factors`, all positive; nothing here can overflow.
bool is_product(int64_t size, std::initializer_list<int64_t> factors) {
  for (const int64_t f : factors) {
    if (size % f != 0) return false;
    size /= f;
  }
  return size == 1;
}

// Sizes of a MatMulNBits whose operands fit them, as ONNX Runtime demands. Made anew by every tile, as above.
struct NBits {
  int64_t k, n, bits, block, blocks;
  int64_t bytes, zero_bytes;  // of a block of codes, of the zero points of a column

  explicit NBits(const KernelCall& call) {
    const Attributes& a = *call.attributes;
    k = a.get(key::kK), n = a.get(key::kN), bits = a.get_or(key::kBits, 4), block = a.get(key::kBlockSize);
    const bool sane =
        k > 0 && n > 0 && (bits == 2 || bits == 4 || bits == 8) && block >= 16 && block % 8 == 0;
    if (!sane) misfit("MatMulNBits: K, N, bits or block_size out of range");
    blocks = (k - 1) / block + 1;
    bytes = block / 8 * bits;
    const int64_t per_byte = 8 / bits;
    zero_bytes = (blocks - 1) / per_byte + 1;
    const TensorView& x = call.inputs[0];
    if (x.rank == 0 || x.dims[x.rank - 1] != k) misfit("MatMulNBits: the input's last axis is not K");
    const auto check = [&](std::size_t input, const char* what, bool fits) {
      if (!fits)
        misfit("MatMulNBits: " + std::string(what) + " " + dims_text(call.inputs[input].shape()) +
               " do not fit K " + std::to_string(k) + ", N " + std::to_string(n) + " and block_size " +
               std::to_string(block));
    };
    const auto size = [&](std::size_t input) { return call.inputs[input].size(); };
    check(1, "weights", call.inputs[1].dtype == DType::kU8 && is_product(size(1), {n, blocks, bytes}));
    check(2, "scales", is_product(size(2), {n, blocks}));
    if (has_input(call, 3))
      check(3, "zero points",
            call.inputs[3].dtype == DType::kU8 ? is_product(size(3), {n, zero_bytes})
                                               : is_product(size(3), {n, blocks}));
    if (has_input(call, 4)) check(4, "g_idx", size(4) == k || is_product(size(4), {blocks, block}));
    if (has_input(call, 5)) check(5, "bias", size(5) == n);
  }
};

std::vector<OutputType> nbits_shapes(const KernelCall& call) {
  const NBits checked(call);
  return by_rule(call);
}
int64_t nbits_grid(const KernelCall& call) { return call.attributes->get(key::kN); }
// One output column: its weights are decoded once for all rows.
void nbits_tile(const KernelCall& call, int64_t column) {
  const TensorView &x = call.inputs[0], &b = call.inputs[1], &scales = call.inputs[2], &y = call.outputs[0];
  const auto [k, n, bits, block, blocks, bytes, zero_bytes] = NBits(call);
  const auto field = [bits = bits](const std::byte* from, int64_t i) {
    const int64_t per_byte = 8 / bits;
    return std::to_integer<int>(from[i / per_byte]) >> (i % per_byte * bits) & ((1 << bits) - 1);
  };
  std::vector<float> weights(static_cast<std::size_t>(k)), row(static_cast<std::size_t>(k));
  for (int64_t i = 0; i < k; ++i) {
    const int64_t g = has_input(call, 4) ? load_one<int64_t>(call.inputs[4], i) : i / block;
    if (g < 0 || g >= blocks)
      misfit("MatMulNBits: g_idx names block " + std::to_string(g) + " of " + std::to_string(blocks));
    float zero = static_cast<float>(1 << (bits - 1));
    if (has_input(call, 3))
      zero = call.inputs[3].dtype == DType::kU8
                 ? static_cast<float>(field(call.inputs[3].data + column * zero_bytes, g))
                 : load_one<float>(call.inputs[3], column * blocks + g);
    const int q = field(b.data + (column * blocks + i / block) * bytes, i % block);
    weights[i] = (static_cast<float>(q) - zero) * load_one<float>(scales, column * blocks + g);
  }
  const float bias = has_input(call, 5) ? load_one<float>(call.inputs[5], column) : 0;
  for (int64_t m = 0; m < x.size() / k; ++m) {
    load(x, m * k, k, row.data());
    float sum = 0;
    for (int64_t i = 0; i < k; ++i) sum += row[i] * weights[i];
    store_one<float>(y, m * n + column, sum + bias);
  }
}

}  // namespace

void integer_product_tile(const KernelCall& call, int64_t tile, PanelProduct product) {
  const IntegerProduct p(call);
  const auto outer = p.y.shape().first(static_cast<std::size_t>(p.y.rank) - 2);
  TensorView ab = p.a, bb = p.b;
  ab.rank -= 2, bb.rank -= 2;
  const Odometer at(outer, {broadcast_strides(ab, outer), broadcast_strides(bb, outer)},
                    tile / p.panels / p.row_tiles);
  const int64_t row0 = tile / p.panels % p.row_tiles * IntegerProduct::kRows,
                column0 = tile % p.panels * IntegerProduct::kPanel;
  const int64_t rows = std::min(IntegerProduct::kRows, p.m - row0),
                width = std::min(IntegerProduct::kPanel, p.n - column0);
  const std::vector<float> a_zeros = zeros_of(call, 2, row0, rows),
                           b_zeros = zeros_of(call, 3, column0, width);
  std::vector<float> x(static_cast<std::size_t>(rows * IntegerProduct::kChunk)), packed(x.size()),
      w(static_cast<std::size_t>(IntegerProduct::kChunk * IntegerProduct::kPanel)),
      sums(static_cast<std::size_t>(rows * IntegerProduct::kPanel));
  std::vector<uint32_t> total(sums.size());  // modulo 2^32, as the standard's i32
  for (int64_t k0 = 0; k0 < p.k; k0 += IntegerProduct::kChunk) {
    const auto count = static_cast<int32_t>(std::min(IntegerProduct::kChunk, p.k - k0));
    for (int64_t r = 0; r < rows; ++r) {
      float* to = x.data() + r * count;
      load(p.a, (at.offset(0) * p.m + row0 + r) * p.k + k0, count, to);
      for (int32_t i = 0; i < count; ++i) to[i] -= a_zeros[r];
    }
    for (int32_t i = 0; i < count; ++i) {
      float* to = w.data() + i * IntegerProduct::kPanel;
      load(p.b, (at.offset(1) * p.k + k0 + i) * p.n + column0, width, to);
      for (int64_t j = 0; j < width; ++j) to[j] -= b_zeros[j];
    }
    product(x.data(), w.data(), rows, count, packed.data(), sums.data());
    for (std::size_t i = 0; i < sums.size(); ++i)
      total[i] += static_cast<uint32_t>(static_cast<int32_t>(sums[i]));
  }
  const int64_t batch = tile / p.panels / p.row_tiles;
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(p.y.as<int32_t>() + (batch * p.m + row0 + r) * p.n + column0,
                total.data() + r * IntegerProduct::kPanel, static_cast<std::size_t>(width) * sizeof(int32_t));
}

void register_quantized(std::vector<Kernel>& into) {
  into.push_back({Op::kDequantizeLinear, scaled_shapes, grid_by_elements, dequantize_tile});
  into.push_back({Op::kQuantizeLinear, scaled_shapes, grid_by_elements, quantize_tile});
  into.push_back({Op::kDynamicQuantizeLinear, by_rule, grid_one, dynamic_tile});
  into.push_back(
      {Op::kMatMulInteger, integer_product_shapes, integer_grid,
       [](const KernelCall& call, int64_t tile) { integer_product_tile(call, tile, plain_panel_product); }});
  into.push_back({Op::kMatMulNBits, nbits_shapes, nbits_grid, nbits_tile});
}

}  // namespace ark::kernels
