// From query-key products to the product with the values: what happens to attention scores on the way.
#include <algorithm>

#include "base/ir/attention_operands.h"
#include "base/ir/keys.h"
#include "importer/decoder/rewrite.h"

namespace ark::decoder {
namespace {

// Heads of `over` (its feature atoms in order) that broadcast against the head axes of `from`: for each head
// of `over`, the head of `from`. Axes are aligned from the right.
std::vector<int64_t> head_map(const Node& node, const Layout& over, const Layout& from) {
  std::vector<int64_t> map(static_cast<std::size_t>(features(over)), 0);
  int64_t inner_over = 1, inner_from = 1;
  for (std::size_t back = 1; back <= over.size(); ++back) {
    const Axis& a = over[over.size() - back];
    const int64_t n = features(a), m = back <= from.size() ? features(from[from.size() - back]) : 1;
    if (m != n && m != 1)
      refuse(node, "attends over heads that do not match: " + str(over) + " and " + str(from));
    for (std::size_t h = 0; h < map.size() && m == n; ++h)
      map[h] += static_cast<int64_t>(h) / inner_over % n * inner_from;
    inner_over *= n;
    inner_from *= m;
  }
  return map;
}

// Batch axes: the same rows, or features that broadcast.
void check_batch(const Node& node, const Layout& a, const Layout& b) {
  for (std::size_t back = 1; back <= std::max(a.size(), b.size()); ++back) {
    const Axis x = back <= a.size() ? a[a.size() - back] : Axis{},
               y = back <= b.size() ? b[b.size() - back] : Axis{};
    const bool same = x == y || (!has_rows(x) && !has_rows(y)) || x.empty() || y.empty();
    if (!same) refuse(node, "attends across batch rows: " + str(a) + " and " + str(b));
  }
}

bool only(const Axis& axis, AtomKind kind) { return axis.size() == 1 && axis[0].kind == kind; }

// Keys or values over the context. New tokens stand for the context in a file without caches.
std::optional<Rows> as_context(const Rewrite& r, Rows x, std::size_t axis) {
  if (only(x.layout[axis], AtomKind::kContext)) return x;
  if (r.roles.has_past || !only(x.layout[axis], AtomKind::kSequence)) return std::nullopt;
  x.layout = renamed(std::move(x.layout), AtomKind::kSequence, AtomKind::kContext, r.roles.sizes.total());
  return x;
}

Layout front(const Layout& layout, std::size_t drop) {
  return {layout.begin(), layout.end() - static_cast<std::ptrdiff_t>(drop)};
}

// q [.., M, D] with new tokens on M, k [.., N, D] with the context on N.
Scores start_scores(Rewrite& r, const Node& node, const Rows& q, const Rows& k) {
  const std::size_t m = q.layout.size() - 2, n = k.layout.size() - 2;
  if (has_rows(q.layout[m + 1]) || has_rows(k.layout[n + 1]))
    refuse(node, "sums over tokens: " + str(q.layout) + " and " + str(k.layout));
  const int64_t dim = features(q.layout[m + 1]);
  if (dim != features(k.layout[n + 1])) refuse(node, "multiplies queries and keys of different sizes");
  check_batch(node, front(q.layout, 2), front(k.layout, 2));
  Scores s;
  s.layout = front(q.layout, 1);
  s.layout.push_back(k.layout[n]);
  for (std::size_t back = 3; back <= k.layout.size(); ++back) {  // a batch axis that only the keys have
    if (back > q.layout.size()) refuse(node, "has keys of more axes than queries");
    const std::size_t i = q.layout.size() - back;
    const Axis& from = k.layout[k.layout.size() - back];
    if (s.layout[i].empty() && !from.empty())
      refuse(node, "repeats queries for several keys: " + str(q.layout) + " and " + str(k.layout));
  }
  Layout over = front(s.layout, 1), from = front(k.layout, 2);
  from.push_back({});  // M, which keys do not have
  s.key_head = head_map(node, over, from);
  s.q = r.out.reshape(q.tokens, {features(over), dim});
  s.k = r.out.reshape(k.tokens, {features(from), dim});
  return s;
}

// A MatMul of queries with keys, either way round.
bool product(Rewrite& r, const Node& node) {
  const bool trans_a = node.attributes.get_or(key::kTransA, 0),
             trans_b = node.attributes.get_or(key::kTransB, 0);
  const Rows *left = r.rows(node.inputs[0]), *right = r.rows(node.inputs[1]);
  if (!left || !right || left->layout.size() < 2 || right->layout.size() < 2) return false;
  const Rows a = trans_a ? last_two_swapped(r, *left) : *left;    // [.., M, D]
  const Rows b = trans_b ? *right : last_two_swapped(r, *right);  // [.., N, D]
  const Axis &rows_a = a.layout[a.layout.size() - 2], &rows_b = b.layout[b.layout.size() - 2];
  const bool a_tokens = has_rows(rows_a) && !only(rows_a, AtomKind::kBatch),
             b_tokens = has_rows(rows_b) && !only(rows_b, AtomKind::kBatch);
  if (!a_tokens || !b_tokens) return false;
  if (only(rows_b, AtomKind::kPast) || only(rows_a, AtomKind::kPast))
    refuse(node, "attends to an input of its own (cross attention)");
  if (a.last || b.last) refuse(node, "attends from the last token only");
  Scores s;
  if (const auto k = as_context(r, b, b.layout.size() - 2); k && has_kind(rows_a, AtomKind::kSequence)) {
    s = start_scores(r, node, a, *k);
  } else if (const auto other = as_context(r, a, a.layout.size() - 2);
             other && has_kind(rows_b, AtomKind::kSequence)) {
    s = start_scores(r, node, b, *other);
    std::swap(s.layout[s.layout.size() - 1], s.layout[s.layout.size() - 2]);
  } else {
    refuse(node, "multiplies tokens with tokens, but is no attention over the context: " + str(a.layout) +
                     " and " + str(b.layout));
  }
  r.set(node.outputs[0], std::move(s));
  return true;
}

// Scores times values, or both transposed: values [.., D, N] times scores [.., N, M].
void weigh_values(Rewrite& r, const Node& node, const Scores& s) {
  const bool is_transposed = !r.scores(node.inputs[0]);
  const bool turn_scores =
      node.attributes.get_or(is_transposed ? key::kTransB : key::kTransA, 0) != is_transposed;
  const bool turn_values =
      node.attributes.get_or(is_transposed ? key::kTransA : key::kTransB, 0) != is_transposed;
  const Rows* values_of = r.rows(node.inputs[is_transposed ? 0 : 1]);
  if (!values_of || values_of->layout.size() < 2)
    refuse(node, "multiplies attention weights with something that is no value of tokens");
  if (s.sink_column) refuse(node, "multiplies values with a column of sinks");
  if (!s.normalized) refuse(node, "uses attention scores that went through no softmax");
  Layout layout = s.layout;
  if (turn_scores) std::swap(layout[layout.size() - 1], layout[layout.size() - 2]);
  Rows v = turn_values ? last_two_swapped(r, *values_of) : *values_of;
  const auto context = as_context(r, v, v.layout.size() - 2);
  if (!only(layout.back(), AtomKind::kContext) || !context)
    refuse(node, "multiplies attention weights " + str(layout) + " with " + str(v.layout));
  v = *context;
  check_batch(node, front(layout, 2), front(v.layout, 2));
  Layout over = front(layout, 1), from = front(v.layout, 2);
  from.push_back({});
  const int64_t dim = features(v.layout.back());
  const ValueId values = r.out.reshape(v.tokens, {features(from), dim});
  const ValueId y = emit_attention(r, node, s, values, head_map(node, over, from));
  over.push_back(v.layout.back());
  const Rows weighed{over, r.out.reshape(y, token_dims(over)), false};
  r.set(node.outputs[0], is_transposed ? last_two_swapped(r, weighed) : weighed);
}

// Free operands of elementwise steps.
void pointwise(Rewrite& r, const Node& node) {
  std::size_t at = 0;
  while (!r.scores(node.inputs[at])) ++at;
  Scores s = *r.scores(node.inputs[at]);
  std::vector<ValueId> others;
  for (std::size_t i = 0; i < node.inputs.size(); ++i)
    if (i != at) {
      const Scores* test = r.scores(node.inputs[i]);
      if (!test && !r.is_free(node.inputs[i])) refuse(node, "combines attention scores with tokens");
      others.push_back(node.inputs[i]);
    }
  ScoreStep step{.op = node.op, .node = &node, .layout = s.layout, .scores_first = at == 0};
  switch (node.op) {
    case Op::kIdentity:
    case Op::kCast:
      if (node.op == Op::kCast && !is_floating(static_cast<DType>(node.attributes.get(key::kTo))))
        refuse(node, "makes attention scores integers");
      return r.set(node.outputs[0], std::move(s));
    case Op::kWhere:
      step.other = node.inputs[0];
      step.third = node.inputs[at == 1 ? 2 : 1];
      step.scores_first = at == 1;
      if (r.scores(step.third)) refuse(node, "chooses between attention scores");
      break;
    case Op::kMul:
    case Op::kAdd:
    case Op::kSub:
    case Op::kDiv:
    case Op::kMax:
      if (const Scores* top = r.scores(others[0]); top && node.op == Op::kSub && at == 0 && top->row_max)
        return r.set(node.outputs[0], std::move(s));
      if (r.scores(others[0])) refuse(node, "combines attention scores with each other");
      if (node.op == Op::kDiv && at != 0) refuse(node, "divides by attention scores");
      step.other = others[0];
      break;
    case Op::kClip:
      if (node.input(1) == kNoValue || node.input(2) != kNoValue) refuse(node, "clips attention scores");
      step.op = Op::kMax;
      step.other = node.inputs[1];
      break;
    case Op::kTanh:
    case Op::kNeg:
      break;
    default:
      refuse(node, "does to attention scores what no paged attention does");
  }
  if (s.normalized) refuse(node, "changes attention weights after softmax");
  if (s.sink_column || s.row_max) refuse(node, "changes attention scores beside sinks");
  s.steps.push_back(std::move(step));
  r.set(node.outputs[0], std::move(s));
}

// Concat(scores, sinks): a column beside the keys, the same for every token.
void add_sinks(Rewrite& r, const Node& node, Scores s) {
  const auto axis = static_cast<std::size_t>(node.attributes.get(key::kAxis));
  const bool fits = node.inputs.size() == 2 && r.scores(node.inputs[0]) && r.is_free(node.inputs[1]) &&
                    axis + 1 == s.layout.size() && only(s.layout[axis], AtomKind::kContext) &&
                    s.sinks.empty() && !s.normalized;
  if (!fits) refuse(node, "joins attention scores with something that is no sink");
  const auto heads = static_cast<std::size_t>(features(s.layout));
  const Step longest = r.roles.has_past ? Step{1, 1, r.length - 1} : Step{1, r.length, 0};
  for (const Step& asked : {Step{1, 1, 0}, Step{2, 3, 5}, longest}) {
    const Tensor t = r.probe.value(node.inputs[1], r.probe.possible(asked));
    if (t.dims.empty() || t.dims.back() != 1 || t.size() % static_cast<int64_t>(heads) != 0)
      refuse(node, "joins attention scores with more than one column");
    // [batch, heads, tokens, 1]: the heads are the one axis that matters.
    const int64_t tokens = t.dims.size() > 2 ? t.dims[t.dims.size() - 2] : 1;
    if (s.sinks.empty())
      for (std::size_t h = 0; h < heads; ++h)
        s.sinks.push_back(static_cast<float>(t.real(static_cast<int64_t>(h) * tokens)));
    for (int64_t i = 0; i < t.size(); ++i)
      if (static_cast<float>(t.real(i)) != s.sinks[static_cast<std::size_t>(i / tokens) % heads])
        refuse(node, "has sinks that differ from token to token");
  }
  s.sink_column = true;
  r.set(node.outputs[0], std::move(s));
}

bool takes_all_but_last(const Rewrite& r, const Node& node, const Scores& s) {
  if (node.op != Op::kSlice || !node.attributes.has(key::kStarts) ||
      node.attributes.get(key::kAxes).size() != 1)
    return false;
  const auto axis = static_cast<std::size_t>(node.attributes.get(key::kAxes)[0]);
  return axis + 1 == s.layout.size() && node.attributes.get(key::kSteps)[0] == 1 &&
         same_size(node.attributes.get(key::kStarts)[0], 0, r.roles.sizes) &&
         same_size(node.attributes.get(key::kEnds)[0], r.roles.sizes.total(), r.roles.sizes);
}

// The largest score of each query, kept as an axis of 1.
bool is_row_max(const Node& node, const Scores& s) {
  const auto axes = node.attributes.get_or(key::kAxes, {});
  return node.op == Op::kReduceMax && node.attributes.get_or(key::kKeepdims, 1) && axes.size() == 1 &&
         only(s.layout.at(static_cast<std::size_t>(axes[0])), AtomKind::kContext) && !s.normalized;
}

// Heads must stay in their order, for their products with the values are matched by number.
void movement(Rewrite& r, const Node& node, Scores s) {
  if (node.op == Op::kConcat) return add_sinks(r, node, std::move(s));
  if (is_row_max(node, s)) {
    s.row_max = true;
    return r.set(node.outputs[0], std::move(s));
  }
  if (s.sink_column && s.normalized && takes_all_but_last(r, node, s)) {
    s.sink_column = false;
    return r.set(node.outputs[0], std::move(s));
  }
  if (s.sink_column || s.row_max) refuse(node, "moves attention scores beside sinks");
  const auto is_head = [](const Axis& a) { return features(a) > 1; };
  if (node.op == Op::kTranspose) {
    std::vector<int64_t> heads;
    Layout layout;
    for (const int64_t p : node.attributes.get(key::kPerm)) {
      layout.push_back(s.layout.at(static_cast<std::size_t>(p)));
      if (is_head(layout.back())) heads.push_back(p);
    }
    if (!std::is_sorted(heads.begin(), heads.end())) refuse(node, "permutes the heads of attention scores");
    s.layout = std::move(layout);
  } else if (node.op == Op::kReshape) {
    auto layout = reshaped(s.layout, r.shape(node, node.outputs[0]));
    if (!layout)
      refuse(node,
             "reshapes attention scores " + str(s.layout) + " to " + str(r.shape(node, node.outputs[0])));
    s.layout = std::move(*layout);
  } else if (node.op == Op::kExpand) {
    const Shape& to = r.shape(node, node.outputs[0]);
    for (std::size_t i = 0; i < to.size(); ++i)
      if (to.size() != s.layout.size() || !same_size(to[i], size(s.layout[i]), r.roles.sizes))
        refuse(node, "repeats attention scores");
  } else {
    refuse(node, "does to attention scores what no paged attention does");
  }
  r.set(node.outputs[0], std::move(s));
}

void add_operator_steps(Rewrite& r, const Node& node, Scores& s) {
  const auto step = [&](Op op, double factor) {
    s.steps.push_back({.op = op, .node = &node, .layout = s.layout, .factor = factor});
  };
  step(Op::kMul, node.attributes.get_or(key::kScale, 1));
  if (const double cap = node.attributes.get_or(key::kSoftcap, 0); cap != 0) {
    step(Op::kDiv, cap);
    step(Op::kTanh, 1);
    step(Op::kMul, cap);
  }
  if (const ValueId bias = node.input(attention::kBias); bias != kNoValue) {
    if (!r.is_free(bias)) refuse(node, "adds a bias that depends on tokens");
    const bool selects = r.plain.value(bias).dtype == DType::kBool;
    s.steps.push_back(
        {.op = selects ? Op::kWhere : Op::kAdd, .node = &node, .layout = s.layout, .other = bias});
  }
  if (const ValueId sinks = node.input(attention::kSinks); sinks != kNoValue) {
    const ConstantPtr given = r.is_free(sinks) ? r.constant(sinks) : nullptr;
    if (!given) refuse(node, "has sinks that are no constants");
    const Tensor t = materialise(*given);
    for (int64_t h = 0; h < t.size(); ++h) s.sinks.push_back(static_cast<float>(t.real(h)));
  }
  const int64_t window = node.attributes.get_or(key::kWindow, 0);
  if (node.attributes.get_or(key::kCausal, 0)) {
    s.steps.push_back({.op = Op::kAttention,
                       .node = &node,
                       .layout = s.layout,
                       .other = node.input(attention::kLengths),
                       .scores_first = node.input(attention::kPastK) != kNoValue,
                       .window = window});
  } else if (window) {
    refuse(node, "has a window without being causal");
  }
  s.normalized = true;
}

void attention_operator(Rewrite& r, const Node& node) {
  using namespace attention;
  const auto rows_of = [&](std::size_t i) {
    const Rows* x = node.input(i) != kNoValue ? r.rows(node.inputs[i]) : nullptr;
    if (!x || x->last)
      refuse(node, "attends with an operand " + std::to_string(i) + " that is no value of tokens");
    return *x;
  };
  for (const Step& asked : {Step{1, 2, 3}, Step{1, 1, 7}}) {
    const Step step = r.probe.possible(asked);
    if (node.input(kTotal) != kNoValue && r.probe.value(node.inputs[kTotal], step).integer(0) != step.total())
      refuse(node, "counts other keys than those of past and new tokens");
  }
  const Rows q = rows_of(kQ);
  Rows context[2];
  for (std::size_t i = 0; i < 2; ++i) {  // keys, then values
    Rows x = rows_of(kK + i);
    if (node.input(kPastK + i) != kNoValue) x = join_past(r, node, rows_of(kPastK + i), x, 2);
    r.set(node.output(kPresentK + i), x);
    if (only(x.layout.at(2), AtomKind::kPast))
      refuse(node, "attends to an input of its own (cross attention)");
    const auto c = as_context(r, x, 2);
    if (!c) refuse(node, "attends to new tokens only, " + str(x.layout) + ", though the file has caches");
    context[i] = *c;
  }
  const Axis &heads_axis = q.layout.at(1), &keys_axis = context[0].layout[1];
  const int64_t heads = features(heads_axis), keys = features(keys_axis),
                values = features(context[1].layout[1]);
  if (!only(q.layout[2], AtomKind::kSequence) || has_rows(heads_axis) || has_rows(q.layout[3]) ||
      heads % keys || heads % values)
    refuse(node, "has queries " + str(q.layout) + " beside keys " + str(context[0].layout));
  check_batch(node, {q.layout[0]}, {context[0].layout[0]});
  Scores s;
  s.layout = {q.layout[0], heads_axis, q.layout[2], context[0].layout[2]};
  s.q = r.out.reshape(q.tokens, {heads, features(q.layout[3])});
  s.k = r.out.reshape(context[0].tokens, {keys, features(context[0].layout[3])});
  std::vector<int64_t> value_head;
  for (int64_t h = 0; h < heads; ++h) {
    s.key_head.push_back(h / (heads / keys));
    value_head.push_back(h / (heads / values));
  }
  add_operator_steps(r, node, s);
  const int64_t dim = features(context[1].layout[3]);
  const ValueId y = emit_attention(r, node, s, r.out.reshape(context[1].tokens, {values, dim}), value_head);
  const Layout layout{q.layout[0], heads_axis, q.layout[2], context[1].layout[3]};
  r.set(node.outputs[0], Rows{layout, r.out.reshape(y, token_dims(layout)), false});
}

}  // namespace

bool rewrite_scores(Rewrite& r, const Node& node) {
  if (node.op == Op::kAttention) return attention_operator(r, node), true;
  const Scores* s = nullptr;
  for (const ValueId id : node.inputs)
    if (const Scores* x = r.scores(id); x && !s) s = x;
  if (!s) return node.op == Op::kMatMul && product(r, node);
  if (test_scores(r, node)) return true;
  if (node.op == Op::kMatMul) {
    weigh_values(r, node, Scores(*s));
  } else if (node.op == Op::kSoftmax) {
    Scores y = *s;
    const auto axis = static_cast<std::size_t>(node.attributes.get(key::kAxis));
    if (y.normalized || y.row_max) refuse(node, "normalizes attention weights twice");
    if (!only(y.layout.at(axis), AtomKind::kContext))
      refuse(node, "normalizes attention scores " + str(y.layout) + " along an axis that is not the context");
    y.normalized = true;
    r.set(node.outputs[0], std::move(y));
  } else if (is_pointwise(node.op)) {
    pointwise(r, node);
  } else {
    movement(r, node, *s);
  }
  return true;
}

}  // namespace ark::decoder
