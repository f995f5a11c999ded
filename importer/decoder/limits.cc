#include "importer/decoder/limits.h"

#include <algorithm>
#include <set>

#include "importer/decoder/probe.h"
#include "importer/decoder/refusal.h"

namespace ark::decoder {
namespace {

// Values that depend on the step, on no token, and are read by nodes that do.
std::set<ValueId> frontier(const Graph& graph, const Roles& roles) {
  std::vector<bool> depends(graph.values.size(), false), varies = depends;
  for (const ValueId id : graph.inputs) varies[id] = true;
  depends[graph.inputs[roles.signature.ids]] = true;
  for (const auto& cache : roles.signature.caches) depends[graph.inputs[cache.input]] = true;
  std::set<ValueId> values;
  for (const Node& node : graph.nodes) {
    if (node.removed) continue;
    const auto is = [&](ValueId id) { return id != kNoValue && depends[id]; };
    const bool changes = node.attributes.has_symbols() || !node.subgraphs.empty() ||
                         std::any_of(node.inputs.begin(), node.inputs.end(),
                                     [&](ValueId id) { return id != kNoValue && varies[id]; });
    for (const ValueId id : node.outputs)
      if (id != kNoValue) varies[id] = changes;
    if (!std::any_of(node.inputs.begin(), node.inputs.end(), is)) continue;
    for (const ValueId id : node.inputs)
      if (id != kNoValue && !is(id) && varies[id]) values.insert(id);
    for (const ValueId id : node.outputs)
      if (id != kNoValue) depends[id] = true;
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

// Whether a tensor of `dims` broadcasts against the other operands of the elementwise nodes that read it.
bool fits_readers(const Graph& graph, const std::vector<NodeId>& readers, ValueId id, const Dims& dims,
                  const SymbolValues& values) {
  for (const NodeId reader : readers) {
    const Node& node = graph.node(reader);
    if (!is_pointwise(node.op)) continue;
    for (const ValueId other : node.inputs) {
      if (other == kNoValue || other == id || !graph.value(other).shape) continue;
      const Shape& shape = *graph.value(other).shape;
      for (std::size_t back = 1; back <= std::min(shape.size(), dims.size()); ++back) {
        const auto n = shape[shape.size() - back].try_evaluate(values);
        const int64_t mine = dims[dims.size() - back];
        if (n && *n != mine && *n != 1 && mine != 1) return false;
      }
    }
  }
  return true;
}

class Reach {
 public:
  Reach(const Graph& graph, const Roles& roles)
      : graph_(graph), roles_(roles), readers_(graph.consumers()), probe_(graph, roles) {}

  bool holds(ValueId id, const Step& asked) {
    const Step step = probe_.possible(asked);
    try {
      const Tensor value = probe_.value(id, step);
      return fits_readers(graph_, readers_[id], id, value.dims,
                          roles_.at(step.batch, step.sequence, step.past));
    } catch (const Exhausted&) {
      throw;  // says nothing of this length
    } catch (const Refusal&) {
      return false;
    }
  }
  void forget() { probe_.forget(); }

 private:
  const Graph& graph_;
  const Roles& roles_;
  const std::vector<std::vector<NodeId>> readers_;
  Probe probe_;
};

}  // namespace

int64_t reachable_length(const Graph& graph, const Roles& roles, int64_t wanted) {
  int64_t length = rotary_rows(graph, wanted);
  Reach reach(graph, roles);
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
    if (reach.holds(id, step(length)) || !reach.holds(id, step(2))) continue;
    int64_t good = 2, bad = length;
    while (bad - good > 1) {
      const int64_t middle = good + (bad - good) / 2;
      (reach.holds(id, step(middle)) ? good : bad) = middle;
      reach.forget();
    }
    length = good;
  }
  return length;
}

}  // namespace ark::decoder
