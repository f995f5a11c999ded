// Movement of rows: what permutes, cuts, repeats or joins features, and the few things that may be done to
// row axes.
#include <algorithm>
#include <numeric>

#include "base/ir/keys.h"
#include "importer/decoder/rewrite.h"

namespace ark::decoder {
namespace {

Rows reshape(Rewrite& r, const Node& node, const Rows& x) {
  const Shape& to = r.shape(node, node.outputs[0]);
  auto layout = reshaped(x.layout, to);
  if (!layout)
    refuse(node, "reshapes " + str(x.layout) + " to " + str(to) + ", which mixes tokens and features");
  const ValueId tokens = r.out.reshape(x.tokens, token_dims(*layout));
  return {std::move(*layout), tokens, x.last};
}

// Sizes of 1 become features; or the batch, for rows that do not depend on it.
Rows expand(Rewrite& r, const Node& node, const Rows& x) {
  const Shape& to = r.shape(node, node.outputs[0]);
  Rows y{Layout(to.size()), x.tokens, x.last};
  Dims dims;
  Dims before;
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::size_t back = to.size() - i;
    const Axis from = back <= x.layout.size() ? x.layout[x.layout.size() - back] : Axis{};
    if (same_size(to[i], size(from), r.roles.sizes)) {
      y.layout[i] = from;
    } else if (const auto n = to[i].constant(); from.empty() && n) {
      y.layout[i] = feature_axis(*n);
    } else if (from.empty() && to[i] == r.roles.sizes.batch && !has_kind(x.layout, AtomKind::kBatch)) {
      y.layout[i] = {{AtomKind::kBatch, to[i]}};
    } else {
      refuse(node, "repeats rows: from " + str(x.layout) + " to " + str(to));
    }
    if (!is_kept(y.layout[i])) continue;
    before.push_back(features(from));
    dims.push_back(features(y.layout[i]));
  }
  y.tokens = r.out.expand(r.out.reshape(x.tokens, before), dims);
  return y;
}

// [size - 1, size) of the new tokens: only the last is asked for.
bool takes_last(const Rewrite& r, const Rows& x, std::size_t axis, const Expr& begin, const Expr& end) {
  const StepSizes& sizes = r.roles.sizes;
  return x.layout[axis].size() == 1 && x.layout[axis][0].kind == AtomKind::kSequence &&
         same_size(begin, sizes.sequence - 1, sizes) && same_size(end, sizes.sequence, sizes);
}

Rows slice(Rewrite& r, const Node& node, const Rows& x) {
  if (!node.attributes.has(key::kStarts)) refuse(node, "slices by bounds that depend on data");
  const auto& axes = node.attributes.get(key::kAxes);
  const Shape &starts = node.attributes.get(key::kStarts), &ends = node.attributes.get(key::kEnds);
  const auto& steps = node.attributes.get(key::kSteps);
  Rows y = x;
  std::vector<int64_t> kept_axes, kept_steps;
  Shape kept_starts, kept_ends;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<std::size_t>(axes[i]);
    const Expr whole = size(x.layout.at(axis));
    if (steps[i] == 1 && same_size(starts[i], 0, r.roles.sizes) && same_size(ends[i], whole, r.roles.sizes))
      continue;
    if (steps[i] == 1 && takes_last(r, x, axis, starts[i], ends[i])) {
      y.layout[axis] = {};
      y.last = true;
      Dims dims = token_dims(y.layout);
      y.tokens = r.out.reshape(y.tokens, dims);
      if (axes.size() > 1) refuse(node, "cuts tokens and features at once");
      continue;
    }
    const auto begin = starts[i].constant(), end = ends[i].constant();
    if (has_rows(x.layout[axis]) || !begin || !end) refuse(node, "cuts tokens out of " + str(x.layout));
    const int64_t step = steps[i];
    const int64_t n = step > 0 ? std::max<int64_t>(0, (*end - *begin + step - 1) / step)
                               : std::max<int64_t>(0, (*begin - *end - step - 1) / -step);
    y.layout[axis] = feature_axis(n);
    kept_axes.push_back(token_axis(x.layout, axis));
    kept_starts.push_back(*begin);
    kept_ends.push_back(*end);
    kept_steps.push_back(step);
  }
  if (!kept_axes.empty())
    y.tokens = r.out.emit(Op::kSlice, {y.tokens},
                          {{key::kAxes, kept_axes},
                           {key::kStarts, kept_starts},
                           {key::kEnds, kept_ends},
                           {key::kSteps, kept_steps}});
  return y;
}

// A mutilated graph may want features in a number that varies.
Axis features_of(const Node& node, const Expr& size) {
  if (const auto n = size.constant()) return feature_axis(*n);
  refuse(node, "makes a number of features that varies: " + size.str());
}

std::vector<Rows> split(Rewrite& r, const Node& node, const Rows& x) {
  const auto axis = static_cast<std::size_t>(node.attributes.get(key::kAxis));
  if (!node.attributes.has(key::kSizes)) refuse(node, "splits by sizes that depend on data");
  if (has_rows(x.layout.at(axis))) refuse(node, "splits tokens apart: " + str(x.layout));
  const Shape& sizes = node.attributes.get(key::kSizes);
  const auto parts =
      r.out.emit_many(Op::kSplit, {x.tokens},
                      {{key::kAxis, static_cast<int64_t>(token_axis(x.layout, axis))}, {key::kSizes, sizes}},
                      static_cast<int>(sizes.size()));
  std::vector<Rows> results;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Rows y{x.layout, parts[i], x.last};
    y.layout[axis] = features_of(node, sizes[i]);
    results.push_back(std::move(y));
  }
  return results;
}

// Rows as data, indices the same at every step.
Rows gather(Rewrite& r, const Node& node, const Rows& x) {
  const auto axis = static_cast<std::size_t>(node.attributes.get(key::kAxis));
  const Shape& index_shape = r.shape(node, node.inputs[1]);
  const bool sequence = x.layout.at(axis).size() == 1 && x.layout[axis][0].kind == AtomKind::kSequence;
  if (sequence && element_count(index_shape).is_constant(1)) {
    for (const Step& asked : {Step{1, 1, 0}, Step{2, 3, 5}, Step{3, 4, 1}}) {
      const Step step = r.probe.possible(asked);
      const int64_t i = r.probe.value(node.inputs[1], step).integer(0);
      if (i != -1 && i != step.sequence - 1)
        refuse(node, "picks token " + std::to_string(i) + " of " + std::to_string(step.sequence) +
                         ", not the last");
    }
    Rows y{x.layout, x.tokens, true};
    y.layout.erase(y.layout.begin() + static_cast<std::ptrdiff_t>(axis));
    y.layout.insert(y.layout.begin() + static_cast<std::ptrdiff_t>(axis), index_shape.size(), Axis{});
    y.tokens = r.out.reshape(y.tokens, token_dims(y.layout));
    return y;
  }
  if (has_rows(x.layout[axis])) refuse(node, "picks tokens out of " + str(x.layout));
  const ConstantPtr index = r.is_free(node.inputs[1]) ? r.constant(node.inputs[1]) : nullptr;
  if (!index) refuse(node, "picks features by indices that are no constants");
  Rows y{x.layout, kNoValue, x.last};
  y.layout.erase(y.layout.begin() + static_cast<std::ptrdiff_t>(axis));
  for (std::size_t i = 0; i < index->dims.size(); ++i)
    y.layout.insert(y.layout.begin() + static_cast<std::ptrdiff_t>(axis + i), feature_axis(index->dims[i]));
  y.tokens = r.out.emit(Op::kGather, {x.tokens, r.out.constant(index)},
                        {{key::kAxis, static_cast<int64_t>(token_axis(x.layout, axis))}});
  return y;
}

Rows tile(Rewrite& r, const Node& node, const Rows& x) {
  if (!node.attributes.has(key::kRepeats)) refuse(node, "repeats by counts that depend on data");
  const Shape& repeats = node.attributes.get(key::kRepeats);
  Rows y = x;
  Shape kept{1};
  Dims from, to;  // of the axes that either token form has
  for (std::size_t i = 0; i < repeats.size(); ++i) {
    const Axis& axis = x.layout.at(i);
    const auto n = repeats[i].constant();
    const bool batch =
        axis.empty() && repeats[i] == r.roles.sizes.batch && !has_kind(x.layout, AtomKind::kBatch);
    if (!batch && !n) refuse(node, "repeats tokens of " + str(x.layout));
    y.layout[i] = batch ? Axis{{AtomKind::kBatch, repeats[i]}} : feature_axis(*n);
    for (const Atom& a : axis) append(y.layout[i], a);  // copies of all tokens: a feature in front of them
    if (!is_kept(axis) && !is_kept(y.layout[i])) continue;
    from.push_back(features(axis));
    to.push_back(features(y.layout[i]));
    kept.emplace_back(batch ? 1 : *n);
  }
  y.tokens = r.out.reshape(y.tokens, from);
  if (std::equal(from.begin(), from.end(), to.begin(), [](int64_t a, int64_t b) { return a == b || a == 1; }))
    y.tokens = r.out.expand(y.tokens, to);
  else
    y.tokens = r.out.emit(Op::kTile, {y.tokens}, {{key::kRepeats, kept}});
  y.tokens = r.out.reshape(y.tokens, token_dims(y.layout));
  return y;
}

// Which rows a layout runs over besides the batch.
AtomKind rows_over(const Layout& layout) {
  for (const Atom& a : flatten(layout))
    if (is_row(a) && a.kind != AtomKind::kBatch) return a.kind;
  return AtomKind::kFeature;
}

bool concat_past(Rewrite& r, const Node& node) {
  if (node.inputs.size() != 2) return false;
  const Rows *past = r.rows(node.inputs[0]), *fresh = r.rows(node.inputs[1]);
  if (!past || !fresh) return false;
  const auto axis = static_cast<std::size_t>(node.attributes.get(key::kAxis));
  if (!has_rows(past->layout.at(axis)) && !has_rows(fresh->layout.at(axis))) return false;
  r.set(node.outputs[0], join_past(r, node, Rows(*past), Rows(*fresh), axis));
  return true;
}

bool concat(Rewrite& r, const Node& node) {
  if (concat_past(r, node)) return true;
  const auto axis = static_cast<std::size_t>(node.attributes.get(key::kAxis));
  const Rows* first = nullptr;
  for (const ValueId id : node.inputs)
    if (const Rows* x = r.rows(id); x && !first) first = x;
  if (has_rows(first->layout.at(axis))) refuse(node, "joins tokens along " + str(first->layout));
  Layout others = first->layout;
  Expr total = 0;
  std::vector<ValueId> values;
  std::vector<Rows> operands;
  for (const ValueId id : node.inputs) {
    const Rows* x = r.rows(id);
    if (x && (x->last != first->last || rows_over(x->layout) != rows_over(first->layout)))
      refuse(node, "joins rows of different tokens");
    Layout beside = first->layout;
    beside[axis] = {};
    operands.push_back(r.operand(node, id, beside));
    if (operands.back().layout.size() != others.size()) refuse(node, "joins values of different ranks");
    total = total + size(operands.back().layout[axis]);
    for (std::size_t i = 0; i < others.size(); ++i)
      if (i != axis && others[i].empty()) others[i] = operands.back().layout[i];
  }
  for (Rows& x : operands) {
    Layout want = others;
    want[axis] = x.layout[axis];
    Dims dims = token_dims(want);
    const ValueId value = r.conform(x, want);
    values.push_back(r.out.is_constant(x.tokens) ? r.out.as_rows(value, dims) : r.out.expand(value, dims));
  }
  others[axis] = features_of(node, total);
  const int64_t at = token_axis(others, axis);
  r.set(node.outputs[0], Rows{others, r.out.emit(Op::kConcat, values, {{key::kAxis, at}}), first->last});
  return true;
}

}  // namespace

Rows permuted(Rewrite& r, const Rows& x, const std::vector<int64_t>& perm) {
  Rows y{{}, x.tokens, x.last};
  std::vector<int64_t> kept;  // places among x's kept axes, in y's order
  for (const int64_t p : perm) {
    const auto axis = static_cast<std::size_t>(p);
    y.layout.push_back(x.layout.at(axis));
    if (is_kept(x.layout[axis])) kept.push_back(token_axis(x.layout, axis) - 1);
  }
  y.tokens = r.out.transpose(x.tokens, kept);
  return y;
}

Rows last_two_swapped(Rewrite& r, const Rows& x) {
  std::vector<int64_t> perm(x.layout.size());
  std::iota(perm.begin(), perm.end(), 0);
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return permuted(r, x, perm);
}

// Concat(past, new) along the sequence is the context. Its rows are those of the new tokens, for any token
// was new once; that what the file stores is what it reads back is checked at the end (caches.cc).
Rows join_past(Rewrite& r, const Node& node, const Rows& past, const Rows& fresh, std::size_t axis) {
  const Axis &a = past.layout.at(axis), &b = fresh.layout.at(axis);
  const Expr total = r.roles.sizes.total();
  const Layout context = renamed(past.layout, AtomKind::kPast, AtomKind::kContext, total);
  const bool matches = a.size() == 1 && b.size() == 1 && a[0].kind == AtomKind::kPast &&
                       b[0].kind == AtomKind::kSequence &&
                       context == renamed(fresh.layout, AtomKind::kSequence, AtomKind::kContext, total);
  if (!matches) refuse(node, "joins tokens: " + str(past.layout) + " and " + str(fresh.layout));
  const Origins::Row& origin = r.origins.of(past.tokens);
  const auto place =
      std::find(r.placeholders.begin(), r.placeholders.end(), origin.empty() ? kNoValue : origin[0].value);
  if (origin.empty() || place == r.placeholders.end())
    refuse(node, "joins something that is no cache with new tokens");
  r.links.push_back(
      {static_cast<std::size_t>(place - r.placeholders.begin()), past.tokens, fresh.tokens, &node});
  return {context, fresh.tokens, false};
}

std::optional<std::vector<Rows>> moved(Rewrite& r, const Node& node, const Rows& x) {
  switch (node.op) {
    case Op::kReshape:
      return {{reshape(r, node, x)}};
    case Op::kTranspose:
      return {{permuted(r, x, node.attributes.get(key::kPerm))}};
    case Op::kExpand:
      return {{expand(r, node, x)}};
    case Op::kSlice:
      return {{slice(r, node, x)}};
    case Op::kSplit:
      return split(r, node, x);
    case Op::kTile:
      return {{tile(r, node, x)}};
    case Op::kGather:
      if (r.is_free(node.inputs[1])) return {{gather(r, node, x)}};
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

bool rewrite_movement(Rewrite& r, const Node& node) {
  if (node.op == Op::kConcat) return concat(r, node);
  const Rows* x = node.inputs.empty() ? nullptr : r.rows(node.inputs[0]);
  if (!x) return false;
  auto results = moved(r, node, Rows(*x));
  if (!results) return false;
  for (std::size_t i = 0; i < node.outputs.size(); ++i) r.set(node.outputs[i], std::move((*results)[i]));
  return true;
}

}  // namespace ark::decoder
