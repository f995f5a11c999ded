// The rows whose logits the step asks for.
#include <cstring>

#include "engine/cpu/step_kernel.h"

namespace ark {
namespace {

void run_select_rows(const PhaseCall& call) {
  const TensorView &x = call.operands[0], &out = call.operands[1];
  const auto row_bytes = static_cast<std::size_t>(bytes_of(x.dtype, inner_size(x, 1)));
  for (int64_t r = call.first; r < call.last; ++r) {
    const auto token = static_cast<std::size_t>(call.frame->rows[r].token);
    std::memcpy(out.data + static_cast<std::size_t>(r) * row_bytes, x.data + token * row_bytes, row_bytes);
  }
}

}  // namespace

std::vector<StepKernel> select_rows_step_kernels() { return {{OpCode::kSelectRows, run_select_rows}}; }

}  // namespace ark
