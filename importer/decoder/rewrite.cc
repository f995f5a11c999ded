#include "importer/decoder/rewrite.h"

#include <algorithm>

#include "base/error.h"

namespace ark::decoder {
namespace {

Axis row_axis(AtomKind kind, const Expr& size) { return {{kind, size}}; }

// Rows of the batch, or all parts of each (batch * heads): new tokens must be laid out alike (join_past).
Axis batch_axis(const Expr& size, const Expr& batch) {
  const auto parts = parts_a_row(size, batch);
  if (!parts || *parts < 1) return row_axis(AtomKind::kBatch, size);
  Axis axis = row_axis(AtomKind::kBatch, batch);
  append(axis, {AtomKind::kFeature, *parts});
  return axis;
}

// Token ids as rows, and for each cache a value of the token graph that stands for one cached row.
void make_inputs(Rewrite& r) {
  const DecoderSignature& s = r.roles.signature;
  const StepSizes& sizes = r.roles.sizes;
  const Layout tokens{row_axis(AtomKind::kBatch, sizes.batch), row_axis(AtomKind::kSequence, sizes.sequence)};
  r.set(r.plain.inputs[s.ids], Rows{tokens, r.out.ids, false});
  r.placeholders.assign(r.plain.inputs.size(), kNoValue);
  for (const auto& cache : s.caches) {
    const ValueId id = r.plain.inputs[cache.input];
    const Value& v = r.plain.value(id);
    Layout layout;
    Shape shape{TokenBuilder::tokens()};
    for (std::size_t i = 0; i < v.shape->size(); ++i) {
      const Expr& dim = (*v.shape)[i];
      if (static_cast<int>(i) == cache.batch_axis)
        layout.push_back(batch_axis(dim, sizes.batch));
      else if (static_cast<int>(i) == cache.sequence_axis)
        layout.push_back(row_axis(AtomKind::kPast, dim));
      else if (const auto n = dim.constant())
        layout.push_back(feature_axis(*n));
      else
        throw Refusal(
            "", "cache " + escaped(v.name) + " has a size " + dim.str() + " that the graph leaves open");
    }
    for (const int64_t d : token_dims(layout)) shape.emplace_back(d);
    r.placeholders[cache.input] = r.out.graph.add_value("cached " + v.name, DType::kF32, shape);
    r.set(id, Rows{layout, r.placeholders[cache.input], false});
  }
}

bool transfer(Rewrite& r, const Node& node) {
  return rewrite_scores(r, node) || rewrite_pointwise(r, node) || rewrite_movement(r, node) ||
         rewrite_features(r, node) || rewrite_products(r, node);
}

void rewrite_node(Rewrite& r, const Node& node) {
  const bool free =
      std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return r.is_free(id); });
  if (free && node.subgraphs.empty()) {
    bool varies = node.attributes.has_symbols();
    for (const ValueId id : node.inputs) varies = varies || (id != kNoValue && r.varies[id]);
    for (const ValueId id : node.outputs)
      if (id != kNoValue) r.varies[id] = varies;
    return;
  }
  if (!node.subgraphs.empty()) refuse(node, "operator " + std::string(name_of(node.op)) + " has subgraphs");
  r.out.label = node.name;
  try {
    if (!transfer(r, node))
      refuse(node,
             "operator " + std::string(name_of(node.op)) + " has no form that works token by token here");
  } catch (const Error& error) {
    refuse(node, error.what());
  }
}

}  // namespace

Rewrite::Rewrite(const Graph& graph, const Roles& graph_roles, int64_t table_length)
    : plain(graph),
      roles(graph_roles),
      length(table_length),
      probe(graph, graph_roles),
      origins(out.graph),
      meanings(graph.values.size()),
      varies(graph.values.size(), false) {
  for (const ValueId id : graph.inputs) varies[id] = true;
  make_inputs(*this);
}

const Shape& Rewrite::shape(const Node& node, ValueId id) const {
  const Value& v = plain.value(id);
  if (!v.shape) refuse(node, "value " + escaped(v.name) + " has no known rank");
  return *v.shape;
}

void rewrite(Rewrite& r) {
  for (const Node& node : r.plain.nodes)
    if (!node.removed) rewrite_node(r, node);
}

}  // namespace ark::decoder
