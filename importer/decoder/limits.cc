#include "importer/decoder/limits.h"

#include <algorithm>
#include <set>

#include "importer/decoder/probe.h"
#include "importer/decoder/refusal.h"

namespace ark::decoder {
namespace {

// Values that depend on no token but are read by nodes that do.
std::set<ValueId> frontier(const Graph& graph, const Roles& roles) {
  std::vector<bool> depends(graph.values.size(), false);
  depends[static_cast<std::size_t>(graph.inputs[roles.signature.ids])] = true;
  for (const auto& cache : roles.signature.caches)
    depends[static_cast<std::size_t>(graph.inputs[cache.input])] = true;
  std::set<ValueId> values;
  for (const Node& node : graph.nodes) {
    if (node.removed) continue;
    const auto is = [&](ValueId id) { return id != kNoValue && depends[static_cast<std::size_t>(id)]; };
    if (!std::any_of(node.inputs.begin(), node.inputs.end(), is)) continue;
    for (const ValueId id : node.inputs)
      if (id != kNoValue && !is(id) && !graph.value(id).constant) values.insert(id);
    for (const ValueId id : node.outputs)
      if (id != kNoValue) depends[static_cast<std::size_t>(id)] = true;
  }
  return values;
}

int64_t rotary_rows(const Graph& graph, int64_t limit) {
  for (const Node& node : graph.nodes)
    if (!node.removed && node.op == Op::kRotary)
      if (const ConstantPtr& table = graph.value(node.inputs[1]).constant)
        limit = std::min(limit, table->dims[0]);
  return limit;
}

bool evaluates(Probe& probe, ValueId id, const Step& step) {
  try {
    probe.value(id, probe.possible(step));
    return true;
  } catch (const Refusal&) {
    return false;
  }
}

}  // namespace

int64_t reachable_length(const Graph& graph, const Roles& roles, int64_t wanted) {
  int64_t length = rotary_rows(graph, wanted);
  Probe probe(graph, roles);
  for (const ValueId id : frontier(graph, roles)) {
    const auto step = [&](int64_t n) { return roles.has_past ? Step{1, 1, n - 1} : Step{1, n, 0}; };
    if (!roles.has_past) {  // masks grow as the square; their limits are those of the positions
      const auto& shape = graph.value(id).shape;
      const auto layout = shape ? layout_of(*shape, roles.sizes) : std::nullopt;
      const auto atoms = layout ? flatten(*layout) : std::vector<Atom>{};
      if (!layout || std::count_if(atoms.begin(), atoms.end(),
                                   [](const Atom& a) { return is_row(a) && a.kind != AtomKind::kBatch; }) > 1)
        continue;
    }
    if (evaluates(probe, id, step(length)) || !evaluates(probe, id, step(2))) continue;
    int64_t good = 2, bad = length;
    while (bad - good > 1) {
      const int64_t middle = good + (bad - good) / 2;
      (evaluates(probe, id, step(middle)) ? good : bad) = middle;
      probe.forget();
    }
    length = good;
  }
  return length;
}

}  // namespace ark::decoder
