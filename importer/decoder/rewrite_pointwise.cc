// Elementwise nodes over rows.
#include <algorithm>

#include "base/ir/keys.h"
#include "importer/decoder/rewrite.h"
#include "importer/passes/match.h"

namespace ark::decoder {
namespace {

Axis broadcast(const Node& node, const Axis& a, const Axis& b, const Layout& whole_a, const Layout& whole_b) {
  if (a.empty() || a == b) return b;
  if (b.empty()) return a;
  // A fixed batch of 1 broadcasts like any 1.
  if (size(a).is_constant(1) && !has_rows(b)) return b;
  if (size(b).is_constant(1) && !has_rows(a)) return a;
  refuse(node, "combines values whose axes mean different things: " + str(whole_a) + " and " + str(whole_b));
}

Layout broadcast(const Node& node, const Layout& a, const Layout& b) {
  Layout result(std::max(a.size(), b.size()));
  for (std::size_t back = 0; back < result.size(); ++back) {
    const Axis x = back < a.size() ? a[a.size() - 1 - back] : Axis{},
               y = back < b.size() ? b[b.size() - 1 - back] : Axis{};
    result[result.size() - 1 - back] = broadcast(node, x, y, a, b);
  }
  return result;
}

// No row atom may stand on two axes: that would be a product of tokens with tokens.
void check_rows(const Node& node, const Layout& layout) {
  int sequence = 0, batch = 0;
  for (const Atom& a : flatten(layout)) {
    sequence += is_row(a) && a.kind != AtomKind::kBatch;
    batch += a.kind == AtomKind::kBatch;
  }
  if (sequence > 1 || batch > 1) refuse(node, "mixes the rows of different tokens: " + str(layout));
}

// Casts: reals are f32 in the token graph whatever the file says.
ValueId cast(Rewrite& r, const Node& node, ValueId x) {
  const auto to = static_cast<DType>(node.attributes.get(key::kTo));
  const DType from = r.out.graph.value(x).dtype;
  if (is_floating(to))
    return is_floating(from) ? r.out.widened(x)
                             : r.out.emit(Op::kCast, {x}, {{key::kTo, static_cast<int64_t>(DType::kF32)}});
  if (from == to) return x;
  return r.out.emit(Op::kCast, {x}, node.attributes);
}

// Integer operands of one node agree in type in the file; ids and positions are i32 here.
void unify_types(Rewrite& r, std::vector<ValueId>& values, std::size_t first) {
  bool wide = false, narrow = false, real = false;
  for (std::size_t i = first; i < values.size(); ++i) {
    if (values[i] == kNoValue) continue;
    const DType t = r.out.graph.value(values[i]).dtype;
    wide = wide || t == DType::kI64;
    narrow = narrow || t == DType::kI32;
    real = real || is_floating(t);
  }
  for (std::size_t i = first; i < values.size(); ++i) {
    if (values[i] == kNoValue) continue;
    const DType t = r.out.graph.value(values[i]).dtype;
    if (wide && narrow && t == DType::kI32)
      values[i] = r.out.emit(Op::kCast, {values[i]}, {{key::kTo, static_cast<int64_t>(DType::kI64)}});
    if (real && is_floating(t)) values[i] = r.out.widened(values[i]);
  }
}

// As in `x * mask` of unpadded tokens.
bool are_ones(const Rewrite& r, ValueId id) {
  const ConstantPtr& c = r.out.graph.value(id).constant;
  return c && c->is_small() && c->size() > 0 && passes::is_all(*c, 1);
}

}  // namespace

bool rewrite_pointwise(Rewrite& r, const Node& node) {
  if (!is_pointwise(node.op)) return false;
  Layout guide;
  bool last = false;
  for (const ValueId id : node.inputs)
    if (const Rows* x = r.rows(id)) {
      guide = guide.empty() && !last ? x->layout : broadcast(node, guide, x->layout);
      last = last || x->last;
    }
  for (const ValueId id : node.inputs)
    if (const Rows* x = r.rows(id); x && x->last != last)
      refuse(node, "combines the last token of a sequence with all tokens");
  std::vector<Rows> operands;
  Layout layout = guide;
  for (const ValueId id : node.inputs) {
    operands.push_back(id == kNoValue ? Rows{} : r.operand(node, id, guide));
    if (id != kNoValue) layout = broadcast(node, layout, operands.back().layout);
  }
  check_rows(node, layout);
  std::vector<ValueId> inputs;
  for (std::size_t i = 0; i < operands.size(); ++i)
    inputs.push_back(operands[i].tokens == kNoValue ? kNoValue : r.conform(operands[i], layout));
  const ValueId out = node.outputs[0];
  if (node.op == Op::kIdentity) {
    r.set(out, Rows{layout, inputs[0], last});
    return true;
  }
  if (node.op == Op::kCast) {
    r.set(out, Rows{layout, cast(r, node, inputs[0]), last});
    return true;
  }
  const bool constant_factor =
      node.op == Op::kMul && r.out.dims(inputs[0]) != Dims{} && are_ones(r, inputs[1]);
  if (constant_factor && token_dims(layout) == r.out.dims(inputs[0])) {
    r.set(out, Rows{layout, inputs[0], last});
    return true;
  }
  unify_types(r, inputs, node.op == Op::kWhere ? 1 : 0);
  r.set(out, Rows{layout, r.out.emit(node.op, inputs, node.attributes), last});
  return true;
}

}  // namespace ark::decoder
