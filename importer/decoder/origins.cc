#include "importer/decoder/origins.h"

#include <algorithm>
#include <numeric>

#include "base/ir/keys.h"
#include "importer/fold.h"

namespace ark::decoder {
namespace {

// The shape with the token axis set to 1.
Dims row_dims(const Value& v) {
  Dims dims;
  for (const Expr& e : *v.shape) dims.push_back(e.constant().value_or(1));
  return dims;
}

}  // namespace

std::optional<std::vector<int64_t>> moved_indices(const Graph& graph, const Node& node, ValueId output,
                                                  const std::vector<int64_t>& first) {
  const std::size_t data = node.op == Op::kConcat ? node.inputs.size() : 1;
  if (node.op == Op::kGather && node.attributes.get(key::kAxis) == 0) return std::nullopt;
  std::vector<Tensor> inputs;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i] == kNoValue) return std::nullopt;
    const Value& v = graph.value(node.inputs[i]);
    if (i >= data) {
      if (!v.constant) return std::nullopt;
      inputs.push_back(materialise(*v.constant));
      continue;
    }
    Tensor t = Tensor::empty(DType::kI64, row_dims(v));
    std::iota(t.as<int64_t>(), t.as<int64_t>() + t.size(), first[i]);
    inputs.push_back(std::move(t));
  }
  Node one = node;
  one.attributes.change_sizes([](const Expr& e) { return Expr(e.constant().value_or(1)); });
  const auto results = evaluate(one, inputs, std::vector<DType>(node.outputs.size(), DType::kI64));
  if (!results) return std::nullopt;
  const Tensor& t =
      (*results)[std::find(node.outputs.begin(), node.outputs.end(), output) - node.outputs.begin()];
  return std::vector<int64_t>(t.as<int64_t>(), t.as<int64_t>() + t.size());
}

const Origins::Row& Origins::of(ValueId id) {
  const auto it = known_.find(id);
  if (it != known_.end()) return it->second;
  auto origins = compute(id);
  return known_[id] = std::move(origins);
}

Origins::Row Origins::compute(ValueId id) {
  if (const Node* node = graph_.producer(id))
    if (auto row = moved_row<Row>(graph_, *node, id, [&](ValueId in) -> const Row& { return of(in); }))
      return *std::move(row);
  Row itself;
  const int64_t n = element_count(row_dims(graph_.value(id)));
  for (int64_t i = 0; i < n; ++i) itself.push_back({id, i});
  return itself;
}

}  // namespace ark::decoder
