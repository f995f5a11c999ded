// LayerNorm, RMSNorm and the operators of base/ir/rowwise.h over the last axis.
#include "engine/cpu/step_kernel.h"

namespace ark {
namespace {

void run_norm(const PhaseCall& call) {
  const TensorView &x = call.operands[0], &scale = call.operands[1], &bias = call.operands[2],
                   &out = call.operands[3];
  const int64_t n = last_dim(x);
  for (int64_t row = call.first; row < call.last; ++row) {
    call.simd->norm({x.as<const float>() + row * n, scale.present() ? scale.as<const float>() : nullptr,
                     bias.present() ? bias.as<const float>() : nullptr, out.as<float>() + row * n, n,
                     call.facts->epsilon, call.facts->rms});
  }
}

void run_rowwise(const PhaseCall& call) {
  const int64_t n = last_dim(call.operands[0]);
  for (int64_t row = call.first; row < call.last; ++row)
    call.simd->rowwise(call.variant->op, call.operands[0].as<const float>() + row * n, call.facts->parameter,
                       call.operands[1].as<float>() + row * n, n);
}

}  // namespace

std::vector<StepKernel> norm_step_kernels() {
  return {{OpCode::kNorm, run_norm}, {OpCode::kRowwise, run_rowwise}};
}

}  // namespace ark
