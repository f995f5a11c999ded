#include "engine/plain/step_inputs.h"

#include <algorithm>

#include "base/error.h"
#include "engine/plain/inputs.h"

namespace ark {
namespace {

std::vector<DecoderSignature::Cache> carried(const Graph& graph, const DecoderSignature& signature) {
  std::vector<DecoderSignature::Cache> all = signature.caches;
  for (const DecoderSignature::State& state : signature.states) {
    const Shape& shape = *graph.value(graph.inputs[state.input]).shape;
    const auto open = std::find_if(shape.begin(), shape.end(), [](const Expr& e) { return !e.constant(); });
    all.push_back(
        {state.input, state.output, open == shape.end() ? -1 : static_cast<int>(open - shape.begin()), -1});
  }
  return all;
}

}  // namespace

StepInputs::StepInputs(const Graph& graph, const DecoderSignature& signature)
    : graph_(graph), signature_(signature), carried_(ark::carried(graph, signature)) {}

void StepInputs::check() const {
  const Value& ids = graph_.value(graph_.inputs[signature_.ids]);
  const auto each = ids.shape->back().constant();
  if (each && (*each != 1 || carried_.empty()))
    throw Error(Code::kUnsupported, "input '" + escaped(ids.name) + "' " + str(*ids.shape) +
                                        " fixes the number of tokens, and prompts have any; export it open");
  const std::vector<int32_t> token(1);
  try {
    bind_inputs(graph_, of({}, {}, token));
  } catch (const Error& e) {
    throw Error(Code::kUnsupported, std::string("the model cannot be driven token by token: ") + e.what());
  }
}

Tensor StepInputs::empty_past(const DecoderSignature::Cache& cache, const SymbolValues& known) const {
  const Value& value = graph_.value(graph_.inputs[cache.input]);
  Dims dims;
  for (std::size_t i = 0; i < value.shape->size(); ++i) {
    const auto axis = static_cast<int>(i);
    if (axis == cache.batch_axis)  // of one row, which may have several parts
      dims.push_back((*value.shape)[i].try_evaluate(known).value_or(1));
    else if (axis == cache.sequence_axis)
      dims.push_back(0);
    else if (const auto c = (*value.shape)[i].constant())
      dims.push_back(*c);
    else
      throw Error(Code::kUnsupported, "input '" + escaped(value.name) + "': axis " + std::to_string(i) +
                                          " has no fixed size, so an empty cache cannot be made");
  }
  return Tensor::zeros(value.dtype, dims);
}

std::vector<Tensor> StepInputs::of(const std::vector<Tensor>& before, std::span<const int32_t> history,
                                   std::span<const int32_t> tokens) const {
  const auto n = static_cast<int64_t>(tokens.size()), past = static_cast<int64_t>(history.size());
  const bool cached = !carried_.empty();
  const int64_t first = cached ? past : 0,
                run = cached ? n : past + n;  // without caches the whole sequence runs again
  const auto token = [&](int64_t i) {
    return int64_t{first + i < past ? history[first + i] : tokens[first + i - past]};
  };
  std::vector<Tensor> inputs(graph_.inputs.size());
  SymbolValues known;
  const auto give = [&](std::size_t i, Tensor t) {
    bind_symbols(graph_.value(graph_.inputs[i]).shape, t.dims, known);
    inputs[i] = std::move(t);
  };
  Tensor ids = Tensor::zeros(graph_.value(graph_.inputs[signature_.ids]).dtype, {1, run});
  for (int64_t i = 0; i < run; ++i) {
    if (ids.dtype == DType::kI64)
      ids.as<int64_t>()[i] = token(i);
    else if (ids.dtype == DType::kI32)
      ids.as<int32_t>()[i] = static_cast<int32_t>(token(i));
    else
      throw Error(Code::kUnsupported,
                  "token ids of type " + std::string(name_of(ids.dtype)) + " cannot be driven");
  }
  give(signature_.ids, std::move(ids));
  for (std::size_t c = 0; c < carried_.size(); ++c)
    give(carried_[c].input, before.empty() ? empty_past(carried_[c], known) : before[c]);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].dtype != DType::kUndefined) continue;
    const Value& value = graph_.value(graph_.inputs[i]);
    auto given = step_input(graph_, signature_, i, dims_of(i, first, run, known), first, run);
    if (!given)
      throw Error(Code::kUnsupported,
                  "input '" + escaped(value.name) + "' has no role in a decoder, so it cannot be fed");
    give(i, std::move(*given));
  }
  return inputs;
}

// As declared; where that leaves a size open, as the input's role wants it.
Dims StepInputs::dims_of(std::size_t input, int64_t first, int64_t run, const SymbolValues& known) const {
  const auto& shape = graph_.value(graph_.inputs[input]).shape;
  Dims dims;
  if (!shape) return dims;
  for (const Expr& e : *shape) dims.push_back(e.try_evaluate(known).value_or(1));
  const auto fill = [&](std::size_t from_back, int64_t size) {
    if (dims.size() >= from_back && !(*shape)[dims.size() - from_back].constant())
      dims[dims.size() - from_back] = size;
  };
  const auto& positions = signature_.positions;
  if (signature_.mask == input) {
    fill(1, signature_.caches.empty() ? run : first + run);  // states alone: a mask of the step
    if (dims.size() >= 3 || signature_.mask_by_query) fill(2, run);
  } else if (signature_.token_types == input ||
             std::find(positions.begin(), positions.end(), input) != positions.end()) {
    fill(1, run);
  }
  return dims;
}

}  // namespace ark
