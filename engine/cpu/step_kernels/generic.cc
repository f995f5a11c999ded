// Any canonical operator through its plain kernel.
#include "engine/cpu/kernels.h"
#include "engine/cpu/step_kernel.h"

namespace ark {
namespace {

void run(const PhaseCall& call) {
  const Kernel* kernel = find_cpu_kernel(call.variant->op);  // present: checked at prepare()
  const std::size_t inputs = call.operands.size() - static_cast<std::size_t>(call.outputs);
  const KernelCall view{call.variant->op, call.attributes, call.operands.first(inputs),
                        call.operands.subspan(inputs)};
  for (int64_t tile = call.first; tile < call.last; ++tile) kernel->tile(view, tile);
}

}  // namespace

std::vector<StepKernel> generic_step_kernels() { return {{OpCode::kGeneric, run}}; }

}  // namespace ark
