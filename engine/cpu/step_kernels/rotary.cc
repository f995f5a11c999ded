// Rotary position embedding of the first R dimensions of each head (arXiv:2104.09864).
#include <cstring>

#include "engine/cpu/step_kernel.h"

namespace ark {
namespace {

void rotate(const float* x, const float* cos, const float* sin, int64_t half, bool interleaved, float* out) {
  const int64_t step = interleaved ? 2 : 1, apart = interleaved ? 1 : half;
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i * step], b = x[i * step + apart];
    out[i * step] = a * cos[i] - b * sin[i];
    out[i * step + apart] = a * sin[i] + b * cos[i];
  }
}

void run(const PhaseCall& call) {
  const TensorView &x = call.operands[0], &cos = call.operands[1], &sin = call.operands[2];
  const TensorView &positions = call.operands[3], &out = call.operands[4];
  const int64_t dim = last_dim(x), heads = inner_size(x, 1) / dim, half = last_dim(cos), rotated = 2 * half;
  for (int64_t t = call.first; t < call.last; ++t) {
    const int64_t position = std::min(std::max<int64_t>(index_at(positions, t), 0), cos.dims[0] - 1);
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t at = (t * heads + h) * dim;
      const float* from = x.as<const float>() + at;
      float* to = out.as<float>() + at;
      rotate(from, cos.as<const float>() + position * half, sin.as<const float>() + position * half, half,
             call.facts->interleaved, to);
      if (dim > rotated && to != from) {
        std::memmove(to + rotated, from + rotated, static_cast<std::size_t>(dim - rotated) * sizeof(float));
      }
    }
  }
}

}  // namespace

std::vector<StepKernel> rotary_step_kernels() { return {{OpCode::kRotary, run}}; }

}  // namespace ark
