#include "engine/cuda/energy.h"

#include <cstdlib>

#include "base/error.h"

namespace ark::cuda {
namespace {

constexpr int kSuccess = 0;  // NVML_SUCCESS

}  // namespace

std::string GpuEnergy::library() {
  const char* named = std::getenv("ARK_NVML");
  return named && *named ? named : "libnvidia-ml.so.1";
}

GpuEnergy::GpuEnergy(const std::string& name) : nvml_({name}) {
  if (!nvml_.is_open()) {
    reason_ = "there is no " + escaped(name);
    return;
  }
  try {
    int (*const init)() = nvml_.function("nvmlInit_v2");
    int (*const count_of)(unsigned*) = nvml_.function("nvmlDeviceGetCount_v2");
    int (*const device_of)(unsigned, Device**) = nvml_.function("nvmlDeviceGetHandleByIndex_v2");
    read_ = nvml_.function("nvmlDeviceGetTotalEnergyConsumption");
    unsigned count = 0;
    if (init() != kSuccess || count_of(&count) != kSuccess || count == 0) {
      reason_ = escaped(name) + " finds no GPU";
      return;
    }
    devices_.resize(count);
    for (unsigned i = 0; i < count; ++i)
      if (device_of(i, &devices_[i]) != kSuccess)
        reason_ = escaped(name) + " does not give GPU " + std::to_string(i);
  } catch (const Error& error) {
    reason_ = error.what();
  }
  if (const auto now = millijoules())
    first_ = *now;
  else if (reason_.empty())
    reason_ = "a GPU does not tell its energy (those since Volta do)";
  // A part of the whole would be taken for it.
  if (!reason_.empty()) devices_.clear();
}

std::optional<unsigned long long> GpuEnergy::millijoules() const {
  if (devices_.empty() || !reason_.empty()) return std::nullopt;
  unsigned long long all = 0;
  for (Device* device : devices_) {
    unsigned long long own = 0;
    if (read_(device, &own) != kSuccess) return std::nullopt;
    all += own;
  }
  return all;
}

std::optional<double> GpuEnergy::joules() {
  const std::lock_guard lock(mutex_);
  const auto now = millijoules();
  // The driver counts anew when it is loaded anew.
  if (!now || *now < first_) return std::nullopt;
  return static_cast<double>(*now - first_) * 1e-3;
}

}  // namespace ark::cuda
