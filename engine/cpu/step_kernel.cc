#include "engine/cpu/step_kernel.h"

#include "base/error.h"
#include "engine/program/opcodes.h"

namespace ark {

// One file of engine/cpu/step_kernels each.
std::vector<StepKernel> attention_step_kernels(), embed_step_kernels(), exchange_step_kernels(),
    expert_matmul_step_kernels(), generic_step_kernels(), kv_append_step_kernels(), matmul_step_kernels(),
    norm_step_kernels(), pointwise_step_kernels(), rotary_step_kernels(), sample_step_kernels(),
    select_rows_step_kernels();

Scratch::Scratch(int64_t bytes) : memory_(aligned_bytes(bytes)), bytes_(bytes) {}

std::byte* Scratch::take_bytes(int64_t bytes) {
  std::byte* p = memory_.get() + used_;
  used_ += (bytes + 63) / 64 * 64;
  ARK_CHECK(used_ <= bytes_, "a step kernel takes more scratch than it asked for");
  return p;
}

const StepKernel& find_step_kernel(OpCode code) {
  static const std::vector<StepKernel> kAll = [] {
    std::vector<StepKernel> all(all_opcodes().size());
    for (const auto family :
         {attention_step_kernels, embed_step_kernels, exchange_step_kernels, expert_matmul_step_kernels,
          generic_step_kernels, kv_append_step_kernels, matmul_step_kernels, norm_step_kernels,
          pointwise_step_kernels, rotary_step_kernels, sample_step_kernels, select_rows_step_kernels}) {
      for (const StepKernel& kernel : family()) all[static_cast<std::size_t>(kernel.code)] = kernel;
    }
    for (const OpCodeInfo& info : all_opcodes())
      ARK_CHECK(all[static_cast<std::size_t>(info.code)].run, "no step kernel for " + std::string(info.name));
    return all;
  }();
  return kAll.at(static_cast<std::size_t>(code));
}

}  // namespace ark
