// Recurrent layers, linear attention among them.
#include "base/ir/keys.h"
#include "base/ir/shape_rules/rules.h"

namespace ark::shape_rules {
namespace {

// Gates and activations of one direction.
std::pair<int64_t, std::size_t> gates_and_activations(Op op) {
  return op == Op::kLstm  ? std::pair<int64_t, std::size_t>{4, 3}
         : op == Op::kGru ? std::pair<int64_t, std::size_t>{3, 2}
                          : std::pair<int64_t, std::size_t>{1, 1};
}

void expect_shape(Context& c, std::size_t i, const Shape& wanted, const std::string& what) {
  if (!c.has(i) || !c.shape(i)) return;
  const Shape& have = *c.shape(i);
  if (have.size() != wanted.size()) c.fail(what + " has shape " + str(have) + ", not " + str(wanted));
  for (std::size_t axis = 0; axis < wanted.size(); ++axis)
    c.same(have[axis], wanted[axis], what + ": axis " + std::to_string(axis) + " and the layer's size");
}

void recurrent(Context& c) {
  const Op op = c.node().op;
  const auto [gates, activations] = gates_and_activations(op);
  const std::string& direction = c.attributes().get(key::kDirection);
  const int64_t directions = direction == "bidirectional" ? 2 : 1;
  if (directions == 1 && direction != "forward" && direction != "reverse")
    c.fail("direction is neither forward, reverse nor bidirectional");
  const std::size_t names = c.attributes().get(key::kActivations).size();
  if (names != activations * static_cast<std::size_t>(directions) ||
      c.attributes().get(key::kActivationParameters).size() != 2 * names)
    c.fail("has " + std::to_string(names) + " activations for " + std::to_string(directions) + " directions");
  if (!c.shape(0) || !c.shape(1)) {
    for (std::size_t i = 0; i < 3; ++i) c.out(i, c.dtype(0), std::nullopt);
    return;
  }
  const Shape &x = *c.shape(0), &r = *c.shape(1);
  if (x.size() != 4 || r.size() != 3) c.fail("its input has rank 3 and its weights have rank 3");
  const Expr steps = x[0], rows = x[1], hidden = r[2], all = hidden * Expr(gates);
  expect_shape(c, 0, {steps, rows, directions, all}, "the input's product");
  expect_shape(c, 1, {directions, all, hidden}, "the recurrence weight");
  expect_shape(c, 2, {rows}, "sequence_lens");
  const Shape state{directions, rows, hidden};
  expect_shape(c, 3, state, "initial_h");
  if (op == Op::kGru) expect_shape(c, 4, {directions, hidden}, "the hidden gate's bias");
  if (op == Op::kLstm) {
    expect_shape(c, 4, state, "initial_c");
    expect_shape(c, 5, {directions, hidden * Expr(3)}, "the peephole weight");
  }
  c.out(0, c.dtype(0), Shape{steps, directions, rows, hidden});
  c.out(1, c.dtype(0), state);
  if (op == Op::kLstm) c.out(2, c.dtype(0), state);
}

// Whether one number of heads divides the other, as far as they are known.
void expect_groups(Context& c, const Expr& few, const Expr& many, const std::string& what) {
  const auto a = few.constant(), b = many.constant();
  if (a && b && (*a <= 0 || *b % *a != 0))
    c.fail(std::to_string(*b) + " heads do not divide into groups for " + std::to_string(*a) + " " + what);
}

void linear_attention(Context& c) {
  const DType state_type = c.has(3) ? c.dtype(3) : c.dtype(0);
  for (std::size_t i = 0; i < 3; ++i)
    if (!c.shape(i)) {
      c.out(0, c.dtype(0), std::nullopt);
      c.out(1, state_type, std::nullopt);
      return;
    }
  const Shape &q = *c.shape(0), &k = *c.shape(1), &v = *c.shape(2);
  if (q.size() != 4 || k.size() != 4 || v.size() != 4) c.fail("queries, keys and values have rank 4");
  const Expr batch = q[0], steps = q[1], heads = v[2];
  expect_shape(c, 1, {batch, steps, k[2], q[3]}, "the keys");
  expect_shape(c, 2, {batch, steps, heads, v[3]}, "the values");
  expect_groups(c, k[2], heads, "of keys");
  const auto queries = q[2].constant(), values = heads.constant();
  if (!queries || !values) c.fail("the numbers of heads must be known");
  expect_groups(c, std::min(*queries, *values), std::max(*queries, *values), "of the others");
  const Shape state{batch, heads, q[3], v[3]};
  expect_shape(c, 3, state, "the state");
  if (c.has(4) && c.shape(4)) {
    const Shape& decay = *c.shape(4);
    if (decay.size() != 4) c.fail("the decay has rank 4");
    expect_shape(c, 4, {batch, steps, heads, decay[3].is_constant(1) ? Expr(1) : q[3]}, "the decay");
  }
  if (c.has(5) && c.shape(5)) {
    const Shape& rate = *c.shape(5);
    if (rate.size() != 3) c.fail("the rate has rank 3");
    expect_shape(c, 5, {batch, steps, rate[2].is_constant(1) ? Expr(1) : heads}, "the rate");
  }
  c.out(0, c.dtype(0), Shape{batch, steps, std::max(*queries, *values), v[3]});
  c.out(1, state_type, state);
}

}  // namespace

std::span<const Entry> recurrent_rules() {
  static constexpr Entry kRules[] = {{Op::kRnn, recurrent},
                                     {Op::kGru, recurrent},
                                     {Op::kLstm, recurrent},
                                     {Op::kLinearAttention, linear_attention}};
  return kRules;
}

}  // namespace ark::shape_rules
