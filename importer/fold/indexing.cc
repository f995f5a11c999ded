#include <algorithm>

#include "base/ir/keys.h"
#include "importer/fold/array.h"

namespace ark::fold {
namespace {

int64_t wrapped(const Call& c, int64_t index, int64_t size) {
  if (index < -size || index >= size)
    c.fail("index " + std::to_string(index) + " is outside an axis of " + std::to_string(size));
  return index < 0 ? index + size : index;
}

Results gather(const Call& c) {
  const Array &x = c.in[0], &indices = c.in[1];
  const auto axis = static_cast<std::size_t>(c.axis(x.dims.size()));
  int64_t outer = 1, inner = 1;
  Dims out;
  for (std::size_t i = 0; i < axis; ++i) out.push_back(x.dims[i]), outer *= x.dims[i];
  out.insert(out.end(), indices.dims.begin(), indices.dims.end());
  for (std::size_t i = axis + 1; i < x.dims.size(); ++i) out.push_back(x.dims[i]), inner *= x.dims[i];
  std::vector<int64_t> index;
  for (int64_t o = 0; o < outer; ++o)
    for (const int64_t k : indices.ints) {
      const int64_t row = (o * x.dims[axis] + wrapped(c, k, x.dims[axis])) * inner;
      for (int64_t i = 0; i < inner; ++i) index.push_back(row + i);
    }
  return {{x.pick(out, index)}};
}

// For each element of `indices`: where in `x` it points, axis `axis` replaced by the index.
std::vector<int64_t> element_targets(const Call& c, const Array& x, const Array& indices) {
  const auto axis = static_cast<std::size_t>(c.axis(x.dims.size()));
  if (indices.dims.size() != x.dims.size()) c.fail("indices and data differ in rank");
  for (std::size_t i = 0; i < x.dims.size(); ++i)
    if (i != axis && indices.dims[i] > x.dims[i]) c.fail("indices are larger than the data");
  const auto strides = strides_of(x.dims);
  std::vector<int64_t> targets;
  Counter counter(indices.dims);
  std::size_t k = 0;
  if (indices.size() > 0) do {
      int64_t at = 0;
      for (std::size_t i = 0; i < x.dims.size(); ++i)
        at += strides[i] * (i == axis ? wrapped(c, indices.ints[k], x.dims[i]) : counter.at()[i]);
      targets.push_back(at);
      ++k;
    } while (counter.next());
  return targets;
}

Results gather_elements(const Call& c) {
  return {{c.in[0].pick(c.in[1].dims, element_targets(c, c.in[0], c.in[1]))}};
}

template <typename T>
T reduced(const std::string& how, T old, T update) {
  if (how == "add") return old + update;
  if (how == "mul") return old * update;
  if (how == "max") return std::max(old, update);
  if (how == "min") return std::min(old, update);
  return update;
}

Results scattered(const Call& c, const std::vector<int64_t>& targets, const Array& updates) {
  const std::string how = c.attributes().get_or(key::kReduction, "none");
  Array y = c.in[0];
  if (updates.real != y.real) c.fail("data and updates differ in type");
  if (static_cast<int64_t>(targets.size()) != updates.size()) c.fail("updates do not fit the indices");
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const auto at = static_cast<std::size_t>(targets[i]);
    if (y.real)
      y.reals[at] = reduced(how, y.reals[at], updates.reals[i]);
    else
      y.ints[at] = reduced(how, y.ints[at], updates.ints[i]);
  }
  return {{std::move(y)}};
}

Results scatter_elements(const Call& c) {
  return scattered(c, element_targets(c, c.in[0], c.in[1]), c.in[2]);
}

// For each element that the index tuples select from `x`, its place.
std::vector<int64_t> tuple_targets(const Call& c, const Array& x, const Array& indices, std::size_t batch) {
  const auto depth = static_cast<std::size_t>(indices.dims.back());
  if (batch > x.dims.size() || batch + depth > x.dims.size() || batch >= indices.dims.size())
    c.fail("indices reach deeper than the data's rank");
  for (std::size_t i = 0; i < batch; ++i)
    if (indices.dims[i] != x.dims[i]) c.fail("batch sizes of data and indices differ");
  const auto strides = strides_of(x.dims);
  int64_t inner = 1, batch_size = 1;
  for (std::size_t i = batch + depth; i < x.dims.size(); ++i) inner *= x.dims[i];
  for (std::size_t i = 0; i < batch; ++i) batch_size *= x.dims[i];
  const int64_t tuples = depth ? indices.size() / static_cast<int64_t>(depth) : 1;
  const int64_t per_batch = batch_size ? tuples / batch_size : 0;
  std::vector<int64_t> targets;
  for (int64_t t = 0; t < tuples; ++t) {
    int64_t at = batch ? t / per_batch * strides[batch - 1] : 0;
    for (std::size_t k = 0; k < depth; ++k)
      at += strides[batch + k] *
            wrapped(c, indices.ints[static_cast<std::size_t>(t) * depth + k], x.dims[batch + k]);
    for (int64_t i = 0; i < inner; ++i) targets.push_back(at + i);
  }
  return targets;
}

Results gather_nd(const Call& c) {
  const auto batch = static_cast<std::size_t>(c.attributes().get_or(key::kBatchDims, 0));
  const Array &x = c.in[0], &indices = c.in[1];
  if (indices.dims.empty() || indices.size() == 0) return std::nullopt;
  Dims out(indices.dims.begin(), indices.dims.end() - 1);
  for (std::size_t i = batch + static_cast<std::size_t>(indices.dims.back()); i < x.dims.size(); ++i)
    out.push_back(x.dims[i]);
  return {{x.pick(out, tuple_targets(c, x, indices, batch))}};
}

Results scatter_nd(const Call& c) {
  if (c.in[1].dims.empty()) return std::nullopt;
  if (c.in[1].size() == 0) return {{c.in[0]}};
  return scattered(c, tuple_targets(c, c.in[0], c.in[1], 0), c.in[2]);
}

Results one_hot(const Call& c) {
  const Array &indices = c.in[0], &values = c.in[2];
  if (c.in[1].size() != 1 || values.size() != 2) return std::nullopt;
  const int64_t depth = c.in[1].integer(0);
  const auto axis = static_cast<std::size_t>(c.axis(indices.dims.size() + 1));
  Dims out = indices.dims;
  out.insert(out.begin() + static_cast<std::ptrdiff_t>(axis), depth);
  if (depth < 0 || element_count(out) > 16'000'000) return std::nullopt;
  int64_t inner = 1;
  for (std::size_t i = axis + 1; i < out.size(); ++i) inner *= out[i];
  std::vector<int64_t> index;
  for (int64_t i = 0; i < element_count(out); ++i) {
    const int64_t k = i / inner % depth, at = i / (inner * depth) * inner + i % inner;
    const int64_t hot = indices.integer(at);
    index.push_back((hot < 0 ? hot + depth : hot) == k);
  }
  return {{values.pick(out, index)}};
}

Results non_zero(const Call& c) {
  const Array& x = c.in[0];
  std::vector<std::vector<int64_t>> found(x.dims.size());
  Counter counter(x.dims);
  int64_t i = 0, n = 0;
  if (x.size() > 0) do {
      if (x.number(i++) == 0) continue;
      ++n;
      for (std::size_t a = 0; a < x.dims.size(); ++a) found[a].push_back(counter.at()[a]);
    } while (counter.next());
  Array y{{static_cast<int64_t>(x.dims.size()), n}, false, {}, {}};
  for (const auto& row : found) y.ints.insert(y.ints.end(), row.begin(), row.end());
  return {{std::move(y)}};
}

}  // namespace

Evaluator indexing_evaluator(Op op) {
  switch (op) {
    case Op::kGather:
      return gather;
    case Op::kGatherElements:
      return gather_elements;
    case Op::kGatherND:
      return gather_nd;
    case Op::kScatterElements:
      return scatter_elements;
    case Op::kScatterND:
      return scatter_nd;
    case Op::kOneHot:
      return one_hot;
    case Op::kNonZero:
      return non_zero;
    default:
      return nullptr;
  }
}

}  // namespace ark::fold
