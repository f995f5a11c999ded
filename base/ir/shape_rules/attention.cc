// Attention blocks and rotary embedding, and the operators of token graphs.
#include <cmath>

#include "base/ir/attention_operands.h"
#include "base/ir/keys.h"
#include "base/ir/shape_rules/rules.h"

namespace ark::shape_rules {
namespace {

void check_attention(Context& c) {
  using enum attention::Operand;
  const DType type = c.dtype(kQ);
  for (const std::size_t i : {kQ, kK, kV, kPastK, kPastV})
    if (c.has(i) && (c.dtype(i) != type || !is_floating(type)))
      c.fail("attends with operands of types " + std::string(name_of(type)) + " and " +
             std::string(name_of(c.dtype(i))));
  const double scale = c.attributes().get_or(key::kScale, 1.0),
               cap = c.attributes().get_or(key::kSoftcap, 0.0);
  if (!(scale > 0) || std::isinf(scale) || !(cap >= 0) || std::isinf(cap) ||
      c.attributes().get_or(key::kWindow, 0) < 0)
    c.fail("attends with scale " + std::to_string(scale) + ", softcap " + std::to_string(cap) +
           " and window " + std::to_string(c.attributes().get_or(key::kWindow, 0)));
  if (c.attributes().get_or(key::kEvicts, 0) &&
      !(c.attributes().get_or(key::kWindow, 0) > 0 && c.has(kPastK) && c.has(kLengths) && c.has(kTotal)))
    c.fail("keeps a cache of the window only, but has no window, past, lengths or total");
}

// (q [B,H,S,D], k [B,KH,T,D], v [B,KH,T,Dv], bias?, past_k?, past_v?, lengths?, total?, sinks?)
// -> (y, present_k?, present_v?)
void attention(Context& c) {
  using enum attention::Operand;
  check_attention(c);
  const DType type = c.dtype(kQ);
  if (!c.shape(kQ) || !c.shape(kK) || !c.shape(kV)) {
    for (std::size_t i = 0; i < attention::kResults; ++i) c.out(i, type, std::nullopt);
    return;
  }
  const Shape &q = *c.shape(kQ), &k = *c.shape(kK), &v = *c.shape(kV);
  if (q.size() != 4 || k.size() != 4 || v.size() != 4) c.fail("queries, keys and values must have rank 4");
  const Expr batch = c.same(q[0], k[0], "batch sizes of queries and keys");
  const Expr heads = c.same(k[1], v[1], "heads of keys and values");
  if (const auto h = q[1].constant(), g = heads.constant(); h && g && (*g <= 0 || *h % *g != 0))
    c.fail("the " + q[1].str() + " query heads are no multiple of the " + heads.str() + " key heads");
  c.same(k[2], v[2], "lengths of keys and values");
  c.same(q[3], k[3], "head sizes of queries and keys");
  Expr total = k[2];
  for (const std::size_t i : {kPastK, kPastV}) {
    if (!c.has(i) || !c.shape(i)) continue;
    const Shape& past = *c.shape(i);
    const Shape& now = i == kPastK ? k : v;
    if (past.size() != 4) c.fail("the past must have rank 4");
    c.same(past[0], batch, "batch sizes of past and keys");
    c.same(past[1], heads, "heads of past and keys");
    c.same(past[3], now[3], "head sizes of past and keys");
    if (i == kPastK)
      total = past[2] + k[2];
    else
      c.same(past[2] + v[2], total, "lengths of past keys and past values");
  }
  Expr kept = total;  // rows of present
  bool known = true;
  if (c.has(kTotal)) {
    const auto given = c.elements(kTotal);
    known = given && given->size() == 1 && c.has(kPastK) && c.shape(kPastK);
    kept = known ? max(c.shape(kPastK)->at(2), given->front()) : c.fresh(1, 2, "total");
    total = known ? given->front() : kept;
    const Expr room = known ? c.shape(kPastK)->at(2) : Expr(0);
    const bool evicts = c.attributes().get_or(key::kEvicts, 0) != 0;
    if (evicts && room.constant().value_or(0) >= c.attributes().get_or(key::kWindow, 0)) kept = room;
  }
  if (c.has(kBias) && c.shape(kBias)) {
    const Shape& bias = *c.shape(kBias);
    c.broadcast(bias, Shape{batch, q[1], q[2], total});
    if (!bias.empty() && !bias.back().is_constant(1) && known)
      c.same(bias.back(), total, "the mask's keys and all keys");
  }
  if (c.has(kSinks) && c.shape(kSinks)) {
    if (!is_floating(c.dtype(kSinks))) c.fail("has sinks of type " + std::string(name_of(c.dtype(kSinks))));
    if (c.shape(kSinks)->size() != 1) c.fail("its sinks must have rank 1");
    c.same(c.shape(kSinks)->front(), q[1], "the number of sinks and of query heads");
  }
  c.out(attention::kY, type, Shape{batch, q[1], q[2], v[3]});
  c.out(attention::kPresentK, c.dtype(kK), Shape{batch, heads, kept, k[3]});
  c.out(attention::kPresentV, c.dtype(kV), Shape{batch, heads, kept, v[3]});
}

// (x, cos [L, R/2], sin of the same shape, positions)
void rotary(Context& c) {
  same_as_first(c);
  if (!is_integer(c.dtype(3))) c.fail("has positions of type " + std::string(name_of(c.dtype(3))));
  for (const std::size_t i : {0, 1, 2})
    if (!is_floating(c.dtype(i))) c.fail("turns by tables of type " + std::string(name_of(c.dtype(i))));
  if (!c.shape(0) || !c.shape(1) || !c.shape(2)) return;
  const Shape &x = *c.shape(0), &cos = *c.shape(1), &sin = *c.shape(2);
  c.check_rank(0, 2);
  if (cos.size() != 2 || sin.size() != 2) c.fail("its tables must have rank 2");
  for (std::size_t i = 0; i < 2; ++i) c.same(cos[i], sin[i], "sizes of the tables of cosines and sines");
  const auto head = x.back().constant();
  const int64_t turned = c.attributes().get_or(key::kRotaryDim, head.value_or(0));
  if (turned < 0 || turned % 2 || (head && turned > *head))
    c.fail("turns " + std::to_string(turned) + " features of a head of " + x.back().str());
  if (turned) c.same(cos[1], Expr(turned / 2), "the width of its tables and half of what turns");
  if (cos[0].is_constant(0)) c.fail("its tables are empty");
}

void paged_attention(Context& c) {
  if (!c.shape(0) || !c.shape(2)) return c.out(0, c.dtype(0), std::nullopt);
  const Shape &q = *c.shape(0), &v = *c.shape(2);
  if (q.size() != 3 || v.size() != 3) c.fail("queries and values must have rank 3");
  c.out(0, c.dtype(0), Shape{q[0], q[1], v[2]});
}

void select_rows(Context& c) {
  std::optional<Shape> y = c.shape(0);
  if (y) {
    c.check_rank(0, 1);
    y->front() = Expr::symbol("rows");
  }
  c.out(0, c.dtype(0), y);
}

}  // namespace

std::span<const Entry> attention_rules() {
  static constexpr Entry kRules[] = {
      {Op::kAttention, attention},    {Op::kRotary, rotary},           {Op::kPagedAttention, paged_attention},
      {Op::kSelectRows, select_rows}, {Op::kAllReduce, same_as_first},
  };
  return kRules;
}

}  // namespace ark::shape_rules
