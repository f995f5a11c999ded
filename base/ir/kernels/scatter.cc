// Scatter family: copy the data, then write updates in order (one tile: duplicates make order matter).
#include "base/ir/kernels/common.h"
#include "base/ir/keys.h"

namespace ark::kernels {
namespace {

enum class Reduction { kNone, kAdd, kMul, kMax, kMin };
Reduction reduction_of(const KernelCall& call) {
  const std::string name = call.attributes->get_or(key::kReduction, "none");
  return name == "add"   ? Reduction::kAdd
         : name == "mul" ? Reduction::kMul
         : name == "max" ? Reduction::kMax
         : name == "min" ? Reduction::kMin
                         : Reduction::kNone;
}

// y[to] = y[to] (op) updates[from] for one element.
void combine(const TensorView& y, int64_t to, const TensorView& updates, int64_t from, Reduction reduction) {
  if (reduction == Reduction::kNone) {
    const int64_t size = element_bytes(y);
    return copy_element(y.data + to * size, updates.data + from * size, size);
  }
  with_compute_type(y.dtype, [&](auto type) {
    using C = decltype(type);
    const C a = load_one<C>(y, to), b = load_one<C>(updates, from);
    store_one<C>(y, to,
                 reduction == Reduction::kAdd   ? a + b
                 : reduction == Reduction::kMul ? a * b
                 : reduction == Reduction::kMax ? std::max(a, b)
                                                : std::min(a, b));
  });
}

int64_t checked_index(int64_t index, int64_t n) {
  if (index < -n || index >= n)
    misfit("scatter index " + std::to_string(index) + " is out of range for an axis of " + std::to_string(n));
  return index < 0 ? index + n : index;
}

std::vector<OutputType> scatter_elements_shapes(const KernelCall& call) {
  const TensorView &x = call.inputs[0], &indices = call.inputs[1];
  check_same_type(x, call.inputs[2]);
  if (x.rank != indices.rank || dims_of(indices) != dims_of(call.inputs[2]))
    misfit("ScatterElements: indices and updates must agree with the data's rank");
  const std::size_t axis = own_axis(call.attributes->get_or(key::kAxis, 0), x);
  for (std::size_t a = 0; a < static_cast<std::size_t>(x.rank); ++a)
    if (a != axis && indices.dims[a] > x.dims[a]) misfit("ScatterElements: indices exceed the data");
  for (int64_t i = 0; i < indices.size(); ++i) checked_index(load_one<int64_t>(indices, i), x.dims[axis]);
  return like_first(call);
}
void copy_data(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  if (x.size())
    std::memcpy(call.outputs[0].data, x.data, static_cast<std::size_t>(bytes_of(x.dtype, x.size())));
}
void scatter_elements_tile(const KernelCall& call, int64_t) {
  copy_data(call);
  const TensorView &x = call.inputs[0], &indices = call.inputs[1];
  if (indices.size() == 0) return;
  const std::size_t axis = own_axis(call.attributes->get_or(key::kAxis, 0), x);
  const Index own = strides_of(x.shape());
  const Reduction reduction = reduction_of(call);
  Odometer at(indices.shape(), {own}, 0);
  for (int64_t i = 0; i < indices.size(); ++i, at.next()) {
    const int64_t index = checked_index(load_one<int64_t>(indices, i), x.dims[axis]);
    combine(call.outputs[0], at.offset(0) + (index - at.index()[axis]) * own[axis], call.inputs[2], i,
            reduction);
  }
}

std::vector<OutputType> scatter_nd_shapes(const KernelCall& call) {
  const TensorView &x = call.inputs[0], &indices = call.inputs[1];
  check_same_type(x, call.inputs[2]);
  if (indices.rank < 1) misfit("ScatterND wants indices of rank >= 1");
  const int64_t depth = indices.dims[indices.rank - 1];
  if (depth > x.rank) misfit("ScatterND: index depth exceeds the data's rank");
  Dims want(indices.dims.begin(), indices.dims.begin() + indices.rank - 1);
  want.insert(want.end(), x.dims.begin() + depth, x.dims.begin() + x.rank);
  if (want != dims_of(call.inputs[2]))
    misfit("ScatterND: updates are " + dims_text(call.inputs[2].shape()) + ", wanted " + dims_text(want));
  for (int64_t i = 0; i < indices.size(); ++i)
    checked_index(load_one<int64_t>(indices, i), x.dims[i % depth]);
  return like_first(call);
}
void scatter_nd_tile(const KernelCall& call, int64_t) {
  copy_data(call);
  const TensorView &x = call.inputs[0], &indices = call.inputs[1];
  const int64_t depth = indices.dims[indices.rank - 1];
  const Index own = strides_of(x.shape());
  const int64_t inner = product(x.shape().subspan(static_cast<std::size_t>(depth)));
  const int64_t entries = product(indices.shape().first(static_cast<std::size_t>(indices.rank) - 1));
  const Reduction reduction = reduction_of(call);
  for (int64_t e = 0; e < entries; ++e) {
    int64_t to = 0;
    for (int64_t d = 0; d < depth; ++d)
      to += checked_index(load_one<int64_t>(indices, e * depth + d), x.dims[d]) * own[d];
    for (int64_t i = 0; i < inner; ++i)
      combine(call.outputs[0], to + i, call.inputs[2], e * inner + i, reduction);
  }
}

}  // namespace

void register_scatter(std::vector<Kernel>& into) {
  into.push_back({Op::kScatterElements, scatter_elements_shapes, grid_one, scatter_elements_tile});
  into.push_back({Op::kScatterND, scatter_nd_shapes, grid_one, scatter_nd_tile});
}

}  // namespace ark::kernels
