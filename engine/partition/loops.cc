#include <algorithm>

#include "base/ir/keys.h"
#include "engine/partition/op_rule.h"

namespace ark {
namespace {

// A loop along `axis` of input 0 and of every output; other inputs are whole.
Loop same_axis(const Node& node, int axis) {
  Loop loop = empty_loop(node);
  loop.inputs[0] = axis;
  std::fill(loop.outputs.begin(), loop.outputs.end(), axis);
  return loop;
}

}  // namespace

const Shape& shape_of(const Graph& graph, ValueId value) {
  static const Shape unknown;
  if (value == kNoValue || !graph.value(value).shape) return unknown;
  return *graph.value(value).shape;
}

int rank_of(const Graph& graph, ValueId value) { return static_cast<int>(shape_of(graph, value).size()); }

Loop empty_loop(const Node& node) {
  return {std::vector<int>(node.inputs.size(), -1), std::vector<int>(node.outputs.size(), -1)};
}

std::vector<Loop> pointwise_loops(const Graph& graph, const Node& node) {
  std::vector<Loop> loops;
  const Shape& out = shape_of(graph, node.outputs[0]);
  const int rank = static_cast<int>(out.size());
  for (int axis = 0; axis < rank; ++axis) {
    Loop loop = empty_loop(node);
    loop.outputs[0] = axis;
    bool aligned = true;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const Shape& in = shape_of(graph, node.inputs[i]);
      const int at = axis - (rank - static_cast<int>(in.size()));
      if (at < 0 || in[at].is_constant(1)) continue;
      aligned &= in[at] == out[axis];
      loop.inputs[i] = at;
    }
    if (aligned) loops.push_back(std::move(loop));
  }
  return loops;
}

std::vector<Loop> reshape_loops(const Graph& graph, const Node& node) {
  const Shape& in = shape_of(graph, node.inputs[0]);
  const Shape& out = shape_of(graph, node.outputs[0]);
  std::vector<Loop> loops;
  // Both shapes as runs of axes with equal products; the first axis of a run moves slowest on both sides.
  std::size_t i = 0, j = 0;
  while (i < in.size() && j < out.size()) {
    if (in[i].is_constant(1)) {
      ++i;
      continue;
    }
    if (out[j].is_constant(1)) {
      ++j;
      continue;
    }
    const std::size_t first_in = i, first_out = j;
    Expr a = in[i++], b = out[j++];
    while (!(a == b)) {
      const auto ca = a.constant(), cb = b.constant();
      const bool grow_in = ca && cb ? *ca < *cb : j == out.size();
      if (grow_in ? i == in.size() : j == out.size()) return loops;
      if (grow_in)
        a = a * in[i++];
      else
        b = b * out[j++];
    }
    const auto whole_in = in[first_in].constant(), whole_out = out[first_out].constant();
    if (!whole_in || !whole_out || *whole_in <= 0 || *whole_out <= 0) continue;
    if (std::max(*whole_in, *whole_out) % std::min(*whole_in, *whole_out) != 0) continue;
    Loop loop = empty_loop(node);
    loop.inputs[0] = static_cast<int>(first_in);
    loop.outputs[0] = static_cast<int>(first_out);
    loops.push_back(std::move(loop));
  }
  return loops;
}

std::vector<Loop> transpose_loops(const Graph&, const Node& node) {
  std::vector<Loop> loops;
  const std::vector<int64_t>& perm = node.attributes.get(key::kPerm);
  for (std::size_t axis = 0; axis < perm.size(); ++axis) {
    Loop loop = empty_loop(node);
    loop.inputs[0] = static_cast<int>(perm[axis]);
    loop.outputs[0] = static_cast<int>(axis);
    loops.push_back(std::move(loop));
  }
  return loops;
}

std::vector<Loop> other_axes_loops(const Graph& graph, const Node& node) {
  std::vector<int64_t> axes;
  if (node.attributes.has(key::kAxes))
    axes = node.attributes.get(key::kAxes);
  else if (node.attributes.has(key::kAxis))
    axes = {node.attributes.get(key::kAxis)};
  else
    return {};
  std::vector<Loop> loops;
  for (int axis = 0; axis < rank_of(graph, node.inputs[0]); ++axis) {
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) continue;
    Loop loop = same_axis(node, axis);
    if (node.op == Op::kConcat) std::fill(loop.inputs.begin(), loop.inputs.end(), axis);
    loops.push_back(std::move(loop));
  }
  return loops;
}

std::vector<Loop> leading_axes_loops(const Graph&, const Node& node) {
  std::vector<Loop> loops;
  for (int axis = 0; axis < node.attributes.get(key::kAxis); ++axis) loops.push_back(same_axis(node, axis));
  return loops;
}

std::vector<Loop> reduce_loops(const Graph& graph, const Node& node) {
  if (!node.attributes.has(key::kAxes)) return {};
  const std::vector<int64_t>& axes = node.attributes.get(key::kAxes);
  const bool keeps = node.attributes.get_or(key::kKeepdims, 1) != 0;
  std::vector<Loop> loops;
  int out = 0;
  for (int axis = 0; axis < rank_of(graph, node.inputs[0]); ++axis) {
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) {
      out += keeps;
      continue;
    }
    Loop loop = empty_loop(node);
    loop.inputs[0] = axis;
    loop.outputs[0] = out++;
    loops.push_back(std::move(loop));
  }
  return loops;
}

}  // namespace ark
