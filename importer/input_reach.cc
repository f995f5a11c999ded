#include "importer/input_reach.h"

#include <algorithm>

#include "base/ir/attention_operands.h"
#include "base/ir/keys.h"

namespace ark::input_reach {
namespace {

// Calls f(node, value) for each reader of the values that `start` becomes; f says whether to follow the
// node's outputs.
template <typename F>
void walk(const Graph& graph, const Readers& readers, ValueId start, F&& follows) {
  std::vector<ValueId> work{start};
  std::set<ValueId> seen{start};
  while (!work.empty()) {
    const ValueId id = work.back();
    work.pop_back();
    for (const NodeId reader : readers[id]) {
      const Node& node = graph.node(reader);
      if (node.op == Op::kWhere && node.inputs[0] == id)
        continue;  // it chooses, and is no part of what is chosen
      if (!follows(node, id)) continue;
      for (const ValueId out : node.outputs)
        if (out != kNoValue && seen.insert(out).second) work.push_back(out);
    }
  }
}

std::optional<int64_t> lone_integer(const Graph& graph, ValueId id) {
  const ConstantPtr& c = graph.value(id).constant;
  if (!c || c->size() != 1 || !is_integer(c->dtype)) return std::nullopt;
  return materialise(*c).integer(0);
}

// A constant, or one that is dequantized, cast and turned first.
bool is_stored(const Graph& graph, ValueId id) {
  while (!graph.value(id).constant) {
    const Node* maker = graph.producer(id);
    if (maker && maker->op == Op::kDequantizeLinear) return true;
    if (!maker || (maker->op != Op::kCast && maker->op != Op::kTranspose)) return false;
    id = maker->inputs[0];
  }
  return true;
}

// The axis along which new rows are joined behind an input, by Concat or by an attention.
std::optional<std::size_t> grown_axis(const Graph& graph, const Readers& readers, ValueId id) {
  for (const NodeId reader : readers[id]) {
    const Node& node = graph.node(reader);
    if (node.op == Op::kConcat && node.inputs.size() == 2 && node.inputs[0] == id)
      return static_cast<std::size_t>(node.attributes.get(key::kAxis));
    if (node.op == Op::kAttention &&
        (node.input(attention::kPastK) == id || node.input(attention::kPastV) == id))
      return 2;
  }
  return std::nullopt;
}

}  // namespace

bool only_moves(Op op) {
  return is_movement(op) || is_one_of(op, {Op::kCast, Op::kScatterND, Op::kScatterElements,
                                           Op::kDequantizeLinear, Op::kQuantizeLinear});
}

int64_t table_rows(const Graph& graph, const Readers& readers, ValueId start) {
  int64_t rows = 0;
  walk(graph, readers, start, [&](const Node& node, ValueId id) {
    if (node.op == Op::kGather && node.inputs[1] == id) {
      const Value& table = graph.value(node.inputs[0]);
      if (is_stored(graph, node.inputs[0]) && table.shape && table.shape->size() >= 2 &&
          node.attributes.get(key::kAxis) == 0)
        rows = std::max(rows, table.shape->front().constant().value_or(0));
      return false;
    }
    const bool follows = only_moves(node.op) ||
                         is_one_of(node.op, {Op::kAdd, Op::kSub, Op::kMax, Op::kMin, Op::kClip, Op::kWhere});
    return follows && std::none_of(node.outputs.begin(), node.outputs.end(), [&](ValueId out) {
             return out != kNoValue && is_floating(graph.value(out).dtype);
           });
  });
  return rows;
}

bool are_logits(const Value& value, int64_t rows) {
  if (!is_floating(value.dtype) || !value.shape || value.shape->size() < 2 || value.shape->size() > 3)
    return false;
  const int64_t width = value.shape->back().constant().value_or(0);
  return width >= 2 && width * 2 >= rows;
}

bool scores_tokens(const Graph& graph) {
  const Readers readers = graph.consumers();
  return std::any_of(graph.inputs.begin(), graph.inputs.end(), [&](ValueId id) {
    const Value& ids = graph.value(id);
    if (!is_integer(ids.dtype) || !ids.shape || ids.shape->size() != 2) return false;
    const int64_t rows = table_rows(graph, readers, id);
    return rows > 0 && std::any_of(graph.outputs.begin(), graph.outputs.end(),
                                   [&](ValueId out) { return are_logits(graph.value(out), rows); });
  });
}

bool makes_angles(const Graph& graph, const Readers& readers, ValueId start) {
  bool found = false;
  walk(graph, readers, start, [&](const Node& node, ValueId id) {
    if (node.op == Op::kCos || node.op == Op::kSin || (node.op == Op::kRotary && node.input(3) == id))
      found = true;
    return !found && (only_moves(node.op) || (node.op == Op::kRange && node.inputs[0] == id) ||
                      is_one_of(node.op, {Op::kMul, Op::kMatMul, Op::kDiv, Op::kAdd, Op::kEinsum}));
  });
  return found;
}

Parts parts_of(const Graph& graph, const Readers& readers, ValueId start) {
  Parts parts;
  walk(graph, readers, start, [&](const Node& node, ValueId id) {
    parts.are_taken |= node.op == Op::kSlice && node.inputs[0] == id;
    parts.are_counted |= node.op == Op::kCumSum;
    return node.op == Op::kCast || node.op == Op::kIdentity;
  });
  return parts;
}

bool begins_range(const Graph& graph, const Readers& readers, ValueId start) {
  const auto moves_one = [](const Node& node) {
    return is_one_of(node.op, {Op::kCast, Op::kIdentity, Op::kReshape});
  };
  const auto is_range = [&](ValueId id) {
    const Node* node = graph.producer(id);
    while (node && moves_one(*node)) node = graph.producer(node->inputs[0]);
    return node && node->op == Op::kRange;
  };
  bool found = false;
  walk(graph, readers, start, [&](const Node& node, ValueId id) {
    if (node.inputs[0] == id) found = found || node.op == Op::kRange;
    if (node.op == Op::kAdd) found = found || is_range(node.inputs[node.inputs[0] == id ? 1 : 0]);
    return !found && moves_one(node) && node.inputs[0] == id;
  });
  return found;
}

std::optional<int64_t> length_offset(const Graph& graph, const Readers& readers, ValueId id) {
  constexpr int kMostHops = 32;
  std::vector<std::pair<ValueId, int64_t>> work{{id, 0}};
  for (int hops = 0; !work.empty() && hops < kMostHops; ++hops) {
    const auto [value, offset] = work.back();
    work.pop_back();
    for (const NodeId reader : readers[value]) {
      const Node& node = graph.node(reader);
      if (node.op == Op::kAttention &&
          (node.input(attention::kLengths) == value || node.input(attention::kTotal) == value))
        return offset;
      if (node.outputs[0] == kNoValue) continue;
      if (node.op == Op::kIdentity || node.op == Op::kCast || node.op == Op::kReshape) {
        work.emplace_back(node.outputs[0], offset);
      } else if (node.op == Op::kAdd || node.op == Op::kSub) {
        const bool first = node.inputs[0] == value;
        const auto by = lone_integer(graph, node.inputs[first ? 1 : 0]);
        if (by && (first || node.op == Op::kAdd))
          work.emplace_back(node.outputs[0], node.op == Op::kAdd ? offset + *by : offset - *by);
      }
    }
  }
  return std::nullopt;
}

bool tells_by_one(const Graph& graph, const Readers& readers, ValueId start) {
  bool found = false;
  walk(graph, readers, start, [&](const Node& node, ValueId id) {
    const bool is_picked = node.op == Op::kGather && node.inputs[0] == id &&
                           lone_integer(graph, node.inputs[1]) && node.attributes.get(key::kAxis) != 0;
    found = found || is_picked || node.op == Op::kReduceMax;
    return !found && is_one_of(node.op, {Op::kCast, Op::kIdentity, Op::kAdd, Op::kReshape});
  });
  return found;
}

InputAxes misnamed_axes(const Graph& graph) {
  InputAxes found;
  const Readers readers = graph.consumers();
  const auto is_square = [&](ValueId id) {  // [tokens, tokens], [batch, 1, tokens, tokens]
    const auto& shape = graph.value(id).shape;
    return shape && (shape->size() == 2 || (shape->size() == 4 && (*shape)[1].is_constant(1))) &&
           (*shape)[shape->size() - 2] == shape->back() && !shape->back().constant();
  };
  const auto is_cache = [&](ValueId id) {
    const Value& v = graph.value(id);
    return v.shape && v.shape->size() >= 3 && !is_square(id) && is_floating(v.dtype) &&
           std::any_of(v.shape->begin(), v.shape->end(), [](const Expr& e) { return !e.constant(); });
  };
  const auto is_table = [&](ValueId id) { return table_rows(graph, readers, id) > 0; };
  const auto is_flat = [&](ValueId id) {
    const Value& v = graph.value(id);
    return v.shape && v.shape->size() == 2 && !v.shape->back().constant() &&
           (is_integer(v.dtype) || v.dtype == DType::kBool);
  };
  if (std::none_of(graph.inputs.begin(), graph.inputs.end(), is_cache)) return found;
  for (const ValueId id : graph.inputs) {
    const auto are_tokens = [&](const Expr& length) {
      return std::any_of(graph.inputs.begin(), graph.inputs.end(), [&](ValueId other) {
        return other != id && is_flat(other) && graph.value(other).shape->back() == length && is_table(other);
      });
    };
    const Value& v = graph.value(id);
    if (const auto axis = is_cache(id) ? grown_axis(graph, readers, id) : std::nullopt) {
      if (*axis < v.shape->size() && !(*v.shape)[*axis].constant() && are_tokens((*v.shape)[*axis]))
        found.insert({v.name, *axis});
    } else if ((is_flat(id) || is_square(id)) && are_tokens(v.shape->back()) && !is_table(id) &&
               !makes_angles(graph, readers, id) && !tells_by_one(graph, readers, id)) {
      found.insert({v.name, v.shape->size() - 1});
    }
  }
  return found;
}

}  // namespace ark::input_reach
