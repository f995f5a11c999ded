// Stores a token's keys and values in its page.
#include "engine/cpu/kv_pages.h"
#include "engine/cpu/step_kernel.h"

namespace ark {
namespace {

// x [T, heads, dim]
void append(const PhaseCall& call, const TensorView& x, const KvPages& to) {
  for (int64_t t = call.first; t < call.last; ++t) {
    const auto token = static_cast<std::size_t>(t);
    const int64_t position = call.frame->positions[token];
    const int64_t page = call.state->table(call.frame->slots[token])[position / to.size];
    for (int64_t h = 0; h < to.heads; ++h)
      store_kv(to.codec, to.place(page, h, position % to.size),
               x.as<const float>() + (t * to.heads + h) * to.dim, to.dim);
  }
}

void run(const PhaseCall& call) {
  append(call, call.operands[0], KvPages(call.operands[2], false));
  append(call, call.operands[1], KvPages(call.operands[3], true));
}

}  // namespace

std::vector<StepKernel> kv_append_step_kernels() { return {{OpCode::kKvAppend, run}}; }

}  // namespace ark
