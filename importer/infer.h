// Folding of single nodes, shared by emit() and the passes. Private to the importer.
#pragma once

#include <map>
#include <string>

#include "base/ir/graph.h"

namespace ark {

// Replaces a node whose value is known: by constants (host evaluation of small results, lazy views of large
// constants), or by kDims where its elements are known symbolically. Elements of one result are at most
// `max_elements`. The node is marked removed when constants replace it. Returns whether anything changed.
bool fold_node(Graph& graph, NodeId id, int64_t max_elements);

// What a node of movement makes of the constant `x`, its first input: a view, however large; nullptr if the
// node is no movement, or none that a view can follow.
ConstantPtr lazy_view(const Node& node, const ConstantPtr& x);

// Sizes in place of symbols, everywhere: in shapes, elements, attributes, assumptions and subgraphs.
void substitute(Graph& graph, const std::map<std::string, Expr>& map);

// Infers all nodes again, in order; for passes that changed shapes at the root of things.
void infer_all(Graph& graph);

}  // namespace ark
