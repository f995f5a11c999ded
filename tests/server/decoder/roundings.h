// How far apart two right ways to compute the same graph may be, and the graph with its 16-bit types widened.
//
// First-order bound: each operator's result carries a relative error of at most the unit roundoff for every
// rounding made in it, and errors of one path add up. So along the path with the most roundings, n, the
// result is off by n * u of the magnitudes at hand.
#pragma once

#include <algorithm>
#include <map>

#include "base/ir/graph.h"
#include "base/ir/keys.h"

namespace ark::test {

inline constexpr double kUnitF32 = 0x1p-24, kUnitF16 = 0x1p-11;

inline bool is_half(DType type) { return type == DType::kF16 || type == DType::kBF16; }

// Operators that only move elements are exact.
inline bool rounds(Op op) {
  switch (op) {
    case Op::kIdentity:
    case Op::kReshape:
    case Op::kTranspose:
    case Op::kConcat:
    case Op::kSlice:
    case Op::kSplit:
    case Op::kGather:
    case Op::kExpand:
    case Op::kWhere:
    case Op::kNeg:
      return false;
    default:
      return true;
  }
}

// Roundings of one result in f32: as many as it adds terms up.
inline int64_t terms(const Graph& graph, const Node& node, int64_t context) {
  const auto last = [&](ValueId v) -> int64_t {
    const Value& value = graph.value(v);
    if (!value.shape || value.shape->empty()) return 1;
    const std::optional<int64_t> size = value.shape->back().constant();
    return size ? *size : context;
  };
  switch (node.op) {
    case Op::kMatMul:
    case Op::kMatMulNBits:
    case Op::kReduceSum:
    case Op::kReduceMean:
    case Op::kSoftmax:
    case Op::kLayerNorm:
    case Op::kRmsNorm:
      return last(node.inputs[0]);
    case Op::kAttention:
      return last(node.inputs[0]) + 2 * context;
    default:
      return 1;
  }
}

// Roundings on the longest path through floating values; in_16 counts one for each 16-bit result instead of
// one for each term of each sum. `context`: what symbolic sums run over.
inline int64_t longest_roundings(const Graph& graph, int64_t context, bool in_16) {
  std::map<ValueId, int64_t> path;
  int64_t longest = 0;
  for (const Node& node : graph.nodes) {
    if (node.removed) continue;
    int64_t before = 0;
    for (const ValueId v : node.inputs) {
      const auto at = path.find(v);
      if (at != path.end()) before = std::max(before, at->second);
    }
    for (const ValueId v : node.outputs) {
      if (v == kNoValue || !is_floating(graph.value(v).dtype)) continue;
      int64_t own = 0;
      if (rounds(node.op)) own = in_16 ? is_half(graph.value(v).dtype) : terms(graph, node, context);
      path[v] = before + own;
      longest = std::max(longest, path[v]);
    }
  }
  return longest;
}

inline bool has_half(const Graph& graph) {
  return std::any_of(graph.values.begin(), graph.values.end(),
                     [](const Value& v) { return is_half(v.dtype); });
}

inline ConstantPtr widened(const ConstantPtr& constant) {
  const Tensor from = materialise(*constant);
  Tensor to = Tensor::empty(DType::kF32, from.dims);
  for (int64_t i = 0; i < from.size(); ++i) to.as<float>()[i] = static_cast<float>(from.real(i));
  return make_constant(std::move(to), constant->name);
}

// The same computation in f32 from the first value that depends on `roots` on: what a 16-bit graph means
// before its activations are rounded. What follows from positions and masks alone (rotary tables) stays as
// the file rounds it.
inline void widen(Graph& graph, const std::vector<ValueId>& roots) {
  std::vector<bool> depends(graph.values.size());
  for (const ValueId root : roots) depends[root] = true;
  const auto is_changed = [&](ValueId v) { return v != kNoValue && depends[v]; };
  for (const Node& node : graph.nodes) {
    if (node.removed || node.op == Op::kDims ||
        std::none_of(node.inputs.begin(), node.inputs.end(), is_changed))
      continue;
    for (const ValueId v : node.outputs)
      if (v != kNoValue) depends[v] = true;
  }
  for (std::size_t v = 0; v < depends.size(); ++v)
    if (depends[v] && is_half(graph.values[v].dtype)) graph.values[v].dtype = DType::kF32;
  std::map<ValueId, ValueId> wide;  // unchanged 16-bit value -> its f32 twin
  std::vector<Node> old = std::move(graph.nodes);
  graph.nodes.clear();
  for (Node& node : old) {
    if (node.removed) continue;
    if (std::any_of(node.inputs.begin(), node.inputs.end(), is_changed)) {
      if (node.attributes.has(key::kTo) && is_half(static_cast<DType>(node.attributes.get(key::kTo))))
        node.attributes.set(key::kTo, static_cast<int64_t>(DType::kF32));
      for (ValueId& v : node.inputs) {
        if (v == kNoValue || is_changed(v) || !is_half(graph.value(v).dtype)) continue;
        if (!wide.contains(v)) {
          if (graph.value(v).constant) {
            wide[v] = graph.add_constant(widened(graph.value(v).constant));
          } else {
            wide[v] = graph.add_value(graph.value(v).name + ".f32", DType::kF32, graph.value(v).shape);
            graph.add_node(Op::kCast, "widen", {v}, {wide[v]},
                           {{key::kTo, static_cast<int64_t>(DType::kF32)}});
          }
        }
        v = wide[v];
      }
    }
    const std::vector<ValueId> outputs = node.outputs;
    const auto id = static_cast<NodeId>(graph.nodes.size());
    graph.nodes.push_back(std::move(node));
    for (const ValueId v : outputs)
      if (v != kNoValue) graph.value(v).producer = id;
  }
}

}  // namespace ark::test
