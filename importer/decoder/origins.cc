#include "importer/decoder/origins.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
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

std::optional<std::vector<int64_t>> moved_indices(const Graph& graph, const Node& node, std::size_t output,
                                                  const std::vector<int64_t>& first) {
  if (!is_movement(node.op) || node.inputs.empty() || graph.value(node.inputs[0]).constant)
    return std::nullopt;
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
    if (v.constant) return std::nullopt;
    Tensor t = Tensor::empty(DType::kI64, row_dims(v));
    std::iota(t.as<int64_t>(), t.as<int64_t>() + t.size(), first[i]);
    inputs.push_back(std::move(t));
  }
  Node one = node;
  one.attributes.change_sizes([](const Expr& e) { return Expr(e.constant().value_or(1)); });
  const auto results = evaluate(one, inputs, std::vector<DType>(node.outputs.size(), DType::kI64));
  if (!results) return std::nullopt;
  const Tensor& t = (*results)[output];
  return std::vector<int64_t>(t.as<int64_t>(), t.as<int64_t>() + t.size());
}

const Origins::Row& Origins::of(ValueId id) {
  const auto it = known_.find(id);
  if (it != known_.end()) return it->second;
  auto origins = compute(id);
  return known_[id] = std::move(origins);
}

Origins::Row Origins::compute(ValueId id) {
  const Value& v = graph_.value(id);
  const auto itself = [&] {
    std::vector<Origin> origins;
    const int64_t n = element_count(row_dims(v));
    for (int64_t i = 0; i < n; ++i) origins.push_back({id, i});
    return origins;
  };
  const Node* node = graph_.producer(id);
  if (!node || !is_movement(node->op)) return itself();
  std::vector<int64_t> first;
  int64_t total = 0;
  const std::size_t data = node->op == Op::kConcat ? node->inputs.size() : 1;
  for (std::size_t i = 0; i < data; ++i) {
    first.push_back(total);
    total += element_count(row_dims(graph_.value(node->inputs[i])));
  }
  const auto output = static_cast<std::size_t>(std::find(node->outputs.begin(), node->outputs.end(), id) -
                                               node->outputs.begin());
  const auto indices = moved_indices(graph_, *node, output, first);
  if (!indices) return itself();
  std::vector<Origin> all;
  for (std::size_t i = 0; i < data; ++i) {
    const auto& origins = of(node->inputs[i]);
    all.insert(all.end(), origins.begin(), origins.end());
  }
  std::vector<Origin> origins;
  for (const int64_t i : *indices) origins.push_back(all[i]);
  return origins;
}

}  // namespace ark::decoder
