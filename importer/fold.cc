#include "importer/fold.h"

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/ir/keys.h"
#include "importer/fold/array.h"

namespace ark {
namespace fold {

Array Array::zeros(Dims dims, bool real) {
  Array a{std::move(dims), real, {}, {}};
  const auto n = static_cast<std::size_t>(element_count(a.dims));
  if (real)
    a.reals.assign(n, 0);
  else
    a.ints.assign(n, 0);
  return a;
}

Array Array::pick(Dims out_dims, const std::vector<int64_t>& index, double fallback) const {
  Array out{std::move(out_dims), real, {}, {}};
  if (real) {
    out.reals.reserve(index.size());
    for (const int64_t i : index) out.reals.push_back(i < 0 ? fallback : reals[i]);
  } else {
    out.ints.reserve(index.size());
    for (const int64_t i : index) out.ints.push_back(i < 0 ? static_cast<int64_t>(fallback) : ints[i]);
  }
  return out;
}

Array widen(const Tensor& t) {
  Array a{t.dims, is_floating(t.dtype), {}, {}};
  const int64_t n = t.size();
  if (a.real) {
    a.reals.reserve(static_cast<std::size_t>(n));
    for (int64_t i = 0; i < n; ++i) a.reals.push_back(t.real(i));
  } else {
    a.ints.reserve(static_cast<std::size_t>(n));
    for (int64_t i = 0; i < n; ++i) a.ints.push_back(t.integer(i));
  }
  return a;
}

namespace {

// double -> a narrow float through f32: double rounding is harmless for the values folded here, which come from
// narrower types.
template <typename T>
T number(const Array& a, int64_t i) {
  if constexpr (std::is_same_v<T, bool>) return a.number(i) != 0;
  if constexpr (std::is_floating_point_v<T>) return static_cast<T>(a.number(i));
  return static_cast<T>(a.real ? static_cast<int64_t>(a.number(i)) : a.integer(i));
}

}  // namespace

Tensor narrow(const Array& a, DType dtype) {
  Tensor t = Tensor::zeros(dtype, a.dims);
  with_element(
      dtype,
      [&](auto element) {
        using Value = typename decltype(element)::Value;
        for (int64_t i = 0; i < a.size(); ++i) element.store(t.data.get(), i, number<Value>(a, i));
      },
      [] { throw Error(Code::kInternal, "folding a tensor without numbers"); });
  return t;
}

void Call::fail(const std::string& why) const {
  throw Error(Code::kBadModel, "node " + escaped(node.name) + ": " + why);
}

std::optional<std::vector<int64_t>> Call::sizes(Key<Shape> key) const {
  if (!attributes().has(key)) return std::nullopt;
  std::vector<int64_t> result;
  for (const Expr& e : attributes().get(key)) {
    if (!e.constant()) return std::nullopt;
    result.push_back(*e.constant());
  }
  return result;
}

int64_t Call::axis(std::size_t rank) const {
  const int64_t axis = attributes().get(key::kAxis), r = static_cast<int64_t>(rank);
  if (axis < -r || axis >= r) fail("axis " + std::to_string(axis) + " is outside rank " + std::to_string(r));
  return axis < 0 ? axis + r : axis;
}

std::vector<int64_t> strides_of(const Dims& dims) {
  std::vector<int64_t> strides(dims.size());
  int64_t n = 1;
  for (std::size_t i = dims.size(); i-- > 0; n *= dims[i]) strides[i] = n;
  return strides;
}

Dims broadcast_dims(const Call& call, const Dims& a, const Dims& b) {
  Dims result(std::max(a.size(), b.size()), 1);
  for (std::size_t i = 0; i < result.size(); ++i) {
    const int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1, y = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (x != y && x != 1 && y != 1) call.fail("operands do not broadcast");
    result[result.size() - 1 - i] = x == 1 ? y : x;
  }
  return result;
}

std::vector<int64_t> broadcast_index(const Dims& from, const Dims& to) {
  std::vector<int64_t> index;
  const int64_t n = element_count(to);
  index.reserve(static_cast<std::size_t>(n));
  if (n == 0) return index;
  const auto strides = strides_of(from);
  const std::size_t offset = to.size() - from.size();
  Counter counter(to);
  do {
    int64_t at = 0;
    for (std::size_t i = 0; i < from.size(); ++i)
      if (from[i] != 1) at += counter.at()[offset + i] * strides[i];
    index.push_back(at);
  } while (counter.next());
  return index;
}

bool Counter::next() {
  for (std::size_t i = dims_.size(); i-- > 0;) {
    if (++at_[i] < dims_[i]) return true;
    at_[i] = 0;
  }
  return false;
}

namespace {

Evaluator evaluator_of(Op op) {
  for (const auto family : {pointwise_evaluator, movement_evaluator, indexing_evaluator, reduction_evaluator,
                            quantized_evaluator})
    if (const Evaluator e = family(op)) return e;
  return nullptr;
}

}  // namespace
}  // namespace fold

bool can_evaluate(Op op) { return fold::evaluator_of(op) != nullptr; }

std::optional<std::vector<Tensor>> evaluate(const Node& node, const std::vector<Tensor>& inputs,
                                            const std::vector<DType>& dtypes) {
  const fold::Evaluator evaluator = fold::evaluator_of(node.op);
  if (!evaluator) return std::nullopt;
  for (const DType t : dtypes)
    if (t == DType::kString) return std::nullopt;
  std::vector<fold::Array> arrays;
  std::vector<bool> given;
  for (const Tensor& t : inputs) {
    if (t.dtype == DType::kString) return std::nullopt;
    given.push_back(t.dtype != DType::kUndefined);
    arrays.push_back(given.back() ? fold::widen(t) : fold::Array{});
  }
  const auto results = evaluator({node, arrays, dtypes, given});
  if (!results) return std::nullopt;
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < results->size(); ++i) tensors.push_back(fold::narrow((*results)[i], dtypes[i]));
  return tensors;
}

}  // namespace ark
