// Functions of elements that bodies and generated expressions share.
#pragma once

#include "engine/cuda/bodies/number.h"
#include "engine/cuda/call.h"

namespace ark::cuda {

ARK_DEVICE bool is_nan(float x) { return x != x; }
ARK_DEVICE float nan() { return dev::as_f32(0x7fc00000u); }
ARK_DEVICE float infinity() { return dev::as_f32(0x7f800000u); }

// A function of its own: the activations are much code, which most products do not run.
ARK_APART float activate(u32 bits, float v) {
  if ((bits & kEpilogueRelu) != 0) v = pointwise::Relu::of(Number(v)).v;
  if ((bits & kEpilogueSilu) != 0) v = pointwise::Silu::of(Number(v)).v;
  if ((bits & kEpilogueGelu) != 0) v = pointwise::Gelu::of(Number(v), 0).v;
  if ((bits & kEpilogueGeluTanh) != 0) v = pointwise::Gelu::of(Number(v), 1).v;
  return v;
}

// Bias, activation, residual, in this order. `column`: of the bias; `element`: of the residual.
struct EpilogueTerms {
  float bias, residual;
};
ARK_DEVICE EpilogueTerms epilogue_terms(u32 bits, const float* bias, i64 column, const float* residual,
                                        i64 element) {
  return {(bits & kEpilogueBias) != 0 ? dev::ld_nc(bias + column) : 0.0f,
          (bits & kEpilogueResidual) != 0 ? dev::ld_global(residual + element) : 0.0f};
}
ARK_DEVICE float epilogue(u32 bits, float v, const EpilogueTerms& terms) {
  if ((bits & kEpilogueBias) != 0) v = v + terms.bias;
  if ((bits & kEpilogueActivations) != 0) v = activate(bits, v);
  if ((bits & kEpilogueResidual) != 0) v = v + terms.residual;
  return v;
}

// What bodies without messages of their own have.
struct Quiet {
  static constexpr bool kSends = false;
  static constexpr bool kIsLeftOut = false;  // in some steps: is_left_out()
  ARK_DEVICE static Tiles bytes(const Call&, Tiles) { return {0, 0}; }
  ARK_DEVICE static i64 grid(const Call& call) { return call.size(call.i.grid); }
  // All consumer threads, before other instances are waited for; the wait's barrier orders what it writes. `tiles`: the
  // block's, maybe none.
  ARK_DEVICE static void prepare(const Call&, Tiles) {}
};

}  // namespace ark::cuda
