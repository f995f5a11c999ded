// Pointwise operators: a block of each operand is loaded (broadcast, converted), computed, stored.
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "base/ir/kernels/common.h"
#include "base/ir/kernels/pointwise_loop.h"
#include "base/ir/keys.h"
#include "base/ir/pointwise_host.h"
#include "base/texts.h"

namespace ark::kernels {

template <typename C>
PointwiseLoop<C> pointwise_loop(Op op) {
  PointwiseLoop<C> loop = nullptr;
  pointwise::visit(op, [&](auto operation) {
    using O = decltype(operation);
    if constexpr (pointwise::kComputes<O, C>)
      loop = [](C* x, const C* z, int64_t n, double p, double q) {
        for (int64_t j = 0; j < n; ++j)
          x[j] = pointwise::compute<O, C>(x[j], pointwise::operands_of(O::row) == 2 ? z[j] : C{}, p, q);
      };
  });
  return loop;
}
template PointwiseLoop<float> pointwise_loop(Op);
template PointwiseLoop<double> pointwise_loop(Op);
template PointwiseLoop<int64_t> pointwise_loop(Op);
template PointwiseLoop<uint64_t> pointwise_loop(Op);

namespace {

// f(C{}, loop) for the operator of the call and the type that it is computed in.
template <typename F>
void with_loop(const KernelCall& call, DType type, F f) {
  with_compute_type(type, [&](auto compute) {
    const auto loop = pointwise_loop<decltype(compute)>(call.op);
    if (!loop)
      unsupported(std::string(name_of(call.op)) + " is not computed on type " + std::string(name_of(type)));
    f(compute, loop);
  });
}

// What is only moved keeps its bits: the way through f32 makes another NaN of a signalling one.
TensorView as_bits(TensorView view) {
  if (!is_floating(view.dtype)) return view;
  if (bits_of(view.dtype) == 16) view.dtype = DType::kU16;
  if (bits_of(view.dtype) == 8) view.dtype = DType::kU8;
  return view;
}

// The text of element i as ONNX Runtime's Cast writes it.
std::string text_of_element(const TensorView& x, int64_t i) {
  if (x.dtype == DType::kU64) return std::to_string(load_one<uint64_t>(x, i));
  if (!is_floating(x.dtype)) return std::to_string(load_one<int64_t>(x, i));
  const double value = load_one<double>(x, i);
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-INF" : "INF";
  char text[32];
  std::snprintf(text, sizeof text, "%.8g", value);
  return text;
}

// The number at the front of a text; throws misfit where there is none, or it is out of range.
template <typename C>
C number_in(const std::string& text) {
  const char* const begin = text.c_str();
  char* end = nullptr;
  errno = 0;
  C number{};
  if constexpr (std::is_floating_point_v<C>)
    number = std::is_same_v<C, float> ? std::strtof(begin, &end) : std::strtod(begin, &end);
  else
    number = std::is_signed_v<C> ? static_cast<C>(std::strtoll(begin, &end, 10))
                                 : static_cast<C>(std::strtoull(begin, &end, 10));
  if (end == begin || errno == ERANGE)
    misfit("'" + escaped(text, 40) + "' is no number of type " +
           (std::is_floating_point_v<C> ? "float" : "integer"));
  return number;
}

void cast_texts(const TensorView& x, const TensorView& y, int64_t begin, int64_t end) {
  if (y.dtype == DType::kString)
    for (int64_t i = begin; i < end; ++i) y.as<uint64_t>()[i] = number_of_text(text_of_element(x, i));
  else
    with_compute_type(y.dtype, [&](auto type) {
      for (int64_t i = begin; i < end; ++i)
        store_one(y, i, number_in<decltype(type)>(text_numbered(x.as<uint64_t>()[i])));
    });
}

void unary_tile(const KernelCall& call, int64_t tile) {
  TensorView x = call.inputs[0], y = call.outputs[0];
  if ((x.dtype == DType::kString) != (y.dtype == DType::kString)) {
    const auto [begin, end] = elements_of(tile, y.size());
    return cast_texts(x, y, begin, end);
  }
  if (is_one_of(call.op, {Op::kIdentity, Op::kCast}) && x.dtype == y.dtype) x = as_bits(x), y = as_bits(y);
  const auto [p, q] = pointwise::parameters_of(*pointwise::row_of(call.op), *call.attributes);
  const auto [begin, end] = elements_of(tile, y.size());
  with_loop(call, x.dtype, [&, p = p, q = q, begin = begin, end = end](auto type, auto loop) {
    decltype(type) block[kBlock];
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t n = std::min(kBlock, end - i);
      load(x, i, n, block);
      loop(block, nullptr, n, p, q);
      store(y, i, n, block);
    }
  });
}

DType result_type(const KernelCall& call) {
  switch (pointwise::row_of(call.op)->result) {
    case pointwise::Result::kBool:
      return DType::kBool;
    case pointwise::Result::kAsked:
      return static_cast<DType>(call.attributes->get(key::kTo));
    case pointwise::Result::kSame:
      break;
  }
  return call.inputs[0].dtype;
}

std::vector<OutputType> unary_shapes(const KernelCall& call) {
  return {{result_type(call), dims_of(call.inputs[0])}};
}

void binary_tile(const KernelCall& call, int64_t tile) {
  const TensorView &a = call.inputs[0], &b = call.inputs[1], &y = call.outputs[0];
  const auto [begin, end] = elements_of(tile, y.size());
  const Index sa = broadcast_strides(a, y.shape()), sb = broadcast_strides(b, y.shape());
  const auto [p, q] = pointwise::parameters_of(*pointwise::row_of(call.op), *call.attributes);
  with_loop(call, a.dtype, [&, p = p, q = q, begin = begin, end = end](auto type, auto loop) {
    decltype(type) x[kBlock], z[kBlock];
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t n = std::min(kBlock, end - i);
      load_broadcast(a, y.shape(), sa, i, n, x);
      load_broadcast(b, y.shape(), sb, i, n, z);
      loop(x, z, n, p, q);
      store(y, i, n, x);
    }
  });
}

std::vector<OutputType> binary_shapes(const KernelCall& call) {
  return {{result_type(call), broadcast(call.inputs[0].shape(), call.inputs[1].shape())}};
}

std::vector<OutputType> where_shapes(const KernelCall& call) {
  const Dims ab = broadcast(call.inputs[1].shape(), call.inputs[2].shape());
  return {{call.inputs[1].dtype, broadcast(call.inputs[0].shape(), ab)}};
}

void where_tile(const KernelCall& call, int64_t tile) {
  const TensorView x = as_bits(call.inputs[1]), z = as_bits(call.inputs[2]), y = as_bits(call.outputs[0]);
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
      load_broadcast(x, y.shape(), strides[1], i, n, a);
      load_broadcast(z, y.shape(), strides[2], i, n, b);
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
    using F = pointwise::NumberOf<C>;
    using Limits = std::numeric_limits<C>;
    // A bound that is left out is the stored type's last finite number.
    const C most = x.dtype == DType::kF16    ? static_cast<C>(65504)
                   : x.dtype == DType::kBF16 ? static_cast<C>(0x1.fep127)
                                             : Limits::max();
    const C least = std::is_floating_point_v<C> ? static_cast<C>(-most) : Limits::lowest();
    const C low = has_input(call, 1) ? scalar<C>(call, 1, kLowBound) : least,
            high = has_input(call, 2) ? scalar<C>(call, 2, kHighBound) : most;
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t n = std::min(kBlock, end - i);
      load(x, i, n, block);
      for (int64_t j = 0; j < n; ++j) block[j] = static_cast<C>(pointwise::Clip::of<F>(block[j], low, high));
      store(y, i, n, block);
    }
  });
}

}  // namespace

void register_pointwise(std::vector<Kernel>& into) {
  for (const pointwise::Row& row : pointwise::rows()) {
    if (row.arity == 1) into.push_back({row.op, unary_shapes, grid_by_elements, unary_tile});
    if (row.arity == 2) into.push_back({row.op, binary_shapes, grid_by_elements, binary_tile});
  }
  into.push_back({Op::kWhere, where_shapes, grid_by_elements, where_tile});
  into.push_back({Op::kClip, clip_shapes, grid_by_elements, clip_tile});
}

}  // namespace ark::kernels
