#include "server/device.h"

#include <cstdio>

#include "base/error.h"
#include "engine/cuda/driver.h"
#include "server/choice.h"

namespace ark {

void add_device_options(CLI::App& app, DeviceChoice& choice) {
  add_choice<Device>(app, "--device", choice.device,
                     {{"auto", Device::kAuto}, {"cpu", Device::kCpu}, {"cuda", Device::kCuda}}, "auto",
                     "auto takes a GPU if there is one; ranks in processes take those that "
                     "CUDA_VISIBLE_DEVICES leaves, in turn");
  add_choice<cuda::Numerics>(app, "--numerics", choice.numerics,
                             {{"exact", cuda::Numerics::kExact}, {"fast", cuda::Numerics::kFast}}, "exact",
                             "on a GPU: exact (a row's result does not depend on the batch) or fast");
}

std::shared_ptr<cuda::Gpu> choose_gpu(Device device, std::string* why) {
  if (device == Device::kCpu) {
    *why = "asked for";
    return nullptr;
  }
  try {
    return cuda::open_gpu();
  } catch (const Error& error) {
    if (device == Device::kCuda) throw;
    *why = error.what();
    return nullptr;
  }
}

std::string why_not_on_gpu(const std::vector<Program>& programs, cuda::Numerics numerics) {
  std::vector<const Program*> all;
  for (const Program& program : programs) all.push_back(&program);
  try {
    cuda::VariantSet set(all, numerics);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string describe(const cuda::DeviceExecutor& executor, const cuda::Gpu& gpu) {
  const cuda::KernelFacts& facts = executor.kernel_facts();
  char compiled[48];
  std::snprintf(compiled, sizeof compiled, "compiled in %.2f s", facts.compile_seconds);
  return cuda::describe(gpu.info()) + ", " + std::to_string(executor.processors()) + " processors a rank, " +
         std::to_string(facts.registers) + " registers, " +
         (facts.compile_seconds > 0 ? compiled : "from the cache");
}

}  // namespace ark
