// What each input of an untouched decoder graph is given for a step of one sequence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ir/decoder.h"
#include "base/tensor.h"

namespace ark {

class StepInputs {
 public:
  // Keeps both by reference.
  StepInputs(const Graph& graph, const DecoderSignature& signature);

  // Caches, and states as caches without an axis that grows: what a step hands on to the next one.
  const std::vector<DecoderSignature::Cache>& carried() const { return carried_; }
  // Throws Error(kUnsupported) for what cannot be fed: at load, not at the first request.
  void check() const;
  // `before`: what the last step has handed on, by carried(); empty before the first token. `history`: tokens so far.
  std::vector<Tensor> of(const std::vector<Tensor>& before, std::span<const int32_t> history,
                         std::span<const int32_t> tokens) const;

 private:
  Dims dims_of(std::size_t input, int64_t first, int64_t run, const SymbolValues& known) const;
  Tensor empty_past(const DecoderSignature::Cache& cache, const SymbolValues& known) const;

  const Graph& graph_;
  const DecoderSignature& signature_;
  const std::vector<DecoderSignature::Cache> carried_;
};

}  // namespace ark
