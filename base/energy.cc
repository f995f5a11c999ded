#include "base/energy.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "base/files.h"

namespace ark {
namespace {

std::optional<uint64_t> number_in(const std::filesystem::path& file) {
  std::ifstream in(file);
  uint64_t value = 0;
  if (!(in >> value)) return std::nullopt;
  return value;
}

// Packages stand at the top, as intel-rapl:N for all makers; intel-rapl:N:M are parts of them, psys is a sum.
bool is_package(const std::filesystem::path& zone) {
  const std::string folder = zone.filename();
  if (!folder.starts_with("intel-rapl:") || std::ranges::count(folder, ':') != 1) return false;
  std::string name;
  std::getline(std::ifstream(zone / "name") >> std::ws, name);
  return name.starts_with("package");
}

}  // namespace

std::filesystem::path EnergyMeter::folder() {
  const char* named = std::getenv("ARK_POWERCAP");
  return named && *named ? named : "/sys/class/powercap";
}

EnergyMeter::EnergyMeter(const std::filesystem::path& root) {
  for (const std::string& name : names_in(root)) {
    const std::filesystem::path zone = root / name;
    if (!is_package(zone)) continue;
    const auto now = number_in(zone / "energy_uj"), range = number_in(zone / "max_energy_range_uj");
    if (!now || !range)
      reason_ = escaped(zone.string()) + " cannot be read (its energy_uj is root's by default)";
    else
      zones_.push_back({zone / "energy_uj", *now, *range});
  }
  if (!reason_.empty()) zones_.clear();  // a part of the whole would be taken for it
  if (zones_.empty() && reason_.empty()) reason_ = "no package in " + escaped(root.string());
}

std::optional<double> EnergyMeter::joules() {
  const std::lock_guard lock(mutex_);
  for (Zone& zone : zones_) {
    const auto now = number_in(zone.file);
    if (!now) return std::nullopt;
    microjoules_ += static_cast<double>(*now >= zone.last ? *now - zone.last : zone.range - zone.last + *now);
    zone.last = *now;
  }
  if (zones_.empty()) return std::nullopt;
  return microjoules_ * 1e-6;
}

std::optional<double> PowerMeter::watts(double joules, Clock::time_point now) {
  // Two that look at once would see one tick of the counter, a millisecond, or none.
  constexpr std::chrono::duration<double> kShortest{1};
  const std::lock_guard lock(mutex_);
  const std::chrono::duration<double> since = now - at_;
  if (joules_ && since < kShortest) return watts_;
  watts_.reset();
  if (joules_ && joules >= *joules_) watts_ = (joules - *joules_) / since.count();
  joules_ = joules;
  at_ = now;
  return watts_;
}

}  // namespace ark
