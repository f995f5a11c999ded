#include "importer/decoder/token_builder.h"

#include "base/error.h"
#include "base/ir/keys.h"
#include "base/ir/slice_bounds.h"
#include "importer/op_importer.h"

namespace ark::decoder {
namespace {

Shape with_tokens(const Dims& dims) {
  Shape shape{TokenBuilder::tokens()};
  shape.insert(shape.end(), dims.begin(), dims.end());
  return shape;
}

Tensor as_f32(const Tensor& t) {
  Tensor wide = Tensor::empty(DType::kF32, t.dims);
  for (int64_t i = 0; i < t.size(); ++i) wide.as<float>()[i] = static_cast<float>(t.real(i));
  return wide;
}

// index = base + outer * i + j for i < n, j < m: n rows of m neighbours.
struct Runs {
  int64_t base, outer, n, m;
};
std::optional<Runs> runs_of(const std::vector<int64_t>& index) {
  const auto size = static_cast<int64_t>(index.size());
  if (size == 0 || index[0] < 0) return std::nullopt;
  int64_t m = 1;
  while (m < size && index[m] == index[0] + m) ++m;
  if (size % m != 0) return std::nullopt;
  const Runs runs{index[0], m < size ? index[m] - index[0] : m, size / m, m};
  for (int64_t i = 0; i < size; ++i)
    if (index[i] != runs.base + i / m * runs.outer + i % m) return std::nullopt;
  return runs;
}

}  // namespace

TokenBuilder::TokenBuilder() {
  graph.name = "tokens";
  ids = graph.add_value("token_ids", DType::kI32, Shape{tokens()});
  positions = graph.add_value("positions", DType::kI32, Shape{tokens()});
  graph.inputs = {ids, positions};
}

ValueId TokenBuilder::emit(Op op, std::vector<ValueId> inputs, Attributes attributes) {
  return ark::emit(graph, op, label, std::move(inputs), std::move(attributes))[0];
}
std::vector<ValueId> TokenBuilder::emit_many(Op op, std::vector<ValueId> inputs, Attributes attributes,
                                             int count) {
  return ark::emit(graph, op, label, std::move(inputs), std::move(attributes), count);
}

ValueId TokenBuilder::constant(const ConstantPtr& constant) {
  const auto it = constants_.find(constant.get());
  if (it != constants_.end()) return it->second.second;
  const bool narrow = is_floating(constant->dtype) && constant->dtype != DType::kF32;
  const bool small = constant->dims.size() < 2 || constant->is_small() || constant->dtype == DType::kF64;
  const ConstantPtr kept =
      narrow && small ? make_constant(as_f32(materialise(*constant)), constant->name) : constant;
  const ValueId id = graph.add_constant(kept);
  constants_.emplace(constant.get(), std::make_pair(constant, id));
  return id;
}
ValueId TokenBuilder::constant(Tensor tensor, std::string name) {
  return constant(make_constant(std::move(tensor), std::move(name)));
}
ValueId TokenBuilder::constant_f32(const ConstantPtr& c) {
  return c->dtype == DType::kF32 ? constant(c) : constant(as_f32(materialise(*c)), c->name);
}
ValueId TokenBuilder::scalar(float value) { return constant(Tensor::of<float>(DType::kF32, {}, {{value}})); }

Dims TokenBuilder::dims(ValueId id) const {
  const Value& v = graph.value(id);
  ARK_CHECK(v.shape.has_value(), "a token value without a shape");
  Dims dims;
  for (std::size_t i = is_constant(id) ? 0 : 1; i < v.shape->size(); ++i) {
    const auto n = (*v.shape)[i].constant();
    ARK_CHECK(n.has_value(), "a token value with a symbolic feature size");
    dims.push_back(*n);
  }
  return dims;
}

ValueId TokenBuilder::reshape(ValueId id, const Dims& to) {
  if (dims(id) == to) return id;
  if (is_constant(id)) {
    if (ConstantPtr view = reshaped(graph.value(id).constant, to)) return constant(view);
    Tensor dense = materialise(*graph.value(id).constant);
    dense.dims = to;
    return constant(std::move(dense), graph.value(id).name);
  }
  // Two reshapes in a row are one.
  if (const Node* producer = graph.producer(id); producer && producer->op == Op::kReshape)
    return reshape(producer->inputs[0], to);
  return emit(Op::kReshape, {id}, {{key::kShape, with_tokens(to)}});
}

ValueId TokenBuilder::transpose(ValueId id, const std::vector<int64_t>& perm) {
  if (std::is_sorted(perm.begin(), perm.end())) return id;
  std::vector<int64_t> full;
  if (!is_constant(id)) full.push_back(0);
  for (const int64_t p : perm) full.push_back(is_constant(id) ? p : p + 1);
  return emit(Op::kTranspose, {id}, {{key::kPerm, full}});
}

ValueId TokenBuilder::expand(ValueId id, const Dims& to) {
  if (dims(id) == to) return id;
  ARK_CHECK(!is_constant(id), "constants broadcast by themselves");
  return emit(Op::kExpand, {id}, {{key::kShape, with_tokens(to)}});
}

ValueId TokenBuilder::as_rows(ValueId id, const Dims& to) {
  return emit(Op::kExpand, {id}, {{key::kShape, with_tokens(to)}});
}

ValueId TokenBuilder::pick(ValueId id, const std::vector<int64_t>& index, const Dims& to) {
  ARK_CHECK(!is_constant(id), "pick is for row values");
  const Dims from = dims(id);
  const int64_t count = element_count(from);
  const auto runs = runs_of(index);
  if (runs && runs->n == 1 && runs->m == count) return reshape(id, to);
  const auto slice = [&](ValueId x, int64_t axis, int64_t begin, int64_t end) {
    return emit(Op::kSlice, {x}, slice_of(axis, begin, end));
  };
  if (runs && runs->n == 1)
    return reshape(slice(reshape(id, {count}), 1, runs->base, runs->base + runs->m), to);
  if (runs && runs->outer > 0 && count % runs->outer == 0 &&
      runs->base % runs->outer + runs->m <= runs->outer) {
    ValueId x = reshape(id, {count / runs->outer, runs->outer});
    const int64_t first = runs->base / runs->outer, column = runs->base % runs->outer;
    if (first != 0 || runs->n != count / runs->outer) x = slice(x, 1, first, first + runs->n);
    if (runs->m != runs->outer) x = slice(x, 2, column, column + runs->m);
    return reshape(x, to);
  }
  const ValueId where =
      constant(Tensor::of<int64_t>(DType::kI64, {static_cast<int64_t>(index.size())}, index));
  return reshape(emit(Op::kGather, {reshape(id, {count}), where}, {{key::kAxis, 1}}), to);
}

ValueId TokenBuilder::widened(ValueId id) {
  const DType type = graph.value(id).dtype;
  if (!is_floating(type) || type == DType::kF32) return id;
  return emit(Op::kCast, {id}, {{key::kTo, static_cast<int64_t>(DType::kF32)}});
}

}  // namespace ark::decoder
