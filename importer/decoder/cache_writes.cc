#include "importer/decoder/cache_writes.h"

#include <algorithm>

#include "base/ir/keys.h"
#include "importer/passes/match.h"

namespace ark::decoder {
namespace {

using passes::made_by;

std::optional<std::size_t> input_of(const Graph& graph, ValueId id) {
  const auto it = std::find(graph.inputs.begin(), graph.inputs.end(), id);
  if (it == graph.inputs.end()) return std::nullopt;
  return static_cast<std::size_t>(it - graph.inputs.begin());
}

// The graph input that `id` is, seen through nothing but changes of type and axes that repeat it.
std::optional<std::size_t> list_behind(const Graph& graph, ValueId id) {
  while (const Node* maker = graph.producer(id)) {
    if (!is_one_of(maker->op, {Op::kCast, Op::kReshape, Op::kExpand, Op::kIdentity})) return std::nullopt;
    id = maker->inputs[0];
  }
  const auto input = input_of(graph, id);
  return input && is_integer(graph.value(id).dtype) ? input : std::nullopt;
}

// 0, 1, 2, ...
bool is_count(const Graph& graph, ValueId id) {
  const Node* maker = graph.producer(id);
  while (maker && is_one_of(maker->op, {Op::kReshape, Op::kCast})) maker = graph.producer(maker->inputs[0]);
  const auto is = [&](Key<Shape> key, int64_t value) {
    return maker->attributes.has(key) && maker->attributes.get(key)[0].is_constant(value);
  };
  return maker && maker->op == Op::kRange && is(key::kStart, 0) && is(key::kDelta, 1);
}

}  // namespace

const Shape& known_shape(const Graph& graph, ValueId id) {
  if (id == kNoValue || !graph.value(id).shape) throw GivenUp{};
  return *graph.value(id).shape;
}

std::optional<WrittenPlaces> written_places(const Graph& graph, ValueId indices, std::size_t axis,
                                            const Expr& count) {
  ValueId row = indices;
  while (const Node* maker = graph.producer(row)) {
    if (!is_one_of(maker->op, {Op::kExpand, Op::kCast, Op::kIdentity})) break;
    row = maker->inputs[0];
  }
  const auto lies_along = [&](ValueId id) {  // [1 or batch, 1, ..., count, ..., 1]
    const Shape& s = known_shape(graph, id);
    for (std::size_t i = 1; i < s.size(); ++i)
      if (i == axis ? !(s[i] == count) : !s[i].is_constant(1)) return false;
    return axis < s.size() && (axis > 0 || s[0] == count);
  };
  if (const Node* sum = made_by(graph, row, Op::kAdd)) {
    for (const std::size_t side : {0, 1}) {
      const ValueId steps = sum->inputs[side], first = sum->inputs[1 - side];
      if (!lies_along(steps) || !is_count(graph, steps) || !lies_along(row)) continue;
      for (std::size_t i = 1; i < known_shape(graph, first).size(); ++i)
        if (!known_shape(graph, first)[i].is_constant(1)) return std::nullopt;
      const auto input = list_behind(graph, first);
      if (!input) return std::nullopt;
      return WrittenPlaces{*input, true};
    }
    return std::nullopt;
  }
  if (!lies_along(row)) return std::nullopt;
  const auto input = list_behind(graph, row);
  // One list for all rows of the batch, or one a row.
  if (!input || !(known_shape(graph, graph.inputs[*input]).back() == count) ||
      known_shape(graph, graph.inputs[*input]).size() > 2)
    return std::nullopt;
  return WrittenPlaces{*input, false};
}

std::optional<std::pair<std::size_t, std::size_t>> cache_behind(const Graph& graph, ValueId data,
                                                                std::size_t axis) {
  while (const Node* maker = graph.producer(data)) {
    if (maker->op == Op::kTranspose)
      axis = static_cast<std::size_t>(maker->attributes.get(key::kPerm)[axis]);
    else if (maker->op != Op::kIdentity)
      return std::nullopt;
    data = maker->inputs[0];
  }
  const auto input = input_of(graph, data);
  if (!input || !is_floating(graph.value(data).dtype) || known_shape(graph, data).size() < 3)
    return std::nullopt;
  return std::pair(*input, axis);
}

}  // namespace ark::decoder
