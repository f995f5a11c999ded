// A fused expression over blocks of elements: each step fills one register of kBlock floats.
#include <algorithm>
#include <cstring>

#include "engine/cpu/step_kernel.h"

namespace ark {
namespace {

constexpr int64_t kBlock = 256;

int64_t pointwise_scratch(const PhaseLimits& limits) {
  const auto steps = static_cast<int64_t>(limits.variant->pointwise.size());
  return scratch_of<float>((steps + 1) * kBlock) + scratch_of<const float*>(steps);
}

// Elements [start, start + n) of `out`'s row-major order, read from `in` broadcast to it.
void load_broadcast(const TensorView& in, const TensorView& out, int64_t start, int64_t n, float* to) {
  const float* data = in.as<const float>();
  const int64_t width = last_dim(out);
  const bool along = last_dim(in) == width && width > 1;
  for (int64_t i = start; i < start + n;) {
    const int64_t column = i % width, run = std::min(width - column, start + n - i);
    int64_t rest = i / width, offset = 0, stride = last_dim(in);
    for (int axis = out.rank - 2; axis >= 0; --axis) {
      const int64_t size = out.dims[axis], index = rest % size;
      rest /= size;
      const int own = axis - (out.rank - in.rank);
      if (own < 0) break;
      const int64_t own_size = in.dims[own];
      if (own_size > 1) offset += index * stride;
      stride *= own_size;
    }
    if (along) {
      std::memcpy(to + (i - start), data + offset + column, static_cast<std::size_t>(run) * sizeof(float));
    } else {
      std::fill_n(to + (i - start), run, data[offset]);
    }
    i += run;
  }
}

struct Registers {
  float* memory;        // [steps][kBlock]
  const float** value;  // where each step's result lies: own memory, or the operand itself
};

void run_step(const PhaseCall& call, std::size_t s, int64_t start, int64_t n, const Registers& regs,
              float* to) {
  const PointwiseStep& step = call.variant->pointwise[s];
  const TensorView& out = call.operands.back();
  const auto reg = [&](int32_t r) { return r == kNone ? nullptr : regs.value[r]; };
  regs.value[s] = to;
  if (step.op == Op::kConstantOfShape) {
    std::fill_n(to, kBlock, step.p);
  } else if (step.input != kNone) {
    const TensorView& in = call.operands[step.input];
    const bool same = in.size() == out.size();
    if (same && n == kBlock && s + 1 < call.variant->pointwise.size()) {
      regs.value[s] = in.as<const float>() + start;
    } else if (same) {
      std::memcpy(to, in.as<const float>() + start, static_cast<std::size_t>(n) * sizeof(float));
    } else {
      load_broadcast(in, out, start, n, to);
    }
  } else {
    call.simd->pointwise(step.op, reg(step.a), reg(step.b), step.p, step.q, to, n);
  }
}

void run_pointwise(const PhaseCall& call) {
  if (call.first == call.last) return;
  const TensorView& out = call.operands.back();
  const std::size_t steps = call.variant->pointwise.size();
  const auto count = static_cast<int64_t>(steps);
  const Registers regs{call.scratch->take<float>((count + 1) * kBlock),
                       call.scratch->take<const float*>(count)};
  const int64_t end = std::min(call.last * kElementTile, out.size());
  for (int64_t start = call.first * kElementTile; start < end; start += kBlock) {
    const int64_t n = std::min(kBlock, end - start);
    float* target = out.as<float>() + start;
    for (std::size_t s = 0; s < steps; ++s) {
      // The last step writes the output itself, but in a block that is not whole: vectors would write past its end.
      const bool direct = s + 1 == steps && n == kBlock;
      run_step(call, s, start, n, regs, direct ? target : regs.memory + static_cast<int64_t>(s) * kBlock);
    }
    if (n < kBlock) std::memcpy(target, regs.value[steps - 1], static_cast<std::size_t>(n) * sizeof(float));
  }
}

}  // namespace

std::vector<StepKernel> pointwise_step_kernels() {
  return {{OpCode::kPointwise, run_pointwise, pointwise_scratch}};
}

}  // namespace ark
