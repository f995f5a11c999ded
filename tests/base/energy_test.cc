#include "base/energy.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace ark {
namespace {

// A powercap tree as the kernel shows it, in a folder of its own.
class Energy : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "ark-energy-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void zone(const std::string& folder, const std::string& name, uint64_t energy,
            uint64_t range = 262'143'328'850) {
    std::filesystem::create_directories(root_ / folder);
    std::ofstream(root_ / folder / "name") << name << "\n";
    std::ofstream(root_ / folder / "energy_uj") << energy << "\n";
    std::ofstream(root_ / folder / "max_energy_range_uj") << range << "\n";
  }
  std::filesystem::path root_;
};

TEST_F(Energy, AddsPackagesAndNothingElse) {
  const auto set = [this](uint64_t first, uint64_t second) {
    zone("intel-rapl:0", "package-0", first);
    zone("intel-rapl:1", "package-1", second);
    zone("intel-rapl:0:0", "core", 9 * first);
    zone("intel-rapl:2", "psys", 9 * first);
    zone("intel-rapl-mmio:0", "package-0", 9 * first);  // the same package by another way
  };
  set(1'000'000, 5'000'000);
  EnergyMeter meter(root_);
  EXPECT_EQ(meter.reason(), "");
  EXPECT_DOUBLE_EQ(meter.joules().value(), 0);
  set(3'500'000, 5'250'000);
  EXPECT_DOUBLE_EQ(meter.joules().value(), 2.75);
  EXPECT_DOUBLE_EQ(meter.joules().value(), 2.75);
}

TEST_F(Energy, CountersBeginAnew) {
  zone("intel-rapl:0", "package-0", 9'000'000, 10'000'000);
  EnergyMeter meter(root_);
  zone("intel-rapl:0", "package-0", 2'000'000, 10'000'000);
  EXPECT_DOUBLE_EQ(meter.joules().value(), 3);
  zone("intel-rapl:0", "package-0", 4'000'000, 10'000'000);
  EXPECT_DOUBLE_EQ(meter.joules().value(), 5);
}

TEST_F(Energy, WhatCannotBeReadIsNamed) {
  EnergyMeter none(root_);
  EXPECT_FALSE(none.joules());
  EXPECT_NE(none.reason().find("no package in " + root_.string()), std::string::npos);
  EXPECT_FALSE(EnergyMeter(root_ / "nowhere").joules());
  zone("intel-rapl:0", "package-0", 1);
  zone("intel-rapl:1", "package-1", 1);
  std::filesystem::remove(root_ / "intel-rapl:1" /
                          "energy_uj");  // as for users without rights; tests may run as root
  EnergyMeter half(root_);
  EXPECT_FALSE(half.joules()) << "half of the machine is no figure";
  EXPECT_NE(half.reason().find("intel-rapl:1 cannot be read"), std::string::npos) << half.reason();
  std::filesystem::remove(root_ / "intel-rapl:1" / "name");
  EnergyMeter one(root_);
  std::filesystem::remove(root_ / "intel-rapl:0" / "energy_uj");  // a driver that is unloaded
  EXPECT_FALSE(one.joules());
}

TEST(Power, IsWhatAScraperSees) {
  using std::chrono::milliseconds;
  PowerMeter meter;
  const PowerMeter::Clock::time_point start{};
  const auto at = [&](int ms, double joules) { return meter.watts(joules, start + milliseconds(ms)); };
  EXPECT_FALSE(at(0, 100)) << "one look is no rate";
  EXPECT_FALSE(at(500, 110)) << "too early to say";
  EXPECT_DOUBLE_EQ(at(2000, 130).value(), 15);
  EXPECT_DOUBLE_EQ(at(2001, 131).value(), 15) << "another scraper, a moment later";
  EXPECT_DOUBLE_EQ(at(12'000, 130).value(), 0);
  EXPECT_FALSE(at(14'000, 3)) << "a counter that began anew is no figure";
  EXPECT_DOUBLE_EQ(at(16'000, 63).value(), 30);
}

}  // namespace
}  // namespace ark
