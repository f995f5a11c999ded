// Energy that the machine's GPUs have used, by NVML, the driver's own library, where it is installed.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/cuda/library.h"

namespace ark::cuda {

class GpuEnergy {
 public:
  // $ARK_NVML, or libnvidia-ml.so.1.
  static std::string library();
  explicit GpuEnergy(const std::string& name = library());

  // Joules of all GPUs, of whoever uses them, since this object was made; nothing where they cannot be read. Any
  // thread.
  std::optional<double> joules();
  // Why there is nothing to read, in one line; else empty.
  const std::string& reason() const { return reason_; }

 private:
  struct Device;  // NVML's
  using Read = int(Device*, unsigned long long* millijoules);

  std::optional<unsigned long long> millijoules() const;  // of all, since the driver was loaded

  Library nvml_;
  Read* read_ = nullptr;
  std::vector<Device*> devices_;
  std::mutex mutex_;
  unsigned long long first_ = 0;
  std::string reason_;
};

}  // namespace ark::cuda
