// One step of a decoder, as the scheduler asks for it and as the loops answer: values, no pointers.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/program/device_contract.h"
#include "engine/run/step_cost.h"

namespace ark {

struct StepDescriptor {
  std::vector<int32_t> tokens;  // T entries, 1 <= T <= max_tokens
  std::vector<StepSequence> sequences;
  std::vector<PageDelta> page_deltas;  // applied in order, before page_copies and before the step
  std::vector<PageCopy> page_copies;
  std::vector<StepRow> rows;                    // R entries, 0 <= R <= max_rows
  std::vector<std::pair<int32_t, float>> bias;  // logit_bias entries (token, added to the logit)
  // Bit t % 32 of a row's word t / 32: token t may come. What is beyond its words may not.
  std::vector<uint32_t> masks;
  int32_t processors = 0;  // of each rank, that take part at most, 0: all; on CPUs. Changes no result
};

struct RowResult {
  int32_t token = -1;  // sampled
  // Natural log, of the distribution after penalties and bias, before temperature and filters.
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;  // (token, logprob), descending
  std::vector<float> logits;
  std::optional<Error> error;  // why the sequence cannot go on; its slot must start anew
};
struct StepResult {
  uint64_t step = 0;  // as returned by post()
  std::vector<RowResult> rows;
  StepCost cost;
};

}  // namespace ark
