#include "engine/plain/inputs.h"

#include "base/error.h"

namespace ark {
namespace {

// Sizes that are products or sums of unbound symbols cannot be checked, nor used.
bool is_bound(const Expr& e, const SymbolValues& symbols) {
  std::set<std::string> names;
  e.collect_symbols(names);
  for (const std::string& name : names)
    if (!symbols.contains(name)) return false;
  return true;
}

}  // namespace

std::string dims_text(const Dims& dims) { return str(Shape(dims.begin(), dims.end())); }

void bind_symbols(const std::optional<Shape>& shape, const Dims& dims, SymbolValues& symbols) {
  if (!shape || shape->size() != dims.size()) return;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    std::set<std::string> names;
    (*shape)[i].collect_symbols(names);
    if (names.size() == 1 && (*shape)[i] == Expr::symbol(*names.begin()))
      symbols.try_emplace(*names.begin(), dims[i]);
  }
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
      if (!is_bound(size, known)) refuse(i, "no input tells the size " + escaped(size.str()));
      if (size.evaluate(known) != inputs[i].dims[axis])
        refuse(i, "has shape " + dims_text(inputs[i].dims) + ", which does not fit " + str(*value.shape) +
                      " with the sizes of the other inputs");
    }
  }
  return known;
}

}  // namespace ark
