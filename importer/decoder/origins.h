// Where each element of a token graph's row value comes from, seen through movement (reshape, transpose,
// slice, ...).
#pragma once

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
// that arrive in output `output`. nullopt if the node is more than movement of its rows.
std::optional<std::vector<int64_t>> moved_indices(const Graph& graph, const Node& node, std::size_t output,
                                                  const std::vector<int64_t>& first);

}  // namespace ark::decoder
