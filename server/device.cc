#include "server/device.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>

#include "base/error.h"
#include "engine/cuda/driver.h"

namespace ark {

void add_device_options(CLI::App& app, DeviceChoice& choice) {
  app.add_option("--device", choice.device, "cpu, cuda or auto")
      ->transform(CLI::CheckedTransformer(std::map<std::string, Device>{
          {"auto", Device::kAuto}, {"cpu", Device::kCpu}, {"cuda", Device::kCuda}}))
      ->default_str("auto");
  app.add_option("--numerics", choice.numerics,
                 "on a GPU: exact (a row's result does not depend on the batch) or fast")
      ->transform(CLI::CheckedTransformer(std::map<std::string, cuda::Numerics>{
          {"exact", cuda::Numerics::kExact}, {"fast", cuda::Numerics::kFast}}))
      ->default_str("exact");
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
