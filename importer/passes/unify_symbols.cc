// One dimension comes with many names ("total_seq_len", "past + seq", "kv_cache_dim"): the graph shows which
// are equal, where it adds, joins or multiplies tensors. Symbols of inputs that are proven equal to an
// expression of other inputs' symbols are replaced by it everywhere.
//
// Where two sizes of different names meet in a broadcast, one of them could also be 1. In files that score tokens
// they are taken to be equal: no exporter names a dimension of a decoder that is broadcast. The shapes of the graph's
// inputs say so afterwards, and a call with other sizes is refused there. Elsewhere (one query against many
// documents) they stay what they are.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/error.h"
#include "importer/infer.h"
#include "importer/input_reach.h"
#include "importer/passes/passes.h"

namespace ark::passes {
namespace {

using Fact = std::pair<Expr, Expr>;
using Substitution = std::map<std::string, Expr>;

// Symbols of the inputs, in order of appearance; "bare" ones are a dimension by themselves, so that a call
// binds them.
struct InputSymbols {
  std::map<std::string, int> order;
  std::set<std::string> bare;
  std::set<std::string> of_caches;  // and of others of three axes and more

  explicit InputSymbols(const Graph& graph) {
    for (const ValueId id : graph.inputs) {
      if (!graph.value(id).shape) continue;
      for (const Expr& dim : *graph.value(id).shape) {
        for (const std::string& s : dim.symbols()) order.emplace(s, static_cast<int>(order.size()));
        if (const auto name = dim.as_symbol()) bare.insert(*name);
      }
      if (graph.value(id).shape->size() < 3) continue;
      for (const Expr& dim : *graph.value(id).shape) of_caches.merge(dim.symbols());
    }
  }
};

bool binds(const InputSymbols& inputs, const Expr& e) {
  const std::set<std::string> symbols = e.symbols();
  return std::all_of(symbols.begin(), symbols.end(),
                     [&](const std::string& s) { return inputs.bare.contains(s); });
}

// difference == 0 solved for `name`, if it stands there alone, and the result is provably a size.
std::optional<Expr> solved_for(const std::string& name, const Expr& difference) try {
  const Expr rest = difference.substitute({{name, Expr(0)}});
  const Expr slope = difference.substitute({{name, Expr(1)}}) - rest;
  if (!slope.is_constant(1) && !slope.is_constant(-1)) return std::nullopt;
  if (!(slope * Expr::symbol(name) + rest == difference)) return std::nullopt;
  if (rest.symbols().contains(name)) return std::nullopt;
  const Expr solution = Expr(-1) * slope * rest;
  const auto low = solution.lower_bound();
  return low && *low >= 0 ? std::optional(solution) : std::nullopt;
} catch (const Error&) {
  return std::nullopt;  // it divides: without it there is nothing to evaluate
}

// Whether the fact says no more than `name` = `value`: one more or one less breaks it, tried where all sizes differ.
// min(a + seq, b + seq) = a + seq holds for every large b, and means b = a.
bool is_tight(const std::string& name, const Expr& value, const Fact& fact,
              const std::set<std::string>& symbols) {
  SymbolValues at;
  for (const std::string& s : symbols) at[s] = 5 + 7 * static_cast<int64_t>(at.size());
  const int64_t exact = value.evaluate(at);
  return std::ranges::any_of(std::array{exact - 1, exact + 1}, [&](int64_t other) {
    at[name] = other;
    return fact.first.evaluate(at) != fact.second.evaluate(at);
  });
}

// min(past + seq, total) against past + seq, from a mask cut to the keys' length: settled by total = past + seq. Where
// each layer's past has its own name, min(past.1 + seq, past.0 + seq) is settled by past.1 = past.0. Of a mask of which
// positions take the last ones, min(seq, total) against seq says that there are as many as tokens, and maybe more.
std::optional<Expr> settled_by(const InputSymbols& inputs, const std::string& name, const Fact& fact,
                               const std::set<std::string>& symbols) try {
  const auto is_of_caches = [&](const std::string& s) { return inputs.of_caches.contains(s); };
  const bool is_of_a_part = symbols.size() == 2 && !std::ranges::all_of(symbols, is_of_caches);
  std::vector<Expr> values{fact.first, fact.second};
  for (const std::string& s : symbols) values.push_back(Expr::symbol(s));
  for (const Expr& value : values) {
    const std::set<std::string> read = value.symbols();
    const auto low = value.lower_bound();
    if (read.empty() || read.contains(name) || !low || *low < 0) continue;
    if (is_of_a_part && value.as_symbol()) continue;
    const Substitution map{{name, value}};
    if (fact.first.substitute(map) == fact.second.substitute(map) && is_tight(name, value, fact, symbols))
      return value;
  }
  return std::nullopt;
} catch (const Error&) {
  return std::nullopt;  // it divides by what is 0 there
}

// The latest symbol that the fact determines, with its value; max(a, b) = b only says so where nothing is 1 (`tokens`).
std::optional<std::pair<std::string, Expr>> solved(const InputSymbols& inputs, const Fact& fact,
                                                   bool tokens) {
  const Expr difference = fact.first - fact.second;
  const std::set<std::string> symbols = difference.symbols();
  std::vector<std::string> latest_first;
  for (const std::string& s : symbols)
    if (inputs.order.contains(s)) latest_first.push_back(s);
  if (latest_first.size() != symbols.size()) return std::nullopt;  // what the data decides is nobody's name
  std::sort(latest_first.begin(), latest_first.end(),
            [&](const auto& a, const auto& b) { return inputs.order.at(a) > inputs.order.at(b); });
  for (const std::string& s : latest_first) {
    auto solution = solved_for(s, difference);
    if (!solution && tokens) solution = settled_by(inputs, s, fact, symbols);
    // Nobody names a size that is nothing: such a fact comes of one name for two sizes.
    if (solution && solution->is_constant(0)) continue;
    if (solution && binds(inputs, *solution)) return {{s, *solution}};
  }
  return std::nullopt;
}

// Not just a sum of products.
bool is_clamped(const Expr& e) { return e.str().find('(') != std::string::npos; }

// Sizes of different names at the same axis of operands that broadcast.
void add_broadcast_facts(const Graph& graph, const Node& node, std::vector<Fact>& facts) {
  const auto one_of = [](const Expr& e) { return e.constant().has_value(); };
  for (std::size_t a = 0; a + 1 < node.inputs.size(); ++a)
    for (std::size_t b = a + 1; b < node.inputs.size(); ++b) {
      if (node.inputs[a] == kNoValue || node.inputs[b] == kNoValue) continue;
      const auto &x = graph.value(node.inputs[a]).shape, &y = graph.value(node.inputs[b]).shape;
      if (!x || !y) continue;
      for (std::size_t i = 1; i <= std::min(x->size(), y->size()); ++i) {
        const Expr &p = (*x)[x->size() - i], &q = (*y)[y->size() - i];
        if (!one_of(p) && !one_of(q) && !(p == q)) facts.emplace_back(p, q);
      }
    }
}

std::vector<Fact> facts_of(const Graph& graph, bool tokens) {
  std::vector<Fact> facts = graph.assumptions;
  for (const Node& node : graph.nodes)
    if (tokens && !node.removed && is_pointwise(node.op)) add_broadcast_facts(graph, node, facts);
  return facts;
}

void drop_settled(Graph& graph) {
  std::vector<Fact> open;
  for (Fact& fact : graph.assumptions)
    if (!(fact.first == fact.second) && std::find(open.begin(), open.end(), fact) == open.end())
      open.push_back(std::move(fact));
  graph.assumptions = std::move(open);
}

}  // namespace

bool unify_symbols(Graph& graph) {
  constexpr std::size_t kMost = 512;  // each costs a walk over the graph; a decoder settles a handful
  const bool tokens = input_reach::scores_tokens(graph);
  std::size_t settled = 0;
  bool changed = false;
  for (bool again = true; again && settled < kMost;) {
    again = false;
    Substitution map;
    const InputSymbols inputs(graph);
    const std::vector<Fact> facts = facts_of(graph, tokens);
    // Sums first: what is clamped is settled by them, and is no way to say what another size is.
    for (const bool clamped : {false, true}) {
      if (clamped && !map.empty()) break;
      for (const Fact& fact : facts) {
        if (settled >= kMost) break;
        const auto solution =
            solved(inputs, {fact.first.substitute(map), fact.second.substitute(map)}, tokens);
        if (!solution || (is_clamped(solution->second) && !clamped)) continue;
        const Substitution one{{solution->first, solution->second}};
        for (auto& [name, value] : map) value = value.substitute(one);
        map.insert(*one.begin());
        ++settled;
      }
    }
    if (!map.empty()) {
      substitute(graph, map);
      changed = again = true;
    }
  }
  drop_settled(graph);
  return changed;
}

}  // namespace ark::passes
