// Sums, means and extremes over neighbouring axes.
#include "engine/cpu/vector_kernels/reduce.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/ir/kernels/common.h"
#include "base/ir/keys.h"
#include "engine/cpu/vector_kernels/vector_kernels.h"

namespace ark::vector_kernels {
namespace {

using kernels::product;

constexpr int kLanes = 32;
constexpr int64_t kPart = 1024;  // elements that are summed up in one go: sums of sums err less

// In lanes, then these, then what is left.
template <class Join>
float joined(const float* x, int64_t n, float start, Join join) {
  using Four [[gnu::vector_size(16)]] = float;
  Four lanes[kLanes / 4];
  for (Four& lane : lanes) lane = Four{start, start, start, start};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes / 4; ++l) {
      Four v;
      std::memcpy(&v, x + i + 4 * l, sizeof v);
      lanes[l] = join(v, lanes[l]);
    }
  }
  for (int half = kLanes / 8; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] = join(lanes[l + half], lanes[l]);
  float all = lanes[0][0];
  for (int l = 1; l < 4; ++l) all = join(lanes[0][l], all);
  for (; i < n; ++i) all = join(x[i], all);
  return all;
}

constexpr auto kLarger = [](auto x, auto best) { return ((x > best) | (x != x)) ? x : best; };
constexpr auto kSmaller = [](auto x, auto best) { return ((x < best) | (x != x)) ? x : best; };

float one_of(Op op, const float* x, int64_t n) {
  if (op == Op::kReduceMax) return largest_of(x, n);
  if (op == Op::kReduceMin) return smallest_of(x, n);
  return sum_of(x, n);
}

// x as [outer, n, inner], of which the n are joined.
struct Joined {
  int64_t outer = 1, n = 1, inner = 1;
  bool fits = false;
  explicit Joined(const KernelCall& call) {
    const TensorView& x = call.inputs[0];
    std::array<bool, 8> reduced{};
    const auto axes = kernels::ints_operand(call, key::kAxes, 1);
    if (!axes || axes->empty()) {
      if (call.attributes->get_or(key::kNoopWithEmptyAxes, 0)) return;
      reduced.fill(true);
    } else {
      for (const int64_t axis : *axes)
        reduced[static_cast<std::size_t>(kernels::norm_axis(axis, x.rank))] = true;
    }
    int stage = 0;  // before, among, behind the reduced ones
    for (std::size_t a = 0; a < static_cast<std::size_t>(x.rank); ++a) {
      if (x.dims[a] == 1) continue;
      if (reduced[a] ? stage == 2 : false) return;
      stage = reduced[a] ? 1 : stage == 1 ? 2 : stage;
      (stage == 0 ? outer : stage == 1 ? n : inner) *= x.dims[a];
    }
    fits = n > 0;
  }
  static constexpr int64_t kColumns = 1024;
  int64_t rows_of_tile() const { return std::max<int64_t>(1, kernels::kTileElements / n); }
  int64_t column_parts() const { return (inner + kColumns - 1) / kColumns; }
  int64_t tiles() const {
    return inner == 1 ? (outer + rows_of_tile() - 1) / rows_of_tile() : outer * column_parts();
  }
};

bool can_join(const KernelCall& call) {
  // Axes that only the data tell are no matter of sizes, as grids are.
  return is_f32({call.op, call.attributes, call.inputs.first(1), call.outputs}) &&
         call.inputs[0].size() > 0 && (call.attributes->has(key::kAxes) || !kernels::has_input(call, 1));
}

int64_t join_grid(const KernelCall& call) {
  if (can_join(call))
    if (const Joined j(call); j.fits) return j.tiles();
  return find_kernel(call.op)->grid(call);
}

void join_tile(const KernelCall& call, int64_t tile) {
  if (!can_join(call)) return find_kernel(call.op)->tile(call, tile);
  const Joined j(call);
  if (!j.fits) return find_kernel(call.op)->tile(call, tile);
  const auto* x = call.inputs[0].as<float>();
  auto* y = call.outputs[0].as<float>();
  const float count = call.op == Op::kReduceMean ? static_cast<float>(j.n) : 1;
  if (j.inner == 1) {
    for (int64_t r = tile * j.rows_of_tile(); r < std::min(j.outer, (tile + 1) * j.rows_of_tile()); ++r)
      y[r] = one_of(call.op, x + r * j.n, j.n) / count;
    return;
  }
  const int64_t outer = tile / j.column_parts(), column = tile % j.column_parts() * Joined::kColumns,
                width = std::min(Joined::kColumns, j.inner - column);
  const Op op = call.op == Op::kReduceMax ? Op::kMax : call.op == Op::kReduceMin ? Op::kMin : Op::kAdd;
  float* to = y + outer * j.inner + column;
  const float* from = x + outer * j.n * j.inner + column;
  float part[Joined::kColumns];
  for (int64_t begin = 0; begin < j.n; begin += kPart) {
    float* const into = begin ? part : to;
    std::copy_n(from + begin * j.inner, width, into);
    for (int64_t i = begin + 1; i < std::min(j.n, begin + kPart); ++i)
      run_pointwise(op, into, from + i * j.inner, {}, into, width);
    if (begin) run_pointwise(op, to, part, {}, to, width);
  }
  for (int64_t c = 0; c < width && count != 1; ++c) to[c] /= count;
}

}  // namespace

float sum_of(const float* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i += kPart)
    sum += joined(x + i, std::min(kPart, n - i), 0.f, [](auto v, auto all) { return all + v; });
  return static_cast<float>(sum);
}
float largest_of(const float* x, int64_t n) {
  return joined(x, n, -std::numeric_limits<float>::infinity(), kLarger);
}
float smallest_of(const float* x, int64_t n) {
  return joined(x, n, std::numeric_limits<float>::infinity(), kSmaller);
}

void register_reduce(std::vector<Kernel>& by_op) {
  for (const Op op : {Op::kReduceSum, Op::kReduceMean, Op::kReduceMax, Op::kReduceMin}) {
    Kernel& kernel = by_op[static_cast<std::size_t>(op)];
    kernel.grid = join_grid, kernel.tile = join_tile;
  }
}

}  // namespace ark::vector_kernels
