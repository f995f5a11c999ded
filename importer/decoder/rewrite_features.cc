// Nodes that work along feature axes: normalization, reductions, operators over whole rows, top-k.
#include <algorithm>
#include <numeric>

#include "base/ir/keys.h"
#include "base/ir/rowwise_host.h"
#include "importer/decoder/rewrite.h"

namespace ark::decoder {
namespace {

// The axis of the token form, once it is proven to hold features only.
int64_t feature_axis_of(const Node& node, const Rows& x, int64_t axis) {
  const Axis& a = x.layout.at(static_cast<std::size_t>(axis));
  if (has_rows(a)) refuse(node, "works along the tokens of " + str(x.layout));
  return token_axis(x.layout, static_cast<std::size_t>(axis));
}

// (x, parameters...) normalized over axis..rank-1.
bool normalize(Rewrite& r, const Node& node, const Rows& x) {
  for (std::size_t i = 1; i < node.inputs.size(); ++i)
    if (node.inputs[i] != kNoValue && !r.constant(node.inputs[i]))
      refuse(node, "has a scale or bias that is no constant");
  const auto axis = static_cast<std::size_t>(node.attributes.get(key::kAxis));
  for (std::size_t i = axis; i < x.layout.size(); ++i) feature_axis_of(node, x, static_cast<int64_t>(i));
  for (std::size_t i = 1; i < node.outputs.size(); ++i)
    if (node.outputs[i] != kNoValue) refuse(node, "hands out its statistics");
  std::vector<ValueId> inputs{x.tokens};
  Layout layout = x.layout;
  for (std::size_t i = 1; i < node.inputs.size(); ++i)
    inputs.push_back(node.inputs[i] == kNoValue ? kNoValue
                                                : r.conform(r.operand(node, node.inputs[i], layout), layout));
  Attributes attributes = node.attributes;
  attributes.set(key::kAxis, static_cast<int64_t>(token_axis(layout, axis)));
  r.set(node.outputs[0], Rows{layout, r.out.emit(node.op, inputs, attributes), x.last});
  return true;
}

bool reduce(Rewrite& r, const Node& node, const Rows& x) {
  if (node.input(1) != kNoValue) refuse(node, "reduces along axes that depend on data");
  std::vector<int64_t> axes = node.attributes.get_or(key::kAxes, {});
  if (axes.empty()) {
    if (node.attributes.get_or(key::kNoopWithEmptyAxes, 0)) return false;
    for (std::size_t i = 0; i < x.layout.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  }
  const bool keep = node.attributes.get_or(key::kKeepdims, 1) != 0;
  std::vector<int64_t> token_axes;
  Layout layout;
  for (std::size_t i = 0; i < x.layout.size(); ++i) {
    const bool reduced = std::find(axes.begin(), axes.end(), static_cast<int64_t>(i)) != axes.end();
    if (reduced) token_axes.push_back(feature_axis_of(node, x, static_cast<int64_t>(i)));
    if (!reduced || keep) layout.push_back(reduced ? Axis{} : x.layout[i]);
  }
  const ValueId y = r.out.emit(node.op, {x.tokens},
                               {{key::kAxes, token_axes}, {key::kKeepdims, static_cast<int64_t>(keep)}});
  r.set(node.outputs[0], Rows{layout, y, x.last});
  return true;
}

// A free operand beside rows of the same rank; repeated for each of their tokens if it is the same for all.
Rows repeated(Rewrite& r, const Node& node, ValueId id, const Rows& like) {
  const Shape& shape = r.shape(node, id);
  Rows data = r.operand(node, id, like.layout);
  if (!r.out.is_constant(data.tokens)) return data;
  Layout layout = like.layout;
  for (std::size_t i = 0; i < layout.size(); ++i)
    if (!has_rows(layout[i])) {
      if (!shape[i].constant()) refuse(node, "has an operand whose size " + shape[i].str() + " is left open");
      layout[i] = feature_axis(*shape[i].constant());
    }
  return {layout, r.out.as_rows(r.conform(data, layout), token_dims(layout)), like.last};
}

// One axis attribute; the other inputs are rows or constants of the same rank.
bool along_axis(Rewrite& r, const Node& node, const Rows& x) {
  const int64_t axis = node.attributes.get(key::kAxis);
  Attributes attributes = node.attributes;
  attributes.set(key::kAxis, feature_axis_of(node, x, axis));
  std::vector<ValueId> inputs{x.tokens};
  const bool is_elementwise = node.op == Op::kScatterElements || node.op == Op::kGatherElements;
  for (std::size_t i = 1; i < node.inputs.size(); ++i) {
    std::optional<Rows> other;
    if (const Rows* rows = r.rows(node.inputs[i]))
      other = *rows;
    else if (is_elementwise && r.is_free(node.inputs[i]))
      other = repeated(r, node, node.inputs[i], x);
    if (node.inputs[i] == kNoValue) {
      inputs.push_back(kNoValue);
    } else if (other) {
      if (other->layout.size() != x.layout.size() || other->last != x.last)
        refuse(node, "indexes the rows of other tokens");
      for (std::size_t k = 0; k < x.layout.size(); ++k)
        if (has_rows(x.layout[k]) ? !(other->layout[k] == x.layout[k]) : has_rows(other->layout[k]))
          refuse(node, "indexes the rows of other tokens");
      inputs.push_back(other->tokens);
    } else {
      const ConstantPtr c = r.constant(node.inputs[i]);
      if (!c || c->dims.size() > 1 || c->size() != 1)
        refuse(node, "has an operand that is neither rows nor one number");
      inputs.push_back(r.out.constant(c));
    }
  }
  const auto results = r.out.emit_many(node.op, inputs, attributes, static_cast<int>(node.outputs.size()));
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (node.outputs[i] == kNoValue) continue;
    Rows y{x.layout, results[i], x.last};
    const bool removed =
        (node.op == Op::kArgMax || node.op == Op::kArgMin) && !node.attributes.get_or(key::kKeepdims, 1);
    const Dims dims = r.out.dims(results[i]);
    if (removed)
      y.layout.erase(y.layout.begin() + axis);
    else
      y.layout[axis] = feature_axis(dims[attributes.get(key::kAxis) - 1]);
    r.set(node.outputs[i], std::move(y));
  }
  return true;
}

bool scatter_slices(Rewrite& r, const Node& node, const Rows& x);

// Scatter onto zeros (or any constant): the data becomes rows first.
bool scatter_onto_constant(Rewrite& r, const Node& node) {
  if (node.op == Op::kScatterND) {
    const Rows* written = r.rows(node.inputs[2]);
    const auto slices = r.shape(node, node.inputs[0])[0].constant();
    if (!written || !slices || written->layout.size() != r.shape(node, node.inputs[0]).size()) return false;
    Rows like = *written;
    like.layout[0] = feature_axis(*slices);
    return scatter_slices(r, node, repeated(r, node, node.inputs[0], like));
  }
  const Rows *indices = r.rows(node.inputs[1]), *updates = r.rows(node.inputs[2]);
  const Rows* like = indices ? indices : updates;
  return like && along_axis(r, node, repeated(r, node, node.inputs[0], *like));
}

// For each slice of the first axis after ScatterND: its place in the data, or, behind them, in the updates.
std::vector<int64_t> sources(const Node& node, const Constant& places, int64_t size) {
  std::vector<int64_t> from(static_cast<std::size_t>(size));
  std::iota(from.begin(), from.end(), 0);
  const Tensor at = materialise(places);
  for (int64_t i = 0; i < at.size(); ++i) {
    const int64_t place = at.integer(i) < 0 ? at.integer(i) + size : at.integer(i);
    if (place < 0 || place >= size) refuse(node, "writes to place " + std::to_string(at.integer(i)));
    if (from[place] != place) refuse(node, "writes to a place twice");
    from[place] = size + i;
  }
  return from;
}

// ScatterND of whole slices at fixed places of the first axis: each comes from the data or from the updates.
bool scatter_slices(Rewrite& r, const Node& node, const Rows& x) {
  const ConstantPtr places = r.is_free(node.inputs[1]) ? r.constant(node.inputs[1]) : nullptr;
  if (!places || places->dims.size() != 2 || places->dims[1] != 1 ||
      node.attributes.get_or(key::kReduction, "none") != "none")
    return false;
  const int64_t axis = feature_axis_of(node, x, 0), size = features(x.layout[0]), count = places->dims[0];
  const std::vector<int64_t> from = sources(node, *places, size);
  Layout like = x.layout;
  like[0] = feature_axis(count);
  Rows updates = r.operand(node, node.inputs[2], like);
  if (r.out.is_constant(updates.tokens))
    updates = {like, r.out.as_rows(r.conform(updates, like), token_dims(like)), x.last};
  if (updates.layout != like || updates.last != x.last) refuse(node, "writes the rows of other tokens");
  const ValueId both = r.out.emit(Op::kConcat, {x.tokens, updates.tokens}, {{key::kAxis, axis}});
  const Dims dims = token_dims(x.layout);
  const int64_t inner = element_count(Dims(dims.begin() + axis, dims.end()));
  std::vector<int64_t> index;
  for (int64_t e = 0; e < element_count(dims); ++e) {
    const int64_t slice = e / inner % size, outer = e / inner / size;
    index.push_back((outer * (size + count) + from[slice]) * inner + e % inner);
  }
  r.set(node.outputs[0], Rows{x.layout, r.out.pick(both, index, dims), x.last});
  return true;
}

bool one_hot(Rewrite& r, const Node& node) {
  const Rows* x = r.rows(node.inputs[0]);
  if (!x) return false;
  const ConstantPtr depth = r.constant(node.inputs[1]), values = r.constant(node.inputs[2]);
  if (!depth || !values) refuse(node, "has a depth that is no constant");
  const int64_t axis = node.attributes.get(key::kAxis);
  Rows y{x->layout, kNoValue, x->last};
  y.layout.insert(y.layout.begin() + axis, feature_axis(materialise(*depth).integer(0)));
  y.tokens =
      r.out.emit(Op::kOneHot, {x->tokens, r.out.constant(depth), r.out.constant(values)},
                 {{key::kAxis, static_cast<int64_t>(token_axis(y.layout, static_cast<std::size_t>(axis)))}});
  r.set(node.outputs[0], std::move(y));
  return true;
}

}  // namespace

bool rewrite_features(Rewrite& r, const Node& node) {
  if (is_one_of(node.op, {Op::kScatterElements, Op::kScatterND}) && r.is_free(node.inputs[0]))
    return scatter_onto_constant(r, node);
  const Rows* found = node.inputs.empty() ? nullptr : r.rows(node.inputs[0]);
  if (!found) return false;
  const Rows x = *found;
  if (is_reduction(node.op)) return reduce(r, node, x);
  if (rowwise::row_of(node.op)) return along_axis(r, node, x);
  switch (node.op) {
    case Op::kLayerNorm:
    case Op::kRmsNorm:
      return normalize(r, node, x);
    case Op::kArgMax:
    case Op::kArgMin:
    case Op::kTopK:
    case Op::kGatherElements:
    case Op::kScatterElements:
      return along_axis(r, node, x);
    case Op::kCumSum:
      return node.attributes.has(key::kAxis) && along_axis(r, node, x);
    case Op::kOneHot:
      return one_hot(r, node);
    case Op::kScatterND:
      return scatter_slices(r, node, x);
    default:
      return false;
  }
}

}  // namespace ark::decoder
