#include "engine/plain/inputs.h"

#include "base/error.h"

namespace ark {

std::string dims_text(const Dims& dims) { return str(Shape(dims.begin(), dims.end())); }

void bind_symbols(const std::optional<Shape>& shape, const Dims& dims, SymbolValues& symbols) {
  if (!shape || shape->size() != dims.size()) return;
  for (std::size_t i = 0; i < dims.size(); ++i)
    if (const auto name = (*shape)[i].as_symbol()) symbols.try_emplace(*name, dims[i]);
}

SymbolValues bind_inputs(const Graph& graph, std::span<const Tensor> inputs, SymbolValues known) {
  if (inputs.size() != graph.inputs.size())
    throw Error(Code::kInvalidArgument, "the model has " + std::to_string(graph.inputs.size()) + " inputs, " +
                                            std::to_string(inputs.size()) + " were given");
  const auto refuse = [&](std::size_t i, const std::string& why) {
    throw Error(Code::kInvalidArgument, "input '" + escaped(graph.value(graph.inputs[i]).name) + "': " + why);
  };
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Value& value = graph.value(graph.inputs[i]);
    if (inputs[i].dtype != value.dtype)
      refuse(i, "is " + std::string(name_of(inputs[i].dtype)) + ", the model wants " +
                    std::string(name_of(value.dtype)));
    if (value.shape && value.shape->size() != inputs[i].dims.size())
      refuse(i, "has shape " + dims_text(inputs[i].dims) + ", the model wants " + str(*value.shape));
    bind_symbols(value.shape, inputs[i].dims, known);
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {  // now that all symbols are bound
    const Value& value = graph.value(graph.inputs[i]);
    for (std::size_t axis = 0; value.shape && axis < inputs[i].dims.size(); ++axis) {
      const Expr& size = (*value.shape)[axis];
      const auto wanted = size.try_evaluate(known);
      if (!wanted) refuse(i, "no input tells the size " + escaped(size.str()));
      if (*wanted != inputs[i].dims[axis])
        refuse(i, "has shape " + dims_text(inputs[i].dims) + ", which does not fit " + str(*value.shape) +
                      " with the sizes of the other inputs");
    }
  }
  return known;
}

}  // namespace ark
