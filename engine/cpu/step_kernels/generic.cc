// Any canonical operator through its plain kernel.
#include <algorithm>

#include "base/error.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/step_kernel.h"

namespace ark {
namespace {

// What the kernel makes of these very values, where sizes alone do not tell; kernels rely on it. Each processor looks
// for itself before it writes.
void check(const Kernel& kernel, const KernelCall& call) {
  const std::vector<OutputType> types = kernel.shapes(call);
  for (std::size_t i = 0; i < call.outputs.size(); ++i) {
    const TensorView& y = call.outputs[i];
    if (!y.present()) continue;
    if (i >= types.size() || types[i].dtype != y.dtype || !std::ranges::equal(types[i].dims, y.shape()))
      throw Error(Code::kInvalidArgument,
                  "its output " + std::to_string(i) + " is not of the size that the model declares");
  }
}

void run_generic(const PhaseCall& call) {
  const Kernel* kernel = find_cpu_kernel(call.variant->op);  // present: checked at prepare()
  const std::size_t inputs = call.operands.size() - static_cast<std::size_t>(call.outputs);
  const KernelCall view{call.variant->op, call.attributes, call.operands.first(inputs),
                        call.operands.subspan(inputs)};
  if (call.frame->is_plain) {
    const auto present = std::ranges::count_if(view.inputs, [](const TensorView& x) { return x.present(); });
    if (!follows_from_sizes(call.variant->op, static_cast<int>(present))) check(*kernel, view);
  }
  for (int64_t tile = call.first; tile < call.last; ++tile) kernel->tile(view, tile);
}

}  // namespace

std::vector<StepKernel> generic_step_kernels() { return {{OpCode::kGeneric, run_generic}}; }

}  // namespace ark
