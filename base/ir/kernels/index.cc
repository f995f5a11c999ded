// Gather family.
#include "base/ir/kernels/common.h"
#include "base/ir/keys.h"

namespace ark::kernels {
namespace {

// Wraps a negative index; out of range clamps here and is refused by check_indices in the dynamic driver's shapes().
int64_t wrapped(int64_t index, int64_t n) {
  return std::clamp<int64_t>(index < 0 ? index + n : index, 0, std::max<int64_t>(n - 1, 0));
}

void check_indices(const TensorView& indices, int64_t n) {
  if (!indices.data) return;  // the validator asks about sizes alone
  for (int64_t i = 0; i < indices.size(); ++i)
    if (const int64_t v = load_one<int64_t>(indices, i); v < -n || v >= n)
      misfit("index " + std::to_string(v) + " is out of range for an axis of " + std::to_string(n));
}

std::vector<OutputType> gather_shapes(const KernelCall& call) {
  std::vector<OutputType> out = by_rule(call);
  check_indices(call.inputs[1],
                call.inputs[0].dims[own_axis(call.attributes->get_or(key::kAxis, 0), call.inputs[0])]);
  return out;
}
// Runs of `inner` elements; tiles by elements, so that a run may be cut.
void gather_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &indices = call.inputs[1], &y = call.outputs[0];
  const std::size_t axis = own_axis(call.attributes->get_or(key::kAxis, 0), x);
  const int64_t size = element_bytes(y), inner = product(x.shape().subspan(axis + 1)), n = x.dims[axis],
                count = indices.size();
  const auto [begin, end] = elements_of(tile, y.size());
  for (int64_t i = begin; i < end;) {
    const int64_t run_index = i / inner, in = i % inner, run = std::min(end - i, inner - in);
    const int64_t outer = run_index / count,
                  index = wrapped(load_one<int64_t>(indices, run_index % count), n);
    std::memcpy(y.data + i * size, x.data + ((outer * n + index) * inner + in) * size,
                static_cast<std::size_t>(run * size));
    i += run;
  }
}

std::vector<OutputType> gather_elements_shapes(const KernelCall& call) {
  const TensorView &x = call.inputs[0], &indices = call.inputs[1];
  if (x.rank != indices.rank) misfit("GatherElements: data and indices differ in rank");
  const std::size_t axis = own_axis(call.attributes->get_or(key::kAxis, 0), x);
  for (std::size_t a = 0; a < static_cast<std::size_t>(x.rank); ++a)
    if (a != axis && indices.dims[a] > x.dims[a])
      misfit("GatherElements: indices " + dims_text(indices.shape()) + " exceed data " +
             dims_text(x.shape()));
  check_indices(indices, x.dims[axis]);
  return {{x.dtype, dims_of(indices)}};
}
void gather_elements_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &indices = call.inputs[1];
  const std::size_t axis = own_axis(call.attributes->get_or(key::kAxis, 0), x);
  const Index own = strides_of(x.shape());
  int64_t i = tile * kTileElements;
  copy_elements(call, tile, {own}, [&](const Odometer& at) {
    const int64_t index = wrapped(load_one<int64_t>(indices, i++), x.dims[axis]);
    return at.offset(0) + (index - at.index()[axis]) * own[axis];
  });
}

std::vector<OutputType> gather_nd_shapes(const KernelCall& call) {
  const TensorView &x = call.inputs[0], &indices = call.inputs[1];
  const int64_t batch = call.attributes->get_or(key::kBatchDims, 0);
  if (indices.rank < 1) misfit("GatherND wants indices of rank >= 1");
  const int64_t depth = indices.dims[indices.rank - 1];
  if (batch < 0 || batch >= indices.rank || depth > x.rank - batch)
    misfit("GatherND: index depth exceeds the data's rank");
  for (int64_t i = 0; i < batch; ++i)
    if (x.dims[i] != indices.dims[i]) misfit("GatherND: batch sizes of data and indices differ");
  for (int64_t i = 0; i < indices.size(); ++i) {
    const int64_t n = x.dims[batch + i % depth], v = load_one<int64_t>(indices, i);
    if (v < -n || v >= n) misfit("GatherND: index " + std::to_string(v) + " is out of range");
  }
  return by_rule(call);
}
void gather_nd_tile(const KernelCall& call, int64_t) {
  const TensorView &x = call.inputs[0], &indices = call.inputs[1], &y = call.outputs[0];
  const auto batch = static_cast<std::size_t>(call.attributes->get_or(key::kBatchDims, 0));
  const int64_t depth = indices.dims[indices.rank - 1];
  const Index own = strides_of(x.shape());
  const int64_t size = element_bytes(y),
                inner = product(x.shape().subspan(batch + static_cast<std::size_t>(depth)));
  const int64_t batches = product(x.shape().first(batch)),
                entries = depth == 0
                              ? product(indices.shape().first(static_cast<std::size_t>(indices.rank) - 1))
                              : indices.size() / depth;
  const int64_t batch_stride = batch ? own[batch - 1] : 0;
  for (int64_t e = 0; e < entries; ++e) {
    int64_t from = batches ? e / (entries / batches) * batch_stride : 0;
    for (int64_t d = 0; d < depth; ++d) {
      const std::size_t axis = batch + static_cast<std::size_t>(d);
      from += wrapped(load_one<int64_t>(indices, e * depth + d), x.dims[axis]) * own[axis];
    }
    std::memcpy(y.data + e * inner * size, x.data + from * size, static_cast<std::size_t>(inner * size));
  }
}

}  // namespace

void register_index(std::vector<Kernel>& into) {
  into.push_back({Op::kGather, gather_shapes, grid_by_elements, gather_tile});
  into.push_back({Op::kGatherElements, gather_elements_shapes, grid_by_elements, gather_elements_tile});
  into.push_back({Op::kGatherND, gather_nd_shapes, grid_one, gather_nd_tile});
}

}  // namespace ark::kernels
