// Rotary position embedding of a token's heads.
#include "engine/cpu/step_kernels/rotate.h"

namespace ark {
namespace {

void run_rotary(const PhaseCall& call) {
  const TensorView &x = call.operands[0], &out = call.operands[4];
  const int64_t dim = last_dim(x), heads = inner_size(x, 1) / dim;
  for (int64_t t = call.first; t < call.last; ++t) {
    const Angles angles = angles_of(call, t);
    for (int64_t row = t * heads; row < (t + 1) * heads; ++row)
      angles.rotate(x.as<const float>() + row * dim, dim, out.as<float>() + row * dim);
  }
}

}  // namespace

std::vector<StepKernel> rotary_step_kernels() { return {{OpCode::kRotary, run_rotary}}; }

}  // namespace ark
