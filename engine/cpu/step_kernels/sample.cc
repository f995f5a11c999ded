// Samples the wanted rows of logits; remembers the slot's last token on the device.
#include <algorithm>
#include <cstring>

#include "engine/cpu/sampler.h"
#include "engine/cpu/step_kernel.h"

namespace ark {
namespace {

int64_t sample_scratch(const PhaseLimits& limits) {
  return scratch_of<float>(sampler_scratch(last_dim(limits.operands[0]))) +
         scratch_of<int32_t>(limits.max_length);
}

// The slot's tokens [0, count), gathered over its pages.
std::span<const int32_t> gather_history(const SlotState& state, int32_t slot, int64_t count, int32_t* into) {
  const int32_t* table = state.table(slot);
  for (int64_t i = 0; i < count; i += state.page_size) {
    const auto n = static_cast<std::size_t>(std::min<int64_t>(state.page_size, count - i));
    std::memcpy(into + i, state.page_tokens.data() + int64_t{table[i / state.page_size]} * state.page_size,
                n * sizeof(int32_t));
  }
  return {into, static_cast<std::size_t>(count)};
}

void run_sample(const PhaseCall& call) {
  const TensorView& logits = call.operands[0];
  const int64_t vocabulary = last_dim(logits);
  const std::span<float> room{call.scratch->take<float>(sampler_scratch(vocabulary)),
                              static_cast<std::size_t>(sampler_scratch(vocabulary))};
  int32_t* tokens = call.scratch->take<int32_t>(int64_t{call.state->pages_per_slot} * call.state->page_size);
  for (int64_t r = call.first; r < call.last; ++r) {
    const StepRow& row = call.frame->rows[r];
    const std::span<const float> values{logits.as<const float>() + r * vocabulary,
                                        static_cast<std::size_t>(vocabulary)};
    const int64_t position = call.frame->positions[row.token] + 1;
    std::span<const int32_t> history;
    if (row.sampling.needs_history()) history = gather_history(*call.state, row.slot, position, tokens);
    const auto bias = call.frame->bias.subspan(static_cast<std::size_t>(row.bias_first),
                                               static_cast<std::size_t>(row.bias_count));
    const auto mask = call.frame->masks.subspan(static_cast<std::size_t>(row.mask_first),
                                                static_cast<std::size_t>(row.mask_words));
    RowRecord record = sample_row(values, row, history, position, bias, mask, room);
    if ((row.flags & (kWantToken | kTentative)) == kWantToken)
      call.state->last_tokens[row.slot] = record.token;
    if (!call.results) continue;
    if (row.flags & kWantLogits) {
      record.has_logits = 1;
      std::memcpy(call.logits + r * vocabulary, values.data(), values.size_bytes());
    }
    call.results[r] = record;
  }
}

}  // namespace

std::vector<StepKernel> sample_step_kernels() { return {{OpCode::kSample, run_sample, sample_scratch}}; }

}  // namespace ark
