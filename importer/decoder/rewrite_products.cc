// Products of rows with weights, look-ups in weights, and rotary embedding as an operator.
#include <algorithm>

#include "base/error.h"
#include "base/ir/keys.h"
#include "importer/decoder/rewrite.h"

namespace ark::decoder {
namespace {

constexpr int64_t kMostIndices = 4'096;  // constants of more are not looked through
constexpr int kMostLookedAt = 64;        // values that an index is made of

Layout layout_of_dims(const Dims& dims) {
  Layout layout;
  for (const int64_t d : dims) layout.push_back(feature_axis(d));
  return layout;
}

// The matrix that a weight is but for leading axes of size 1, so that a quantized one stays as it is stored:
// the product with rows of at least as many axes is the same.
ValueId without_ones(const Graph& graph, ValueId id, std::size_t most_axes) {
  const Node* node = graph.producer(id);
  const auto& shape = graph.value(id).shape;
  if (!node || node->op != Op::kReshape || !shape || shape->size() > most_axes) return id;
  const auto& before = graph.value(node->inputs[0]).shape;
  if (!before || before->size() != 2 || shape->size() < 2) return id;
  const bool same =
      std::equal(before->begin(), before->end(), shape->end() - 2) &&
      std::all_of(shape->begin(), shape->end() - 2, [](const Expr& e) { return e.is_constant(1); });
  return same ? node->inputs[0] : id;
}

// `axes`: of the rows that it multiplies.
ConstantPtr weight(Rewrite& r, const Node& node, ValueId id, std::size_t axes) {
  ConstantPtr c = r.constant(without_ones(r.plain, id, axes));
  if (!c)
    refuse(node, "multiplies tokens with " + escaped(r.plain.value(id).name) +
                     ", which depends on the lengths of the step");
  if (c->dims.size() < 2) refuse(node, "multiplies tokens with a vector");
  bool flat = c->dims.size() > 2;
  for (std::size_t i = 0; i + 2 < c->dims.size(); ++i) flat = flat && c->dims[i] == 1;
  if (flat)
    if (ConstantPtr view = reshaped(c, Dims(c->dims.end() - 2, c->dims.end()))) return view;
  return c;
}

Attributes product_attributes(const Node& node, bool trans_a, bool trans_b) {
  Attributes attributes;
  if (node.attributes.has(key::kAccuracyLevel))
    attributes.set(key::kAccuracyLevel, node.attributes.get(key::kAccuracyLevel));
  if (trans_a) attributes.set(key::kTransA, 1);
  if (trans_b) attributes.set(key::kTransB, 1);
  return attributes;
}

void need_features(const Node& node, const Rows& x, std::size_t axis) {
  if (has_rows(x.layout[axis])) refuse(node, "sums over the tokens of " + str(x.layout));
}

// rows [..., M, K] times weights [K, N] or [batch..., K, N].
void times_weight(Rewrite& r, const Node& node, Rows x, bool trans_b) {
  ConstantPtr w = weight(r, node, node.inputs[1], x.layout.size());
  if (w->perm == std::vector<int64_t>{1, 0})
    w = transposed(w, {1, 0}), trans_b = !trans_b;  // as it is stored
  const std::size_t rank = x.layout.size(), k_axis = rank - 1;
  if (rank < 2) refuse(node, "multiplies a vector");
  need_features(node, x, k_axis);
  const Dims& d = w->dims;
  const int64_t n = trans_b ? d[d.size() - 2] : d.back();
  Rows y = x;
  y.layout[k_axis] = feature_axis(n);
  Attributes attributes = product_attributes(node, false, trans_b);
  // Its tokens are f32 from here on; that the file has them in bf16 stands in the attribute alone.
  if (r.plain.value(node.inputs[0]).dtype == DType::kBF16) attributes.set(key::kAccuracyLevel, 3);
  if (d.size() == 2) {
    y.tokens = r.out.emit(Op::kMatMul, {x.tokens, r.out.constant(w)}, attributes);
    return r.set(node.outputs[0], std::move(y));
  }
  // Weights by head: the rows axis M must exist between the batch and K.
  Layout to(x.layout.begin(), x.layout.end() - 2);
  const bool dropped = !is_kept(x.layout[rank - 2]);
  to.push_back(feature_axis(d[d.size() - 2]));
  to.push_back(feature_axis(d.back()));
  const ValueId b = r.conform({layout_of_dims(d), r.out.constant(w), false}, to);
  ValueId a = x.tokens;
  if (dropped) {
    Dims dims = token_dims(x.layout);
    dims.insert(dims.end() - 1, 1);
    a = r.out.reshape(a, dims);
  }
  y.tokens = r.out.emit(Op::kMatMul, {a, b}, attributes);
  for (std::size_t i = 0; i + 2 < rank; ++i) {
    const std::size_t back = rank - i;
    if (back <= d.size() && y.layout[i].empty()) y.layout[i] = feature_axis(d[d.size() - back]);
  }
  y.tokens = r.out.reshape(y.tokens, token_dims(y.layout));
  r.set(node.outputs[0], std::move(y));
}

// weights [M, K] times rows [..., K, N].
void weight_times(Rewrite& r, const Node& node, const Rows& x, bool trans_a) {
  const ConstantPtr w = weight(r, node, node.inputs[0], x.layout.size());
  if (w->dims.size() != 2 || x.layout.size() < 2)
    refuse(node, "multiplies batched weights with tokens from the left");
  const std::size_t k_axis = x.layout.size() - 2;
  need_features(node, x, k_axis);
  Rows y = x;
  y.layout[k_axis] = feature_axis(trans_a ? w->dims[1] : w->dims[0]);
  if (is_kept(x.layout.back()))
    y.tokens =
        r.out.emit(Op::kMatMul, {r.out.constant(w), x.tokens}, product_attributes(node, trans_a, false));
  else
    y.tokens =
        r.out.emit(Op::kMatMul, {x.tokens, r.out.constant(w)}, product_attributes(node, false, !trans_a));
  r.set(node.outputs[0], std::move(y));
}

// Both operands are of the same token: a product within each row.
void row_by_row(Rewrite& r, const Node& node, const Rows& a, const Rows& b) {
  const std::size_t rank = a.layout.size();
  if (rank != b.layout.size() || rank < 3 || a.last != b.last)
    refuse(node, "multiplies rows of different ranks");
  Rows y{a.layout, kNoValue, a.last};
  Layout to_a = a.layout, to_b = b.layout;
  for (std::size_t i = 0; i < rank; ++i) {
    const bool batch = i + 2 < rank;
    if (batch && !(a.layout[i] == b.layout[i]) && !a.layout[i].empty() && !b.layout[i].empty())
      refuse(node, "multiplies rows of different tokens: " + str(a.layout) + " and " + str(b.layout));
    if (!batch && (has_rows(a.layout[i]) || has_rows(b.layout[i])))
      refuse(node, "multiplies tokens with tokens: " + str(a.layout) + " and " + str(b.layout));
    if (batch && a.layout[i].empty()) y.layout[i] = to_a[i] = b.layout[i];
    if (batch) to_b[i] = y.layout[i];
  }
  y.layout[rank - 1] = b.layout[rank - 1];
  y.tokens = r.out.emit(Op::kMatMul, {r.conform(a, to_a), r.conform(b, to_b)},
                        product_attributes(node, false, false));
  r.set(node.outputs[0], std::move(y));
}

bool matmul(Rewrite& r, const Node& node) {
  const bool trans_a = node.attributes.get_or(key::kTransA, 0),
             trans_b = node.attributes.get_or(key::kTransB, 0);
  const Rows *a = r.rows(node.inputs[0]), *b = r.rows(node.inputs[1]);
  if (a && b)
    row_by_row(r, node, trans_a ? last_two_swapped(r, *a) : *a, trans_b ? last_two_swapped(r, *b) : *b);
  else if (a)
    times_weight(r, node, trans_a ? last_two_swapped(r, *a) : *a, trans_b);
  else
    weight_times(r, node, trans_b ? last_two_swapped(r, *b) : *b, trans_a);
  return true;
}

// As far as operators tell: token ids, and what is made of them without going below 0. `budget`: values to look at.
bool is_never_negative(const Graph& graph, ValueId id, int& budget) {
  if (--budget < 0) return false;
  const Value& v = graph.value(id);
  if (v.constant) {
    if (v.constant->size() > kMostIndices || !is_integer(v.dtype)) return false;
    const Tensor t = materialise(*v.constant);
    for (int64_t i = 0; i < t.size(); ++i)
      if (t.integer(i) < 0) return false;
    return true;
  }
  const Node* node = graph.producer(id);
  if (!node) return true;  // ids, positions
  const auto is = [&](std::size_t i) { return is_never_negative(graph, node->inputs[i], budget); };
  switch (node->op) {
    case Op::kTopK:
    case Op::kArgMax:
    case Op::kArgMin:
      return true;
    case Op::kCast:
      return graph.value(node->inputs[0]).dtype == DType::kBool ||
             (is_integer(graph.value(node->inputs[0]).dtype) && is(0));
    case Op::kReshape:
    case Op::kTranspose:
    case Op::kExpand:
    case Op::kSlice:
    case Op::kGather:
      return is(0);
    case Op::kAdd:
    case Op::kMul:
    case Op::kMin:
      return is(0) && is(1);
    case Op::kMod:
      return is(1) && node->attributes.get_or(key::kFmod, 0) == 0;
    case Op::kMax:
      return is(0) || is(1);
    case Op::kClip:
      return (node->input(1) != kNoValue && is(1)) || is(0);
    case Op::kWhere:
      return is(1) && is(2);
    default:
      return false;
  }
}

// Rows of a weight chosen by token: embeddings. What may count from the table's end is told as from its beginning.
bool gather_weight(Rewrite& r, const Node& node) {
  const Rows* index = r.rows(node.inputs[1]);
  if (!index) return false;
  if (!r.is_free(node.inputs[0])) refuse(node, "picks features by indices that come from tokens");
  const ConstantPtr table = r.constant(node.inputs[0]);
  if (!table || table->dims.empty()) refuse(node, "looks tokens up in a table that depends on the step");
  if (node.attributes.get(key::kAxis) != 0) refuse(node, "looks tokens up along another axis than the first");
  ValueId at = index->tokens;
  if (const Node* cast = r.out.graph.producer(at);
      cast && cast->op == Op::kCast && is_integer(r.out.graph.value(cast->inputs[0]).dtype))
    at = cast->inputs[0];
  if (int budget = kMostLookedAt; table->dims[0] > 0 && !is_never_negative(r.out.graph, at, budget)) {
    Tensor rows = Tensor::zeros(r.out.graph.value(index->tokens).dtype, {});
    if (rows.dtype == DType::kI32)
      rows.as<int32_t>()[0] = static_cast<int32_t>(table->dims[0]);
    else if (rows.dtype == DType::kI64)
      rows.as<int64_t>()[0] = table->dims[0];
    else
      refuse(node, "has indices of type " + std::string(name_of(rows.dtype)));
    at = r.out.emit(Op::kMod, {index->tokens, r.out.constant(std::move(rows))});
  }
  Rows y{index->layout, kNoValue, index->last};
  for (std::size_t i = 1; i < table->dims.size(); ++i) y.layout.push_back(feature_axis(table->dims[i]));
  y.tokens = r.out.widened(r.out.emit(Op::kGather, {r.out.constant(table), at}, {{key::kAxis, 0}}));
  y.tokens = r.out.reshape(y.tokens, token_dims(y.layout));
  r.set(node.outputs[0], std::move(y));
  return true;
}

// The operator as it is, for weights that are quantized in a way of their own.
ValueId same_operator(Rewrite& r, const Node& node, ValueId x) {
  std::vector<ValueId> inputs{x};
  for (std::size_t i = 1; i < node.inputs.size(); ++i) {
    if (node.inputs[i] == kNoValue) {
      inputs.push_back(kNoValue);
      continue;
    }
    const ConstantPtr c = r.is_free(node.inputs[i]) ? r.constant(node.inputs[i]) : nullptr;
    if (!c) refuse(node, "has quantized weights that are no constants");
    inputs.push_back(r.out.constant(c));
  }
  return r.out.emit(node.op, inputs, node.attributes);
}

// MatMulNBits: a product with weights [N, K], which stay quantized.
bool times_nbits(Rewrite& r, const Node& node) {
  const Rows* found = r.rows(node.inputs[0]);
  if (!found) return false;
  const Rows x = *found;
  need_features(node, x, x.layout.size() - 1);
  Rows y = x;
  y.layout.back() = feature_axis(node.attributes.get(key::kN));
  if (const ConstantPtr w = r.quantized(node)) {
    y.tokens = r.out.emit(Op::kMatMul, {x.tokens, r.out.constant(w)}, product_attributes(node, false, true));
    if (const ValueId id = node.input(5); id != kNoValue) {
      const Rows bias = r.operand(node, id, y.layout);
      y.tokens = r.out.emit(Op::kAdd, {y.tokens, r.conform(bias, y.layout)});
    }
    r.set(node.outputs[0], std::move(y));
  } else {
    y.tokens = same_operator(r, node, x.tokens);
    r.set(node.outputs[0], std::move(y));
  }
  return true;
}

// Products with the matrices of chosen experts.
bool expert_product(Rewrite& r, const Node& node) {
  const Rows *found = r.rows(node.inputs[0]), *chosen = r.rows(node.inputs[1]);
  if (!found || !chosen) refuse(node, "multiplies rows and experts of which one does not depend on tokens");
  const Rows x = *found, experts = *chosen;
  const std::size_t lead = experts.layout.size() - 1;
  const auto is_beside = [&](const Rows& other) {
    return other.last == experts.last &&
           std::equal(experts.layout.begin(), experts.layout.begin() + static_cast<std::ptrdiff_t>(lead),
                      other.layout.begin());
  };
  need_features(node, experts, lead);
  for (std::size_t i = lead; i < x.layout.size(); ++i) need_features(node, x, i);
  if (!is_beside(x) ||
      features(Layout(x.layout.begin(), x.layout.begin() + static_cast<std::ptrdiff_t>(lead))) != 1)
    refuse(node, "chooses experts " + str(experts.layout) + " for rows " + str(x.layout));
  const int64_t k = features(x.layout.back()), slots = features(experts.layout.back());
  const bool is_one = x.layout.size() == experts.layout.size();
  std::vector<ValueId> inputs{r.out.reshape(x.tokens, is_one ? Dims{k} : Dims{slots, k}),
                              r.out.reshape(experts.tokens, {slots}), kNoValue};
  Rows y = experts;
  if (node.inputs[2] != kNoValue) {
    const Rows shares = r.operand(node, node.inputs[2], experts.layout);
    if (!is_beside(shares)) refuse(node, "has shares of other tokens");
    inputs[2] = r.out.reshape(shares.tokens, {slots});
    y.layout.pop_back();
  }
  for (std::size_t i = 3; i < node.inputs.size(); ++i)
    inputs.push_back(r.out.constant(weight(r, node, node.inputs[i], 2)));
  y.layout.push_back(feature_axis(r.plain.value(node.inputs[3]).shape->front().constant().value()));
  y.tokens = r.out.reshape(r.out.emit(Op::kExpertMatMul, inputs), token_dims(y.layout));
  r.set(node.outputs[0], std::move(y));
  return true;
}

// The operator reads its tables at position p of each row; positions may be shifted.
bool rotary(Rewrite& r, const Node& node) {
  const Rows* found = r.rows(node.inputs[0]);
  if (!found) return false;
  const Rows x = *found;
  const std::size_t rank = x.layout.size();
  need_features(node, x, rank - 1);
  if (node.input(3) == kNoValue) refuse(node, "has no positions");
  Layout tokens = x.layout;  // that positions broadcast to
  const int64_t head = node.attributes.get_or(key::kHeadAxis, -2);
  tokens.erase(tokens.begin() + (head < 0 ? head + static_cast<int64_t>(rank) : head));
  tokens.pop_back();
  const Rows positions = r.operand(node, node.inputs[3], tokens);
  const Node* shift = r.out.graph.producer(positions.tokens);
  int64_t offset = 0;
  if (shift && shift->op == Op::kReshape) shift = r.out.graph.producer(shift->inputs[0]);
  if (shift && shift->op == Op::kAdd)
    offset = materialise(*r.out.graph.value(shift->inputs[1]).constant).integer(0);
  const bool direct =
      has_rows(positions.layout) && (!shift || shift->op == Op::kAdd || shift->op == Op::kCast);
  std::vector<ValueId> tables;
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    const Value& v = r.plain.value(node.inputs[i]);
    const ConstantPtr c = r.constant(node.inputs[i]);
    if (!direct || !c || c->dims.size() != 2 || offset < 0 || offset >= c->dims[0])
      refuse(node, "reads its table " + escaped(v.name) + " at something else than the position");
    ConstantPtr rows = offset == 0 ? c : sliced(c, 0, offset, c->dims[0]);
    tables.push_back(r.out.constant_f32(rows));
  }
  const int64_t d = features(x.layout[rank - 1]), heads = features(x.layout) / d;
  Attributes attributes = node.attributes;
  attributes.set(key::kHeadAxis, 1);
  const ValueId y = r.out.emit(
      Op::kRotary, {r.out.reshape(x.tokens, {heads, d}), tables[0], tables[1], r.out.positions}, attributes);
  r.set(node.outputs[0], Rows{x.layout, r.out.reshape(y, token_dims(x.layout)), x.last});
  return true;
}

}  // namespace

bool rewrite_products(Rewrite& r, const Node& node) {
  switch (node.op) {
    case Op::kMatMul:
      return matmul(r, node);
    case Op::kGather:
      return gather_weight(r, node);
    case Op::kMatMulNBits:
      return times_nbits(r, node);
    case Op::kExpertMatMul:
      return expert_product(r, node);
    case Op::kRotary:
      return rotary(r, node);
    default:
      return false;
  }
}

}  // namespace ark::decoder
