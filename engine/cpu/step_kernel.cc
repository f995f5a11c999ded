#include "engine/cpu/step_kernel.h"

#include <array>

#include "base/error.h"

namespace ark {

VariantFacts VariantFacts::of(const Variant& variant) {
  const Attributes& a = variant.attributes;
  VariantFacts f;
  if (variant.code == OpCode::kGeneric) return f;
  f.scale = static_cast<float>(a.real_or("scale", 1));
  f.softcap = static_cast<float>(a.real_or("softcap", 0));
  f.epsilon = static_cast<float>(a.real_or("epsilon", 1e-5));
  f.window = a.integer_or("window", 0);
  f.axis = a.integer_or("axis", 0);
  f.first = a.integer_or("first", 0);
  f.rotary_dim = a.integer_or("rotary_dim", 0);
  f.rms = a.integer_or("rms", 0) != 0;
  f.interleaved = a.integer_or("interleaved", 0) != 0;
  f.head_map = a.ints_or("head_map", {});
  return f;
}

Scratch::Scratch(int64_t bytes) : memory_(aligned_bytes(bytes)), bytes_(bytes) {}

std::byte* Scratch::take_bytes(int64_t bytes) {
  std::byte* p = memory_.get() + used_;
  used_ += (bytes + 63) / 64 * 64;
  ARK_CHECK(used_ <= bytes_, "a step kernel takes more scratch than it asked for");
  return p;
}

const StepKernel& find_step_kernel(OpCode code) {
  static constexpr std::array kAll = {&kGenericStep,    &kPointwiseStep, &kEmbedStep,      &kNormStep,
                                      &kMatMulStep,     &kRotaryStep,    &kKvAppendStep,   &kAttentionStep,
                                      &kSelectRowsStep, &kSendStep,      &kRecvReduceStep, &kRecvConcatStep,
                                      &kSampleStep};
  for (const StepKernel* kernel : kAll) {
    if (kernel->code == code) return *kernel;
  }
  throw Error(Code::kInternal, "no step kernel for opcode " + std::to_string(static_cast<int>(code)));
}

}  // namespace ark
