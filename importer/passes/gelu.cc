// Gelu, whatever the order of its factors: the nodes behind an Erf or Tanh are read as polynomials in x and
// in t = erf(..) or tanh(..), and compared with
//   0.5 x + 0.5 x t,  t = erf(x / sqrt 2)  or  t = tanh(sqrt(2/pi) (x + 0.044715 x^3)).
#include <cmath>
#include <map>
#include <set>

#include "base/ir/keys.h"
#include "importer/passes/match.h"
#include "importer/passes/passes.h"

namespace ark::passes {
namespace {

using Degrees = std::pair<int, int>;  // of x and of t
using Polynomial = std::map<Degrees, double>;

constexpr int kMaxDegree = 4;
constexpr int kMaxDepth = 8;

std::optional<Polynomial> product(const Polynomial& a, const Polynomial& b) {
  Polynomial result;
  for (const auto& [da, fa] : a)
    for (const auto& [db, fb] : b) {
      const Degrees d{da.first + db.first, da.second + db.second};
      if (d.first > kMaxDegree || d.second > 1) return std::nullopt;
      result[d] += fa * fb;
    }
  return result;
}

Polynomial sum(Polynomial a, const Polynomial& b, double sign) {
  for (const auto& [degrees, factor] : b) a[degrees] += sign * factor;
  return a;
}

class Reader {
 public:
  Reader(const Graph& graph, ValueId x, ValueId t) : graph_(graph), x_(x), t_(t) {}

  std::optional<Polynomial> read(ValueId id, int depth = 0) const {
    if (id == x_) return Polynomial{{{1, 0}, 1}};
    if (id == t_) return Polynomial{{{0, 1}, 1}};
    if (const auto c = number(graph_, id)) return Polynomial{{{0, 0}, *c}};
    const Node* node = graph_.producer(id);
    if (!node || depth > kMaxDepth) return std::nullopt;
    return read(*node, depth + 1);
  }

 private:
  std::optional<Polynomial> read(const Node& node, int depth) const {
    switch (node.op) {
      case Op::kAdd:
      case Op::kSub:
      case Op::kMul: {
        const auto a = read(node.inputs[0], depth), b = read(node.inputs[1], depth);
        if (!a || !b) return std::nullopt;
        return node.op == Op::kMul ? product(*a, *b) : sum(*a, *b, node.op == Op::kAdd ? 1 : -1);
      }
      case Op::kDiv: {
        const auto a = read(node.inputs[0], depth);
        const auto divisor = number(graph_, node.inputs[1]);
        if (!a || !divisor || *divisor == 0) return std::nullopt;
        return product(*a, {{{0, 0}, 1 / *divisor}});
      }
      case Op::kPow:
        return power(node, depth);
      default:
        return std::nullopt;
    }
  }

  std::optional<Polynomial> power(const Node& node, int depth) const {
    const auto base = read(node.inputs[0], depth);
    const auto exponent = number(graph_, node.inputs[1]);
    if (!base || !exponent || (*exponent != 2 && *exponent != 3)) return std::nullopt;
    auto result = product(*base, *base);
    return result && *exponent == 3 ? product(*result, *base) : result;
  }

  const Graph& graph_;
  ValueId x_, t_;
};

bool equal(const Polynomial& have, const Polynomial& want, double tolerance) {
  const auto factor = [](const Polynomial& p, const Degrees& d) {
    const auto it = p.find(d);
    return it == p.end() ? 0.0 : it->second;
  };
  for (const auto* side : {&have, &want})
    for (const auto& [degrees, unused] : *side) {
      const double difference = std::fabs(factor(have, degrees) - factor(want, degrees));
      if (!(difference <= tolerance * std::max(0.05, std::fabs(factor(want, degrees))))) return false;
    }
  return true;
}

const Polynomial& inner(Op op) {
  static const double root = std::sqrt(2 / M_PI);
  static const Polynomial erf{{{1, 0}, 1 / std::sqrt(2.0)}}, tanh{{{1, 0}, root}, {{3, 0}, root * 0.044715}};
  return op == Op::kErf ? erf : tanh;
}

double tolerance_of(DType type) { return type == DType::kF16 ? 4e-3 : type == DType::kBF16 ? 2e-2 : 1e-4; }

class Fuser {
 public:
  explicit Fuser(Graph& graph) : graph_(graph), consumers_(graph.consumers()) {}

  bool run() {
    bool changed = false;
    for (const Node& node : graph_.nodes)
      if (!node.removed && (node.op == Op::kErf || node.op == Op::kTanh)) changed |= fuse(node);
    if (changed) graph_.remove_dead();
    return changed;
  }

 private:
  bool fuse(const Node& root) {
    const ValueId t = root.outputs[0];
    const double tolerance = tolerance_of(graph_.value(t).dtype);
    std::set<ValueId> candidates;
    gather(root.inputs[0], 0, candidates);
    for (const ValueId x : candidates) {
      const auto argument = Reader(graph_, x, kNoValue).read(root.inputs[0]);
      if (!argument || !equal(*argument, inner(root.op), tolerance)) continue;
      const NodeId last = find_result(x, t, t, tolerance, 0);
      if (last == kNoNode) continue;
      rewrite(graph_.node(last), Op::kGelu, {x},
              {{key::kApproximate, std::string(root.op == Op::kErf ? "none" : "tanh")}});
      return true;
    }
    return false;
  }

  // What x could be: values that the argument is computed from.
  void gather(ValueId id, int depth, std::set<ValueId>& into) const {
    if (id == kNoValue || graph_.value(id).constant || depth > kMaxDepth || !into.insert(id).second) return;
    if (const Node* node = graph_.producer(id); node && (is_binary_pointwise(node->op)))
      for (const ValueId in : node->inputs) gather(in, depth + 1, into);
  }

  NodeId find_result(ValueId x, ValueId t, ValueId from, double tolerance, int depth) const {
    static const Polynomial gelu{{{1, 0}, 0.5}, {{1, 1}, 0.5}};
    if (depth > 4) return kNoNode;
    for (const NodeId reader : consumers_[from]) {
      const Node& node = graph_.node(reader);
      if (!is_binary_pointwise(node.op)) continue;
      const auto p = Reader(graph_, x, t).read(node.outputs[0]);
      if (!p) continue;
      if (equal(*p, gelu, tolerance)) return reader;
      if (const NodeId found = find_result(x, t, node.outputs[0], tolerance, depth + 1); found != kNoNode)
        return found;
    }
    return kNoNode;
  }

  Graph& graph_;
  const std::vector<std::vector<NodeId>> consumers_;
};

}  // namespace

bool fuse_gelu(Graph& graph) { return Fuser(graph).run(); }

}  // namespace ark::passes
