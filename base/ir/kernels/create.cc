// Operators that make tensors from sizes: Dims, ConstantOfShape, Range, EyeLike, OneHot.
#include <cmath>

#include "base/ir/kernels/registry.h"
#include "base/ir/keys.h"

namespace ark::kernels {
namespace {

std::vector<OutputType> dims_shapes(const KernelCall& call) {
  const Dims values = *ints_operand(call, key::kValues, 0);
  return {{DType::kI64,
           call.attributes->get_or(key::kScalar, 0) ? Dims{} : Dims{static_cast<int64_t>(values.size())}}};
}
void dims_tile(const KernelCall& call, int64_t) {
  const Dims values = *ints_operand(call, key::kValues, 0);
  store(call.outputs[0], 0, static_cast<int64_t>(values.size()), values.data());
}

std::vector<OutputType> fill_shapes(const KernelCall& call) {
  const DType type =
      call.attributes->has(key::kValue) ? call.attributes->get(key::kValue).dtype : DType::kF32;
  return {{type, *ints_operand(call, key::kShape, 0)}};
}
void fill_tile(const KernelCall& call, int64_t tile) {
  const TensorView& y = call.outputs[0];
  const auto [begin, end] = elements_of(tile, y.size());
  const int64_t size = element_bytes(y);
  std::byte value[8]{};
  if (call.attributes->has(key::kValue))
    std::memcpy(value, call.attributes->get(key::kValue).data.get(), static_cast<std::size_t>(size));
  for (int64_t i = begin; i < end; ++i) copy_element(y.data + i * size, value, size);
}

// start, limit, delta as doubles (exact for |integers| < 2^53, which sizes are).
struct Bounds {
  double start, limit, delta;
};
double scalar(const KernelCall& call, Key<Shape> key, std::size_t input, double fallback) {
  if (has_input(call, input)) return load_one<double>(call.inputs[input], 0);
  const auto value = ints_operand(call, key, 99);
  return value ? static_cast<double>(value->at(0)) : fallback;
}
Bounds bounds_of(const KernelCall& call) {
  return {scalar(call, key::kStart, 0, 0), scalar(call, key::kLimit, 1, 0), scalar(call, key::kDelta, 2, 1)};
}
std::vector<OutputType> range_shapes(const KernelCall& call) {
  const Bounds b = bounds_of(call);
  if (b.delta == 0) misfit("Range with delta 0");
  const double n = std::max(0.0, std::ceil((b.limit - b.start) / b.delta));
  if (!(n <= 1e9)) misfit("Range of more than 10^9 elements");
  const DType type = has_input(call, 0)
                         ? call.inputs[0].dtype
                         : static_cast<DType>(call.attributes->get_or(key::kTo, int64_t(DType::kI64)));
  return {{type, {static_cast<int64_t>(n)}}};
}
void range_tile(const KernelCall& call, int64_t tile) {
  const Bounds b = bounds_of(call);
  const auto [begin, end] = elements_of(tile, call.outputs[0].size());
  for (int64_t i = begin; i < end; ++i) {
    // f32 ranges accumulate in f32 as start + i * delta.
    if (call.outputs[0].dtype == DType::kF32)
      store_one<float>(call.outputs[0], i,
                       static_cast<float>(b.start) + static_cast<float>(i) * static_cast<float>(b.delta));
    else
      store_one<double>(call.outputs[0], i, b.start + static_cast<double>(i) * b.delta);
  }
}

std::vector<OutputType> eye_shapes(const KernelCall& call) {
  std::vector<OutputType> out = like_first(call);
  if (out[0].dims.size() != 2) misfit("EyeLike wants a matrix, not " + dims_text(out[0].dims));
  if (const int64_t to = call.attributes->get_or(key::kTo, 0)) out[0].dtype = static_cast<DType>(to);
  return out;
}
void eye_tile(const KernelCall& call, int64_t) {
  const TensorView& y = call.outputs[0];
  const int64_t k = call.attributes->get_or(key::kDiagonal, 0);
  for (int64_t i = 0; i < y.dims[0]; ++i)
    for (int64_t j = 0; j < y.dims[1]; ++j) store_one<int64_t>(y, i * y.dims[1] + j, j - i == k);
}

std::vector<OutputType> one_hot_shapes(const KernelCall& call) {
  const TensorView& indices = call.inputs[0];
  const int64_t axis = norm_axis(call.attributes->get_or(key::kAxis, -1), indices.rank + 1);
  Dims dims = dims_of(indices);
  const int64_t depth = load_one<int64_t>(call.inputs[1], 0);
  if (depth < 0) misfit("OneHot with negative depth");
  dims.insert(dims.begin() + axis, depth);
  return {{call.inputs[2].dtype, dims}};
}
void one_hot_tile(const KernelCall& call, int64_t tile) {
  const TensorView &indices = call.inputs[0], &values = call.inputs[2], &y = call.outputs[0];
  const int64_t axis = norm_axis(call.attributes->get_or(key::kAxis, -1), y.rank);
  const int64_t depth = y.dims[axis], inner = product(y.shape().subspan(static_cast<std::size_t>(axis) + 1));
  const auto [begin, end] = elements_of(tile, y.size());
  const int64_t size = element_bytes(y);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t in = i % inner, d = i / inner % depth, out = i / (inner * depth);
    int64_t index = load_one<int64_t>(indices, out * inner + in);
    if (index < 0) index += depth;
    copy_element(y.data + i * size, values.data + (index == d ? size : 0), size);
  }
}

}  // namespace

void register_create(std::vector<Kernel>& into) {
  into.push_back({Op::kDims, dims_shapes, grid_one, dims_tile});
  into.push_back({Op::kConstantOfShape, fill_shapes, grid_by_elements, fill_tile});
  into.push_back({Op::kRange, range_shapes, grid_by_elements, range_tile});
  into.push_back({Op::kEyeLike, eye_shapes, grid_one, eye_tile});
  into.push_back({Op::kOneHot, one_hot_shapes, grid_by_elements, one_hot_tile});
}

}  // namespace ark::kernels
