// LayerNorm, RMSNorm and softmax over the last axis.
#include <algorithm>

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

// Vector code reads and writes whole runs of sixteen.
int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

int64_t softmax_scratch(const PhaseLimits& limits) {
  return scratch_of<float>(padded(last_dim(limits.operands[0])));
}

// Exponentials in f32, their sum in f64, ascending: a row's bits depend on nothing but the row.
void softmax(const PhaseCall& call) {
  if (call.first == call.last) return;
  const int64_t n = last_dim(call.operands[0]);
  float* const e = call.scratch->take<float>(padded(n));
  std::fill(e + n, e + padded(n), 0.f);
  for (int64_t row = call.first; row < call.last; ++row) {
    const float* x = call.operands[0].as<const float>() + row * n;
    float* out = call.operands[1].as<float>() + row * n;
    const float top = *std::max_element(x, x + n);
    for (int64_t i = 0; i < n; ++i) e[i] = x[i] - top;
    call.simd->pointwise(Op::kExp, e, nullptr, 0, 0, e, n);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += e[i];
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(e[i] / sum);
  }
}

}  // namespace

std::vector<StepKernel> norm_step_kernels() {
  return {{OpCode::kNorm, run_norm}, {OpCode::kSoftmax, softmax, softmax_scratch}};
}

}  // namespace ark
