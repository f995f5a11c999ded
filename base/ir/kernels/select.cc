// Operators that choose elements: Trilu, NonZero, Compress, Unique, TopK.
#include <algorithm>
#include <map>

#include "base/ir/kernels/common.h"
#include "base/ir/keys.h"

namespace ark::kernels {
namespace {

int64_t diagonal_of(const KernelCall& call) {
  return has_input(call, 1) ? scalar<int64_t>(call, 1, "the diagonal of Trilu")
                            : call.attributes->get_or(key::kDiagonal, 0);
}
std::vector<OutputType> trilu_shapes(const KernelCall& call) {
  if (call.inputs[0].rank < 2) misfit("Trilu wants rank >= 2");
  diagonal_of(call);
  return like_first(call);
}
void trilu_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const int64_t rows = y.dims[y.rank - 2], columns = y.dims[y.rank - 1];
  const int64_t k = diagonal_of(call);
  const bool upper = call.attributes->get_or(key::kUpper, 1) != 0;
  const int64_t size = element_bytes(y);
  const std::byte zero[8]{};
  const auto [begin, end] = elements_of(tile, y.size());
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = i / columns % rows, column = i % columns;
    const bool keep = upper ? column - row >= k : column - row <= k;
    copy_element(y.data + i * size, keep ? x.data + i * size : zero, size);
  }
}

int64_t count_nonzero(const TensorView& x) {
  int64_t n = 0;
  for (int64_t i = 0; i < x.size(); ++i) n += load_one<double>(x, i) != 0;
  return n;
}
std::vector<OutputType> nonzero_shapes(const KernelCall& call) {
  return {{DType::kI64, {std::max(call.inputs[0].rank, 1), count_nonzero(call.inputs[0])}}};
}
void nonzero_tile(const KernelCall& call, int64_t) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const int64_t found = y.dims[1];
  if (x.size() == 0) return;
  Odometer at(x.shape(), {}, 0);
  for (int64_t i = 0, n = 0; i < x.size(); ++i, at.next()) {
    if (load_one<double>(x, i) == 0) continue;
    for (int64_t a = 0; a < y.dims[0]; ++a) y.as<int64_t>()[a * found + n] = at.index()[a];
    ++n;
  }
}

std::vector<OutputType> compress_shapes(const KernelCall& call) {
  const TensorView &x = call.inputs[0], &condition = call.inputs[1];
  const bool flat = !call.attributes->has(key::kAxis);
  const std::size_t axis = flat ? 0 : own_axis(call.attributes->get(key::kAxis), x);
  if (condition.size() > (flat ? x.size() : x.dims[axis]))
    misfit("Compress: the condition is longer than the axis");
  const int64_t n = count_nonzero(condition);
  if (flat) return {{x.dtype, {n}}};
  Dims dims = dims_of(x);
  dims[axis] = n;
  return {{x.dtype, dims}};
}
void compress_tile(const KernelCall& call, int64_t) {
  const TensorView &x = call.inputs[0], &condition = call.inputs[1], &y = call.outputs[0];
  const bool flat = !call.attributes->has(key::kAxis);
  const std::size_t axis = flat ? 0 : own_axis(call.attributes->get(key::kAxis), x);
  const int64_t length = flat ? x.size() : x.dims[axis], outer = flat ? 1 : product(x.shape().first(axis));
  const int64_t bytes = (flat ? 1 : product(x.shape().subspan(axis + 1))) * element_bytes(y);
  std::byte* to = y.data;
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t j = 0; j < condition.size(); ++j)
      if (bytes > 0 && load_one<int64_t>(condition, j)) {
        std::memcpy(to, x.data + (o * length + j) * bytes, static_cast<std::size_t>(bytes));
        to += bytes;
      }
}

// The slices along `axis` (or all elements) with their first index, inverse and count, in output order.
struct Groups {
  std::vector<int64_t> first, inverse, count;
};
// Unlike <, an order of what is no number, too: all equal, behind the others.
struct Before {
  template <typename C>
  bool operator()(const std::vector<C>& a, const std::vector<C>& b) const {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(),
                                        [](C x, C y) { return x < y || (x == x && y != y); });
  }
};
// C: the compute type, in which all numbers of the tensor differ.
template <typename C>
Groups groups_of(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const bool flat = !call.attributes->has(key::kAxis);
  const std::size_t axis = flat ? 0 : own_axis(call.attributes->get(key::kAxis), x);
  const int64_t n = flat ? x.size() : x.dims[axis];
  const int64_t outer = flat ? 1 : product(x.shape().first(axis)),
                inner = flat ? 1 : product(x.shape().subspan(axis + 1));
  std::map<std::vector<C>, int64_t, Before> seen;
  Groups g;
  g.inverse.resize(static_cast<std::size_t>(n));
  for (int64_t j = 0; j < n; ++j) {
    std::vector<C> key;
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t i = 0; i < inner; ++i) key.push_back(load_one<C>(x, (o * n + j) * inner + i));
    const auto [it, fresh] = seen.try_emplace(std::move(key), static_cast<int64_t>(g.first.size()));
    if (fresh) g.first.push_back(j), g.count.push_back(0);
    g.inverse[j] = it->second;
    ++g.count[it->second];
  }
  if (call.attributes->get_or(key::kSorted, 1)) {
    std::vector<int64_t> rank(g.first.size());
    Groups s{{}, g.inverse, {}};
    for (const auto& [key, id] : seen) {
      rank[id] = static_cast<int64_t>(s.first.size());
      s.first.push_back(g.first[id]);
      s.count.push_back(g.count[id]);
    }
    for (int64_t& i : s.inverse) i = rank[i];
    return s;
  }
  return g;
}
Groups unique_groups(const KernelCall& call) {
  return with_compute_type(call.inputs[0].dtype, [&](auto c) { return groups_of<decltype(c)>(call); });
}
std::vector<OutputType> unique_shapes(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const Groups g = unique_groups(call);
  const auto n = static_cast<int64_t>(g.first.size());
  Dims dims{n};
  if (call.attributes->has(key::kAxis)) {
    dims = dims_of(x);
    dims[norm_axis(call.attributes->get(key::kAxis), x.rank)] = n;
  }
  return {{x.dtype, dims},
          {DType::kI64, {n}},
          {DType::kI64, {static_cast<int64_t>(g.inverse.size())}},
          {DType::kI64, {n}}};
}
void unique_tile(const KernelCall& call, int64_t) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const Groups g = unique_groups(call);
  const bool flat = !call.attributes->has(key::kAxis);
  const std::size_t axis = flat ? 0 : own_axis(call.attributes->get(key::kAxis), x);
  const int64_t n = flat ? x.size() : x.dims[axis], outer = flat ? 1 : product(x.shape().first(axis));
  const int64_t bytes = (flat ? 1 : product(x.shape().subspan(axis + 1))) * element_bytes(y);
  const auto kept = static_cast<int64_t>(g.first.size());
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t j = 0; j < kept; ++j)
      std::memcpy(y.data + (o * kept + j) * bytes, x.data + (o * n + g.first[j]) * bytes,
                  static_cast<std::size_t>(bytes));
  const std::vector<int64_t>* lists[] = {&g.first, &g.inverse, &g.count};
  for (std::size_t k = 1; k < call.outputs.size() && k < 4; ++k)
    if (call.outputs[k].present())
      store(call.outputs[k], 0, static_cast<int64_t>(lists[k - 1]->size()), lists[k - 1]->data());
}

std::size_t topk_axis(const KernelCall& call) {
  return own_axis(call.attributes->get_or(key::kAxis, -1), call.inputs[0]);
}
int64_t topk_of(const KernelCall& call, std::size_t axis) {
  const Dims k = ints(call, key::kTopK, 1);
  if (k.size() != 1) misfit("TopK wants one k, not " + std::to_string(k.size()));
  if (const int64_t n = call.inputs[0].dims[axis]; k[0] < 0 || k[0] > n)
    misfit("TopK: k = " + std::to_string(k[0]) + " of an axis of " + std::to_string(n));
  return k[0];
}
int64_t topk_grid(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const std::size_t axis = topk_axis(call);
  return x.dims[axis] ? x.size() / x.dims[axis] : 0;
}
void topk_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &values = call.outputs[0];
  const TensorView indices = call.outputs.size() > 1 ? call.outputs[1] : TensorView{};
  const std::size_t axis = topk_axis(call);
  const int64_t n = x.dims[axis], k = topk_of(call, axis), inner = product(x.shape().subspan(axis + 1));
  const int64_t outer = tile / inner, in = tile % inner, size = element_bytes(x);
  const bool largest = call.attributes->get_or(key::kLargest, 1) != 0;
  with_compute_type(x.dtype, [&](auto type) {
    using C = decltype(type);
    std::vector<std::pair<C, int64_t>> row;
    for (int64_t j = 0; j < n; ++j) row.emplace_back(load_one<C>(x, (outer * n + j) * inner + in), j);
    const auto better = [&](const auto& a, const auto& b) {
      if (a.first != b.first) return largest ? a.first > b.first : a.first < b.first;
      return a.second < b.second;
    };
    std::partial_sort(row.begin(), row.begin() + k, row.end(), better);
    for (int64_t j = 0; j < k; ++j) {
      const int64_t to = (outer * k + j) * inner + in, from = row[j].second;
      if (values.present())
        copy_element(values.data + to * size, x.data + ((outer * n + from) * inner + in) * size, size);
      if (indices.present()) indices.as<int64_t>()[to] = from;
    }
  });
}

}  // namespace

void register_select(std::vector<Kernel>& into) {
  into.push_back({Op::kTrilu, trilu_shapes, grid_by_elements, trilu_tile});
  into.push_back({Op::kNonZero, nonzero_shapes, grid_one, nonzero_tile});
  into.push_back({Op::kCompress, compress_shapes, grid_one, compress_tile});
  into.push_back({Op::kUnique, unique_shapes, grid_one, unique_tile});
  into.push_back({Op::kTopK, by_rule, topk_grid, topk_tile});
}

}  // namespace ark::kernels
