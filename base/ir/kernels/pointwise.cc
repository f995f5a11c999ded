// Pointwise operators: a block of each operand is loaded (broadcast, converted), computed, stored.
#include "base/ir/kernels/registry.h"
#include "base/ir/keys.h"
#include "base/ir/pointwise_math.h"

namespace ark::kernels {
namespace {

void unary_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const pointwise::Parameters parameters = pointwise::parameters_of(call.op, *call.attributes);
  const auto [begin, end] = elements_of(tile, y.size());
  with_compute_type(x.dtype, [&, begin = begin, end = end](auto type) {
    using C = decltype(type);
    C block[kBlock];
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t n = std::min(kBlock, end - i);
      load(x, i, n, block);
      for (int64_t j = 0; j < n; ++j)
        block[j] = pointwise::unary<C>(call.op, block[j], static_cast<C>(parameters.p),
                                       static_cast<C>(parameters.q));
      store(y, i, n, block);
    }
  });
}

std::vector<OutputType> unary_shapes(const KernelCall& call) {
  std::vector<OutputType> out = like_first(call);
  if (call.op == Op::kIsNaN || call.op == Op::kIsInf || call.op == Op::kNot) out[0].dtype = DType::kBool;
  if (call.op == Op::kCast) out[0].dtype = static_cast<DType>(call.attributes->get(key::kTo));
  return out;
}

void binary_tile(const KernelCall& call, int64_t tile) {
  const TensorView &a = call.inputs[0], &b = call.inputs[1], &y = call.outputs[0];
  const auto [begin, end] = elements_of(tile, y.size());
  const Index sa = broadcast_strides(a, y.shape()), sb = broadcast_strides(b, y.shape());
  const int64_t flag = call.attributes->get_or(call.op == Op::kMod ? key::kFmod : key::kLeft, 0);
  with_compute_type(a.dtype, [&, begin = begin, end = end](auto type) {
    using C = decltype(type);
    C x[kBlock], z[kBlock];
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t n = std::min(kBlock, end - i);
      load_broadcast(a, y.shape(), sa, i, n, x);
      load_broadcast(b, y.shape(), sb, i, n, z);
      if (pointwise::is_comparison(call.op)) {
        for (int64_t j = 0; j < n; ++j) x[j] = static_cast<C>(pointwise::compares(call.op, x[j], z[j]));
      } else {
        switch (call.op) {  // the common ones without a switch an element
          case Op::kAdd:
            for (int64_t j = 0; j < n; ++j) x[j] = pointwise::binary<C>(Op::kAdd, x[j], z[j], 0);
            break;
          case Op::kMul:
            for (int64_t j = 0; j < n; ++j) x[j] = pointwise::binary<C>(Op::kMul, x[j], z[j], 0);
            break;
          default:
            for (int64_t j = 0; j < n; ++j) x[j] = pointwise::binary<C>(call.op, x[j], z[j], flag);
        }
      }
      store(y, i, n, x);
    }
  });
}

std::vector<OutputType> binary_shapes(const KernelCall& call) {
  const bool to_bool =
      pointwise::is_comparison(call.op) || call.op == Op::kAnd || call.op == Op::kOr || call.op == Op::kXor;
  return {{to_bool ? DType::kBool : call.inputs[0].dtype,
           broadcast(call.inputs[0].shape(), call.inputs[1].shape())}};
}

std::vector<OutputType> where_shapes(const KernelCall& call) {
  const Dims ab = broadcast(call.inputs[1].shape(), call.inputs[2].shape());
  return {{call.inputs[1].dtype, broadcast(call.inputs[0].shape(), ab)}};
}

void where_tile(const KernelCall& call, int64_t tile) {
  const TensorView& y = call.outputs[0];
  const auto [begin, end] = elements_of(tile, y.size());
  Index strides[3];
  for (std::size_t k = 0; k < 3; ++k) strides[k] = broadcast_strides(call.inputs[k], y.shape());
  with_compute_type(y.dtype, [&, begin = begin, end = end](auto type) {
    using C = decltype(type);
    int64_t condition[kBlock];
    C a[kBlock], b[kBlock];
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t n = std::min(kBlock, end - i);
      load_broadcast(call.inputs[0], y.shape(), strides[0], i, n, condition);
      load_broadcast(call.inputs[1], y.shape(), strides[1], i, n, a);
      load_broadcast(call.inputs[2], y.shape(), strides[2], i, n, b);
      for (int64_t j = 0; j < n; ++j) a[j] = condition[j] ? a[j] : b[j];
      store(y, i, n, a);
    }
  });
}

constexpr std::string_view kLowBound = "the lower bound of Clip", kHighBound = "the upper bound of Clip";

std::vector<OutputType> clip_shapes(const KernelCall& call) {
  if (has_input(call, 1)) check_scalar(call, 1, kLowBound);
  if (has_input(call, 2)) check_scalar(call, 2, kHighBound);
  return like_first(call);
}

void clip_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const auto [begin, end] = elements_of(tile, y.size());
  with_compute_type(x.dtype, [&, begin = begin, end = end](auto type) {
    using C = decltype(type);
    C block[kBlock];
    const bool has_low = has_input(call, 1), has_high = has_input(call, 2);
    const C low = has_low ? scalar<C>(call, 1, kLowBound) : C{0},
            high = has_high ? scalar<C>(call, 2, kHighBound) : C{0};
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t n = std::min(kBlock, end - i);
      load(x, i, n, block);
      for (int64_t j = 0; j < n; ++j) {
        if (has_low && block[j] < low) block[j] = low;
        if (has_high && block[j] > high) block[j] = high;
      }
      store(y, i, n, block);
    }
  });
}

}  // namespace

void register_pointwise(std::vector<Kernel>& into) {
  for (int i = 0; i < static_cast<int>(Op::kCount); ++i) {
    const Op op = static_cast<Op>(i);
    if (is_unary_pointwise(op)) into.push_back({op, unary_shapes, grid_by_elements, unary_tile});
    if (is_binary_pointwise(op)) into.push_back({op, binary_shapes, grid_by_elements, binary_tile});
  }
  into.push_back({Op::kWhere, where_shapes, grid_by_elements, where_tile});
  into.push_back({Op::kClip, clip_shapes, grid_by_elements, clip_tile});
}

}  // namespace ark::kernels
