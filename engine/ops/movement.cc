// Identity and Reshape: mostly no work at all, another view of the same memory.
#include "base/ir/keys.h"
#include "engine/lower/lowering.h"
#include "engine/partition/op_rule.h"

namespace ark {
namespace {

// With `shape` and the like made those of this rank.
Attributes local_attributes(Lowering& l, const Node& node) {
  Attributes attributes = node.attributes;
  attributes.set(key::kShape, l.local_shape(node.outputs[0]));
  return attributes;
}

void lower_reshape(Lowering& l, const Node& node) {
  if (l.alias(node.outputs[0], node.inputs[0])) return;
  l.emit_generic(node, local_attributes(l, node));
}

void lower_expand(Lowering& l, const Node& node) { l.emit_generic(node, local_attributes(l, node)); }

// Replicated to split: this rank's part, by the Slice kernel.
void lower_identity(Lowering& l, const Node& node) {
  const ValueId in = node.inputs[0], out = node.outputs[0];
  const Shape whole = l.local_shape(in), part = l.local_shape(out);
  if (whole == part) {
    if (!l.alias(out, in)) l.emit_generic(node);
    return;
  }
  Attributes slice;
  std::vector<int64_t> axes, steps;
  Shape starts, ends;
  for (std::size_t axis = 0; axis < whole.size(); ++axis) {
    if (whole[axis] == part[axis]) continue;
    const Range range = l.part(out, static_cast<int>(axis), l.rank());
    axes.push_back(static_cast<int64_t>(axis));
    steps.push_back(1);
    starts.emplace_back(range.begin);
    ends.emplace_back(range.end);
  }
  slice.set(key::kAxes, axes);
  slice.set(key::kStarts, starts);
  slice.set(key::kEnds, ends);
  slice.set(key::kSteps, steps);
  Node as_slice = node;
  as_slice.op = Op::kSlice;
  l.emit_generic(as_slice, slice);
}

}  // namespace

std::vector<OpRule> movement_rules() {
  return {{Op::kIdentity, pointwise_loops, true, lower_identity},
          {Op::kReshape, reshape_loops, true, lower_reshape},
          {Op::kExpand, pointwise_loops, false, lower_expand},
          {Op::kTranspose, transpose_loops, true},
          {Op::kConcat, other_axes_loops},
          {Op::kSplit, other_axes_loops},
          {Op::kSlice, other_axes_loops}};
}

}  // namespace ark
