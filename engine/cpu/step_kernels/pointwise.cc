// A fused expression over blocks of elements: each step fills one register of kBlock floats.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "engine/cpu/step_kernel.h"

namespace ark {
namespace {

constexpr int64_t kBlock = 256;

int64_t scratch(const PhaseLimits& limits) {
  const auto steps = static_cast<int64_t>(limits.variant->pointwise.size());
  return scratch_of<float>((steps + 1) * kBlock) + scratch_of<const float*>(steps);
}

// Operators without vector code: one element at a time.
float evaluate(Op op, float a, float b, float p, float q) {
  switch (op) {
    case Op::kSign:
      return a > 0 ? 1.f : a < 0 ? -1.f : a;
    case Op::kLog:
      return std::log(a);
    case Op::kSin:
      return std::sin(a);
    case Op::kCos:
      return std::cos(a);
    case Op::kTan:
      return std::tan(a);
    case Op::kAsin:
      return std::asin(a);
    case Op::kAcos:
      return std::acos(a);
    case Op::kAtan:
      return std::atan(a);
    case Op::kSinh:
      return std::sinh(a);
    case Op::kCosh:
      return std::cosh(a);
    case Op::kAsinh:
      return std::asinh(a);
    case Op::kAcosh:
      return std::acosh(a);
    case Op::kAtanh:
      return std::atanh(a);
    case Op::kSoftplus:
      return a > 20 ? a : std::log1p(std::exp(a));
    case Op::kSoftsign:
      return a / (1 + std::fabs(a));
    case Op::kSelu:
      return q * (a > 0 ? a : p * std::expm1(a));
    case Op::kElu:
      return a > 0 ? a : p * std::expm1(a);
    case Op::kCelu:
      return std::max(0.f, a) + std::min(0.f, p * std::expm1(a / p));
    case Op::kLeakyRelu:
      return a < 0 ? p * a : a;
    case Op::kThresholdedRelu:
      return a > p ? a : 0.f;
    case Op::kHardSigmoid:
      return std::max(0.f, std::min(1.f, p * a + q));
    case Op::kHardSwish:
      return a * std::max(0.f, std::min(1.f, a / 6 + 0.5f));
    case Op::kMish:
      return a * std::tanh(a > 20 ? a : std::log1p(std::exp(a)));
    case Op::kFloor:
      return std::floor(a);
    case Op::kCeil:
      return std::ceil(a);
    case Op::kRound:
      return std::nearbyint(a);
    case Op::kPow:
      return std::pow(a, b);
    case Op::kMin:
      return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b);
    case Op::kMax:
      return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b);
    case Op::kMod:
      return p != 0 ? std::fmod(a, b) : a - b * std::floor(a / b);
    case Op::kPRelu:
      return a < 0 ? a * b : a;
    default:
      return NAN;
  }
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
  } else if (!call.simd->pointwise(step.op, reg(step.a), reg(step.b), step.p, step.q, to, n)) {
    const float *a = reg(step.a), *b = step.b == kNone ? a : reg(step.b);
    for (int64_t i = 0; i < n; ++i) to[i] = evaluate(step.op, a[i], b[i], step.p, step.q);
  }
}

void run(const PhaseCall& call) {
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
      // The last step writes the output itself, but in a block that is not whole: vectors would write past
      // its end.
      const bool direct = s + 1 == steps && n == kBlock;
      run_step(call, s, start, n, regs, direct ? target : regs.memory + static_cast<int64_t>(s) * kBlock);
    }
    if (n < kBlock) std::memcpy(target, regs.value[steps - 1], static_cast<std::size_t>(n) * sizeof(float));
  }
}

}  // namespace
extern const StepKernel kPointwiseStep{OpCode::kPointwise, "pointwise", run, scratch};
}  // namespace ark
