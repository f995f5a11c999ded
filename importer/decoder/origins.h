// Where each element of a token graph's row value comes from, seen through movement (reshape, transpose,
// slice, ...).
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "base/ir/graph.h"

namespace ark::decoder {

struct Origin {
  ValueId value = kNoValue;
  int64_t index = 0;  // element of the row of `value`
  bool operator==(const Origin&) const = default;
};

class Origins {
 public:
  using Row = std::vector<Origin>;
  explicit Origins(const Graph& graph) : graph_(graph) {}
  // One origin for each element of a row of `id`, row-major; memoised.
  const Row& of(ValueId id);

 private:
  Row compute(ValueId id);
  const Graph& graph_;
  std::unordered_map<ValueId, Row> known_;
};

// The node with each "tokens" size set to 1 and the inputs' rows numbered from `first[i]` on; the numbers
// that arrive in `output`. nullopt if the node is more than movement of its rows.
std::optional<std::vector<int64_t>> moved_indices(const Graph& graph, const Node& node, ValueId output,
                                                  const std::vector<int64_t>& first);

// The row of `output` whose elements are those that the node moves there, of row_of(input). nullopt as above.
template <typename Row, typename F>
std::optional<Row> moved_row(const Graph& graph, const Node& node, ValueId output, F&& row_of) {
  if (!is_movement(node.op)) return std::nullopt;
  Row all, moved;
  std::vector<int64_t> first;
  for (std::size_t i = 0; i < (node.op == Op::kConcat ? node.inputs.size() : 1); ++i) {
    if (node.inputs[i] == kNoValue || graph.value(node.inputs[i]).constant) return std::nullopt;
    const Row& row = row_of(node.inputs[i]);
    first.push_back(static_cast<int64_t>(all.size()));
    all.insert(all.end(), row.begin(), row.end());
  }
  const auto indices = moved_indices(graph, node, output, first);
  if (!indices) return std::nullopt;
  for (const int64_t i : *indices) moved.push_back(all[i]);
  return moved;
}

}  // namespace ark::decoder
