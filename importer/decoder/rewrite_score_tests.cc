// What files ask of attention scores, to give queries that see no key weights of 0 in place of NaN: IsNaN(p), or
// that all scores are -inf. Of proven masks each query sees itself, so the weights stay as they are.
#include <algorithm>
#include <cmath>

#include "base/ir/keys.h"
#include "importer/decoder/rewrite.h"

namespace ark::decoder {
namespace {

using Test = Scores::Test;

bool is_minus_infinity(Rewrite& r, ValueId id) {
  const ConstantPtr c = r.is_free(id) ? r.constant(id) : nullptr;
  if (!c || c->size() != 1) return false;
  const double value = materialise(*c).real(0);
  return std::isinf(value) && value < 0;
}

Test opposite(Test test) {
  switch (test) {
    case Test::kHidden:
      return Test::kSeen;
    case Test::kSeen:
      return Test::kHidden;
    case Test::kNoneSeen:
      return Test::kSomeSeen;
    case Test::kSomeSeen:
      return Test::kNoneSeen;
    default:
      return Test::kNone;
  }
}

bool is_over_keys(const Node& node, const Scores& s) {
  const auto axes = node.attributes.get_or(key::kAxes, {});
  if (axes.size() != 1 || !node.attributes.get_or(key::kKeepdims, 1)) return false;
  const Axis& axis = s.layout.at(static_cast<std::size_t>(axes[0]));
  return axis.size() == 1 && axis[0].kind == AtomKind::kContext;
}

// Both after the same steps: what is proven of the masks of one holds for the other.
bool are_of_one(const Scores& a, const Scores& b) {
  return a.q == b.q && a.k == b.k &&
         std::equal(a.steps.begin(), a.steps.end(), b.steps.begin(), b.steps.end(),
                    [](const ScoreStep& x, const ScoreStep& y) { return x.node == y.node; });
}

Test tested(Rewrite& r, const Node& node, const Scores& s) {
  switch (node.op) {
    case Op::kIsNaN:
      return s.test == Test::kNone && s.normalized ? Test::kNoneSeen : Test::kNone;
    case Op::kEqual: {
      const ValueId other = node.inputs[r.scores(node.inputs[0]) ? 1 : 0];
      return s.test == Test::kNone && !s.normalized && is_minus_infinity(r, other) ? Test::kHidden
                                                                                   : Test::kNone;
    }
    case Op::kNot:
      return opposite(s.test);
    case Op::kCast:
    case Op::kIdentity:
    case Op::kExpand:
      return s.test;
    case Op::kReduceMax:  // any
      return s.test == Test::kSeen && is_over_keys(node, s) ? Test::kSomeSeen : Test::kNone;
    case Op::kReduceMin:  // all
      return s.test == Test::kHidden && is_over_keys(node, s) ? Test::kNoneSeen : Test::kNone;
    default:
      return Test::kNone;
  }
}

}  // namespace

bool test_scores(Rewrite& r, const Node& node) {
  const Scores* condition = node.op == Op::kWhere ? r.scores(node.inputs[0]) : nullptr;
  if (condition) {
    const bool seen_first = condition->test == Test::kSomeSeen;
    const Scores* kept = r.scores(node.inputs[seen_first ? 1 : 2]);
    if ((!seen_first && condition->test != Test::kNoneSeen) || !kept || !kept->normalized ||
        kept->test != Test::kNone || !are_of_one(*condition, *kept) ||
        !r.is_free(node.inputs[seen_first ? 2 : 1]))
      refuse(node, "chooses by attention scores");
    r.set(node.outputs[0], Scores(*kept));
    return true;
  }
  bool any = false;
  for (const ValueId id : node.inputs) {
    const Scores* s = r.scores(id);
    if (!s) continue;
    any = any || s->test != Test::kNone;
    if (const Test test = tested(r, node, *s); test != Test::kNone) {
      Scores y = *s;
      y.test = test;
      r.set(node.outputs[0], std::move(y));
      return true;
    }
  }
  if (any) refuse(node, "does to tests of attention scores what no paged attention does");
  return false;
}

}  // namespace ark::decoder
