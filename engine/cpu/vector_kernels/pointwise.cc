// Pointwise operators: runs in which each operand either moves on or stays.
#include <algorithm>

#include "base/ir/kernels/common.h"
#include "base/ir/keys.h"
#include "base/ir/pointwise_host.h"
#include "engine/cpu/vector_kernels/vector_kernels.h"

namespace ark::vector_kernels {

// By whole vectors where they lie; what is left by way of one.
void run_pointwise(Op op, const float* a, const float* b, const pointwise::Parameters& of, float* out,
                   int64_t n) {
  const auto p = static_cast<float>(of.p), q = static_cast<float>(of.q);
  const int64_t whole = n / 16 * 16;
  if (whole) vectors().pointwise(op, a, b, p, q, out, whole);
  if (n == whole) return;
  float left[16]{}, right[16]{};
  std::copy(a + whole, a + n, left);
  if (b) std::copy(b + whole, b + n, right);
  vectors().pointwise(op, left, right, p, q, left, 16);
  std::copy_n(left, n - whole, out + whole);
}

namespace {

using kernels::elements_of, kernels::kBlock, kernels::Index;

void unary_tile(const KernelCall& call, int64_t tile) {
  if (!is_f32(call)) return find_kernel(call.op)->tile(call, tile);
  const auto [begin, end] = elements_of(tile, call.outputs[0].size());
  const pointwise::Row& row = *pointwise::row_of(call.op);
  run_pointwise(call.op, call.inputs[0].as<float>() + begin, nullptr,
                pointwise::parameters_of(row, *call.attributes), call.outputs[0].as<float>() + begin,
                end - begin);
}

void clip_tile(const KernelCall& call, int64_t tile) {
  if (!is_f32(call)) return find_kernel(call.op)->tile(call, tile);
  const auto [begin, end] = elements_of(tile, call.outputs[0].size());
  const auto bound = [&](std::size_t i, float other) {
    return kernels::has_input(call, i) ? kernels::scalar<float>(call, i, "a bound of Clip") : other;
  };
  constexpr float kMost = std::numeric_limits<float>::max();
  run_pointwise(call.op, call.inputs[0].as<float>() + begin, nullptr, {bound(1, -kMost), bound(2, kMost)},
                call.outputs[0].as<float>() + begin, end - begin);
}

// How an operand walks along the output: `run` elements at a time in which it moves on (step 1) or stays (0).
struct Walk {
  Dims dims;  // of the output without the run
  int64_t run = 1;
  Index a{}, b{};
  int64_t a_step = 0, b_step = 0;
};
Walk walk_of(const TensorView& a, const TensorView& b, std::span<const int64_t> out) {
  Walk walk;
  walk.dims.assign(out.begin(), out.end());
  walk.a = kernels::broadcast_strides(a, out), walk.b = kernels::broadcast_strides(b, out);
  // Axes of one element say nothing; from the last on, axes belong to the run while both operands go on as they do.
  bool is_open = false;
  while (!walk.dims.empty()) {
    const std::size_t axis = walk.dims.size() - 1;
    if (walk.dims[axis] != 1) {
      if (!is_open) walk.a_step = walk.a[axis], walk.b_step = walk.b[axis];
      if (walk.a[axis] != walk.a_step * walk.run || walk.b[axis] != walk.b_step * walk.run) break;
      is_open = true;
      walk.run *= walk.dims[axis];
    }
    walk.dims.pop_back();
  }
  return walk;
}

constexpr int64_t kShortRun = 32;  // shorter ones are gathered first

// Operand elements [first, first + n) of the output, where they lie if they do in one piece.
const float* operand(const TensorView& view, std::span<const int64_t> out, const Index& strides,
                     int64_t first, int64_t n, float* room) {
  if (view.size() == kernels::product(out)) return view.as<float>() + first;
  kernels::load_broadcast(view, out, strides, first, n, room);
  return room;
}

void binary_tile(const KernelCall& call, int64_t tile) {
  const TensorView &a = call.inputs[0], &b = call.inputs[1], &y = call.outputs[0];
  if (!is_f32(call)) return find_kernel(call.op)->tile(call, tile);
  const auto [begin, end] = elements_of(tile, y.size());
  const pointwise::Parameters parameters =
      pointwise::parameters_of(*pointwise::row_of(call.op), *call.attributes);
  const Walk walk = walk_of(a, b, y.shape());
  float left[kBlock], right[kBlock];
  if (walk.run < kShortRun) {
    const Index sa = kernels::broadcast_strides(a, y.shape()), sb = kernels::broadcast_strides(b, y.shape());
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t n = std::min(kBlock, end - i);
      run_pointwise(call.op, operand(a, y.shape(), sa, i, n, left), operand(b, y.shape(), sb, i, n, right),
                    parameters, y.as<float>() + i, n);
    }
    return;
  }
  kernels::Odometer at(walk.dims, {walk.a, walk.b}, begin / walk.run);
  for (int64_t i = begin; i < end; at.next()) {
    const int64_t within = i % walk.run, count = std::min(end - i, walk.run - within);
    const float *x = a.as<float>() + at.offset(0) + within * walk.a_step,
                *z = b.as<float>() + at.offset(1) + within * walk.b_step;
    const int64_t block = walk.a_step && walk.b_step ? count : kBlock;
    if (!walk.a_step) std::fill_n(left, std::min(count, block), *x);
    if (!walk.b_step) std::fill_n(right, std::min(count, block), *z);
    for (int64_t j = 0; j < count; j += block)
      run_pointwise(call.op, walk.a_step ? x + j : left, walk.b_step ? z + j : right, parameters,
                    y.as<float>() + i + j, std::min(block, count - j));
    i += count;
  }
}

}  // namespace

void register_pointwise(std::vector<Kernel>& by_op) {
  for (const pointwise::Row& row : pointwise::rows()) {
    Kernel& kernel = by_op[static_cast<std::size_t>(row.op)];
    if (!pointwise::is_fusible(row) || row.op == Op::kClip) continue;
    if (row.arity == 1) kernel.tile = unary_tile;
    if (row.arity == 2) kernel.tile = binary_tile;
  }
  by_op[static_cast<std::size_t>(Op::kClip)].tile = clip_tile;
}

}  // namespace ark::vector_kernels
