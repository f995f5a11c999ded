// Operators that make tensors from sizes: Dims, ConstantOfShape, Range, EyeLike, OneHot.
#include <cmath>

#include "base/ir/kernels/common.h"
#include "base/ir/keys.h"

namespace ark::kernels {
namespace {

void dims_tile(const KernelCall& call, int64_t) {
  const Dims values = ints(call, key::kValues, 0);
  store(call.outputs[0], 0, static_cast<int64_t>(values.size()), values.data());
}

std::vector<OutputType> fill_shapes(const KernelCall& call) {
  const bool given = call.attributes->has(key::kValue);
  if (given && call.attributes->get(key::kValue).size() != 1) misfit("ConstantOfShape wants one value");
  return {{given ? call.attributes->get(key::kValue).dtype : DType::kF32, ints(call, key::kShape, 0)}};
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

DType range_type(const KernelCall& call) {
  return has_input(call, 0) ? call.inputs[0].dtype
                            : static_cast<DType>(call.attributes->get_or(key::kTo, int64_t(DType::kI64)));
}
template <typename C>
C range_bound(const KernelCall& call, Key<Shape> key, std::size_t input, C fallback) {
  if (has_input(call, input)) return scalar<C>(call, input, key.name);
  const auto value = ints_operand(call, key, input);
  if (value && value->size() != 1) misfit(std::string(key.name) + " of Range must be one number");
  return value ? static_cast<C>(value->front()) : fallback;
}
template <typename C>
struct Range {
  C start, delta;
  int64_t count;

  explicit Range(const KernelCall& call)
      : start(range_bound<C>(call, key::kStart, 0, 0)), delta(range_bound<C>(call, key::kDelta, 2, 1)) {
    const C limit = range_bound<C>(call, key::kLimit, 1, 0);
    if (delta == 0) misfit("Range with delta 0");
    constexpr int64_t kMost = 1'000'000'000;
    double wanted;
    if constexpr (std::is_floating_point_v<C>) {
      wanted =
          std::ceil((static_cast<double>(limit) - static_cast<double>(start)) / static_cast<double>(delta));
    } else {  // exact: the distance of two int64 fits into a uint64
      const bool up = delta > 0;
      const uint64_t from = static_cast<uint64_t>(up ? start : limit),
                     to = static_cast<uint64_t>(up ? limit : start),
                     step = up ? static_cast<uint64_t>(delta) : 0 - static_cast<uint64_t>(delta),
                     span = static_cast<C>(to) > static_cast<C>(from) ? to - from : 0;
      wanted = static_cast<double>(span / step + (span % step != 0));
    }
    if (!(wanted <= kMost)) misfit("Range of more than 10^9 elements");
    count = static_cast<int64_t>(std::max(0.0, wanted));
  }
  C operator[](int64_t i) const {
    if constexpr (std::is_floating_point_v<C>)
      return start + static_cast<C>(i) * delta;
    else
      return static_cast<C>(static_cast<uint64_t>(start) +
                            static_cast<uint64_t>(i) * static_cast<uint64_t>(delta));
  }
};
std::vector<OutputType> range_shapes(const KernelCall& call) {
  const DType type = range_type(call);
  return with_compute_type(type, [&](auto c) -> std::vector<OutputType> {
    return {{type, {Range<decltype(c)>(call).count}}};
  });
}
void range_tile(const KernelCall& call, int64_t tile) {
  const auto [begin, end] = elements_of(tile, call.outputs[0].size());
  with_compute_type(range_type(call), [&, begin = begin, end = end](auto c) {
    const Range<decltype(c)> range(call);
    for (int64_t i = begin; i < end; ++i) store_one(call.outputs[0], i, range[i]);
  });
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
  const int64_t depth = scalar<int64_t>(call, 1, "the depth of OneHot");
  if (call.inputs[2].size() != 2) misfit("OneHot wants two values, not " + dims_text(call.inputs[2].shape()));
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
  into.push_back({Op::kDims, by_rule, grid_one, dims_tile});
  into.push_back({Op::kConstantOfShape, fill_shapes, grid_by_elements, fill_tile});
  into.push_back({Op::kRange, range_shapes, grid_by_elements, range_tile});
  into.push_back({Op::kEyeLike, by_rule, grid_one, eye_tile});
  into.push_back({Op::kOneHot, one_hot_shapes, grid_by_elements, one_hot_tile});
}

}  // namespace ark::kernels
