// Movement that moves nothing, or that a later movement undoes.
#include <algorithm>

#include "base/ir/keys.h"
#include "base/ir/shape_rules/rules.h"
#include "importer/passes/match.h"
#include "importer/passes/passes.h"

namespace ark::passes {
namespace {

bool same_shape(const Graph& graph, ValueId a, ValueId b) {
  const auto &x = graph.value(a).shape, &y = graph.value(b).shape;
  return x && y && *x == *y;
}

bool takes_everything(const Graph& graph, const Node& slice) {
  if (!slice.attributes.has(key::kStarts)) return false;
  for (const int64_t s : slice.attributes.get(key::kSteps))
    if (s != 1) return false;
  for (const Expr& e : slice.attributes.get(key::kStarts))
    if (!e.is_constant(0)) return false;
  return same_shape(graph, slice.inputs[0], slice.outputs[0]);
}

bool moves_nothing(const Graph& graph, const Node& node) {
  switch (node.op) {
    case Op::kIdentity:
      return true;
    case Op::kCast:
      return graph.value(node.inputs[0]).dtype == graph.value(node.outputs[0]).dtype;
    case Op::kReshape:
    case Op::kExpand:
      return same_shape(graph, node.inputs[0], node.outputs[0]);
    case Op::kTranspose:
      return is_identity(node.attributes.get(key::kPerm));
    case Op::kSlice:
      return takes_everything(graph, node);
    case Op::kConcat:
      return node.inputs.size() == 1;
    case Op::kSplit:
      return node.outputs.size() == 1 && node.attributes.has(key::kSizes);
    default:
      return false;
  }
}

// Every value of `narrow` is one of `wide`.
bool holds(DType wide, DType narrow) {
  if (is_floating(wide) && is_floating(narrow)) {
    if (narrow == DType::kF64) return wide == DType::kF64;
    return wide == DType::kF64 || wide == DType::kF32 || wide == narrow;
  }
  if (narrow == DType::kBool) return true;
  return (wide == DType::kI64 &&
          (narrow == DType::kI32 || narrow == DType::kI8 || narrow == DType::kU8 || narrow == DType::kI16)) ||
         wide == narrow;
}

// Cast after a widening Cast: straight from the source.
bool join_casts(const Graph& graph, Node& node) {
  const Node* before = made_by(graph, node.inputs[0], Op::kCast);
  if (!before || !holds(graph.value(before->outputs[0]).dtype, graph.value(before->inputs[0]).dtype))
    return false;
  node.inputs[0] = before->inputs[0];
  return true;
}

bool join_reshapes(const Graph& graph, Node& node) {
  const Node* before = made_by(graph, node.inputs[0], Op::kReshape);
  if (!before || !node.attributes.has(key::kShape)) return false;
  node.inputs[0] = before->inputs[0];
  return true;
}

bool join_transposes(const Graph& graph, Node& node) {
  const Node* before = made_by(graph, node.inputs[0], Op::kTranspose);
  if (!before) return false;
  std::vector<int64_t> perm;
  for (const int64_t p : node.attributes.get(key::kPerm))
    perm.push_back(before->attributes.get(key::kPerm)[p]);
  node.inputs[0] = before->inputs[0];
  node.attributes.set(key::kPerm, std::move(perm));
  return true;
}

// A product repeats matrices for the batch of its other operand anyway: one that was repeated for it (torch.export's
// decompositions make `bmm` of what had been one weight) is read as it is.
bool repeat_by_product(const Graph& graph, Node& node) {
  const auto& shape = graph.value(node.outputs[0]).shape;
  const auto batch_of = [](const Shape& s) { return Shape(s.begin(), s.end() - 2); };
  for (const std::size_t i : {0, 1}) {
    const Node* expand = made_by(graph, node.inputs[i], Op::kExpand);
    const auto &to = graph.value(node.inputs[i]).shape, &other = graph.value(node.inputs[1 - i]).shape;
    const auto& from = expand ? graph.value(expand->inputs[0]).shape : to;
    if (!expand || !shape || !to || !other || !from || from->size() < 2 || other->size() < 2 ||
        shape->size() < 2)
      continue;
    const bool is_matrix = std::equal(from->end() - 2, from->end(), to->end() - 2);
    const auto batch = shape_rules::broadcast_shape(batch_of(*from), batch_of(*other));
    if (!is_matrix || !batch || *batch != batch_of(*shape)) continue;
    node.inputs[i] = expand->inputs[0];
    return true;
  }
  return false;
}

bool join(const Graph& graph, Node& node) {
  switch (node.op) {
    case Op::kMatMul:
      return repeat_by_product(graph, node);
    case Op::kCast:
      return join_casts(graph, node);
    case Op::kReshape:
      return join_reshapes(graph, node);
    case Op::kTranspose:
      return join_transposes(graph, node);
    default:
      return false;
  }
}

}  // namespace

bool cancel_movement(Graph& graph) {
  bool changed = false;
  Aliases aliases(graph);
  for (Node& node : graph.nodes) {
    if (node.removed) continue;
    aliases.apply(node);
    if (node.outputs.empty() || node.outputs[0] == kNoValue) continue;
    while (join(graph, node)) changed = true;
    if (!moves_nothing(graph, node)) continue;
    aliases.set(node.outputs[0], node.inputs[0]);
    node.removed = true;
  }
  aliases.apply(graph);
  return changed || aliases.any();
}

}  // namespace ark::passes
