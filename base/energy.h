// Energy that the processors' packages have used, by the kernel's powercap tree (RAPL), as Zeus (NSDI'23) measures it.
// Documentation/power/powercap in the kernel's sources.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace ark {

class EnergyMeter {
 public:
  // $ARK_POWERCAP, or /sys/class/powercap.
  static std::filesystem::path folder();
  explicit EnergyMeter(const std::filesystem::path& root = folder());

  // Joules of all packages, of whoever works on them, since this object was made; nothing where they cannot be read. A
  // counter begins anew after minutes to hours (max_energy_range_uj): ask more often.
  std::optional<double> joules();
  // Why there is nothing to read, in one line; else empty.
  const std::string& reason() const { return reason_; }

 private:
  struct Zone {
    std::filesystem::path file;
    uint64_t last = 0, range = 0;  // microjoules
  };
  std::mutex mutex_;
  std::vector<Zone> zones_;
  double microjoules_ = 0;
  std::string reason_;
};

// Watts, by a counter of joules that somebody looks at every now and then. Any thread.
class PowerMeter {
 public:
  using Clock = std::chrono::steady_clock;

  // The mean since the look before, `joules` being what the counter says now. A second look within a second is told
  // what the one before was; nothing before there are two.
  std::optional<double> watts(double joules, Clock::time_point now = Clock::now());

 private:
  std::mutex mutex_;
  std::optional<double> joules_, watts_;
  Clock::time_point at_{};
};

}  // namespace ark
