// A graph's inputs, checked against their declared shapes.
#pragma once

#include <span>

#include "base/ir/graph.h"

namespace ark {

// "[2,3]"
std::string dims_text(const Dims& dims);
// Symbols of `shape` that are still unbound and stand alone in an axis take the actual size.
void bind_symbols(const std::optional<Shape>& shape, const Dims& dims, SymbolValues& symbols);
// `known` and what the sizes of `inputs` (in the order of graph.inputs) tell. Throws Error(kInvalidArgument)
// naming the input whose type, rank or sizes do not fit what is declared or what other inputs say.
SymbolValues bind_inputs(const Graph& graph, std::span<const Tensor> inputs, SymbolValues known = {});

}  // namespace ark
