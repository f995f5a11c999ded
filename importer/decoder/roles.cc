#include "importer/decoder/roles.h"

#include "base/error.h"
#include "base/ir/attention_operands.h"
#include "base/ir/keys.h"
#include "importer/decoder/refusal.h"
#include "importer/decoder/static_caches.h"
#include "importer/infer.h"

namespace ark::decoder {
namespace {

using Replacements = std::map<std::string, Expr>;

// Not `bind`: for some arguments std::bind fits better, and does nothing.
void replace_symbol(Replacements& map, const Expr& dim, const Expr& to) {
  const auto name = dim.as_symbol();
  if (name && !(dim == to)) map.emplace(*name, to);
}

const Shape* shape_of(const Graph& graph, std::optional<std::size_t> input) {
  if (!input) return nullptr;
  const auto& shape = graph.value(graph.inputs[*input]).shape;
  return shape ? &*shape : nullptr;
}

Replacements input_sizes(const Graph& graph, const DecoderSignature& s) {
  const auto named = [](const Expr& size, const char* name) {
    return size.constant() ? size : Expr::symbol(name);
  };
  const Shape ids = *shape_of(graph, s.ids);
  const Expr batch = named(ids[0], "BATCH"), sequence = named(ids[1], "SEQUENCE"),
             past = Expr::symbol("PAST");
  Replacements map;
  replace_symbol(map, ids[0], batch);
  replace_symbol(map, ids[1], sequence);
  for (const auto& cache : s.caches) {
    const Shape& shape = *shape_of(graph, cache.input);
    replace_symbol(map, shape[cache.batch_axis], batch);
    replace_symbol(map, shape[cache.sequence_axis], past);
  }
  for (const auto& state : s.states)
    for (const Expr& size : *shape_of(graph, state.input))
      if (!size.constant()) replace_symbol(map, size, batch);
  std::vector<std::size_t> like_ids = s.positions;
  if (s.token_types) like_ids.push_back(*s.token_types);
  for (const std::size_t input : like_ids)
    if (const Shape* shape = shape_of(graph, input); shape && !shape->empty()) {
      replace_symbol(map, shape->back(), sequence);
      if (shape->size() > 1) replace_symbol(map, (*shape)[shape->size() - 2], batch);
    }
  for (const auto& length : s.lengths)
    if (const Shape* shape = shape_of(graph, length.input); shape && !shape->empty())
      replace_symbol(map, shape->front(), batch);
  if (const Shape* shape = shape_of(graph, s.mask); shape && !shape->empty()) {
    if (!s.mask_by_query && shape->size() > 1) replace_symbol(map, shape->front(), batch);
    replace_symbol(map, shape->back(), s.caches.empty() ? sequence : past + sequence);
    if (shape->size() > 2 || s.mask_by_query) replace_symbol(map, (*shape)[shape->size() - 2], sequence);
  }
  return map;
}

void bind_equal(Replacements& map, const Expr& a, const Expr& b) {
  if (a == b) return;
  const auto is_free = [](const Expr& e) {
    const auto name = e.as_symbol();
    return name && *name != "BATCH" && *name != "SEQUENCE" && *name != "PAST";
  };
  if (is_free(a))
    replace_symbol(map, a, b);
  else if (is_free(b))
    replace_symbol(map, b, a);
}

// Sizes that must be equal for a node to make sense at all.
Replacements node_sizes(const Graph& graph) {
  Replacements map;
  for (const Node& n : graph.nodes) {
    if (n.removed) continue;
    const auto shape = [&](std::size_t i) -> const Shape* {
      if (i >= n.inputs.size() || n.inputs[i] == kNoValue || !graph.value(n.inputs[i]).shape) return nullptr;
      return &*graph.value(n.inputs[i]).shape;
    };
    if (n.op == Op::kConcat) {
      const auto axis = static_cast<std::size_t>(n.attributes.get(key::kAxis));
      for (std::size_t i = 1; i < n.inputs.size(); ++i)
        if (const Shape* a = shape(0), *b = shape(i); a && b && a->size() == b->size())
          for (std::size_t d = 0; d < a->size(); ++d)
            if (d != axis) bind_equal(map, (*a)[d], (*b)[d]);
    } else if (n.op == Op::kAttention) {
      for (const auto& [past, fresh] :
           {std::pair(attention::kPastK, attention::kK), {attention::kPastV, attention::kV}})
        if (const Shape* a = shape(past), *b = shape(fresh); a && b && a->size() == 4 && b->size() == 4)
          for (const std::size_t d : {0, 1, 3}) bind_equal(map, (*a)[d], (*b)[d]);
    }
  }
  return map;
}

void set_symbol(SymbolValues& values, const Expr& e, int64_t value) {
  if (const auto name = e.as_symbol()) values[*name] = value;
}

}  // namespace

SymbolValues Roles::at(int64_t batch, int64_t sequence, int64_t past) const {
  SymbolValues values;
  set_symbol(values, sizes.batch, batch);
  set_symbol(values, sizes.sequence, sequence);
  set_symbol(values, sizes.past, past);
  return values;
}

void own_subgraphs(Graph& graph) {
  for (Node& node : graph.nodes)
    for (auto& subgraph : node.subgraphs) {
      subgraph = std::make_shared<Graph>(*subgraph);
      own_subgraphs(*subgraph);
    }
}

void infer_of_tokens(Graph& graph, const StepSizes& sizes) {
  infer_all(graph);
  // Expressions are built again over symbols that may be 0 (Expr folds by that), which stand for one more.
  Replacements up, down;
  for (const Expr& size : {sizes.batch, sizes.sequence})
    if (const auto name = size.as_symbol()) up[*name] = size + 1, down[*name] = size - 1;
  substitute(graph, up);
  substitute(graph, down);
}

void bound_sizes(Graph& graph, const StepSizes& sizes, int64_t length) {
  const auto longest = sizes.past.as_symbol() ? sizes.past.as_symbol() : sizes.sequence.as_symbol();
  if (!longest) return;
  // Expressions are built again over what is left of `length`, which is a size as well: never below 0.
  const Expr left = Expr::symbol("LEFT");
  const Expr others = sizes.past.as_symbol() ? sizes.sequence : Expr(0);
  substitute(graph, {{*longest, Expr(length) - others - left}});
  substitute(graph, {{*left.as_symbol(), Expr(length) - others - Expr::symbol(*longest)}});
}

Roles unify_sizes(Graph& graph, const DecoderSignature& signature) {
  own_subgraphs(graph);
  substitute(graph, input_sizes(graph, signature));
  for (int round = 0; round < 4; ++round) {
    const Replacements map = node_sizes(graph);
    if (map.empty()) break;
    substitute(graph, map);
  }
  Roles roles;
  roles.signature = signature;
  roles.has_past = !signature.caches.empty();
  const Shape& ids = *shape_of(graph, signature.ids);
  roles.sizes.batch = ids[0];
  roles.sizes.sequence = ids[1];
  if (roles.has_past) {
    const auto& cache = signature.caches.front();
    roles.sizes.past = (*shape_of(graph, cache.input))[cache.sequence_axis];
    if (!roles.sizes.past.as_symbol()) {
      const Value& value = graph.value(graph.inputs[cache.input]);
      throw Refusal("", "input " + escaped(value.name) + " " + str(*value.shape) +
                            " is a cache whose length is not open; " + kExportGrowing);
    }
  }
  infer_of_tokens(graph, roles.sizes);
  return roles;
}

}  // namespace ark::decoder
