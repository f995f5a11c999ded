#include "engine/cpu/step_kernel.h"

#include <array>

#include "base/error.h"
#include "base/ir/keys.h"

namespace ark {

VariantFacts VariantFacts::of(const Variant& variant) {
  const Attributes& a = variant.attributes;
  VariantFacts f;
  if (variant.code == OpCode::kGeneric) return f;
  f.scale = static_cast<float>(a.get_or(key::kScale, 1));
  f.softcap = static_cast<float>(a.get_or(key::kSoftcap, 0));
  f.epsilon = static_cast<float>(a.get_or(key::kEpsilon, 1e-5));
  f.window = a.get_or(key::kWindow, 0);
  f.axis = a.get_or(key::kAxis, 0);
  f.first = a.get_or(key::kFirst, 0);
  f.rotary_dim = a.get_or(key::kRotaryDim, 0);
  f.rms = a.get_or(key::kRms, 0) != 0;
  f.interleaved = a.get_or(key::kInterleaved, 0) != 0;
  f.head_map = a.get_or(key::kHeadMap, {});
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
