// Joules of GPUs, by a library that stands for NVML.
#include "engine/cuda/energy.h"

#include <gtest/gtest.h>

#include "tests/cuda/environment.h"

namespace ark::test {
namespace {

TEST(GpuEnergy, AddsTheGpusUp) {
  const Environment before("FAKE_NVML_MILLIJOULES", "1000");
  cuda::GpuEnergy energy(ARK_FAKE_NVML);
  EXPECT_EQ(energy.reason(), "");
  EXPECT_DOUBLE_EQ(energy.joules().value(), 0);
  const Environment after("FAKE_NVML_MILLIJOULES", "1500");
  EXPECT_DOUBLE_EQ(energy.joules().value(), 1.5);
  const Environment anew("FAKE_NVML_MILLIJOULES", "7");
  EXPECT_FALSE(energy.joules()) << "a counter that began anew is no figure";
}

TEST(GpuEnergy, WhatCannotBeReadIsNamed) {
  cuda::GpuEnergy none(ARK_FAKE_NVML);
  EXPECT_NE(none.reason().find("finds no GPU"), std::string::npos) << none.reason();
  const Environment silent("FAKE_NVML_MILLIJOULES", "silent");
  cuda::GpuEnergy old(ARK_FAKE_NVML);
  EXPECT_NE(old.reason().find("does not tell its energy"), std::string::npos) << old.reason();
  cuda::GpuEnergy absent("libnowhere.so");
  EXPECT_NE(absent.reason().find("there is no libnowhere.so"), std::string::npos) << absent.reason();
  cuda::GpuEnergy other(ARK_FAKE_LIBCUDA);
  EXPECT_NE(other.reason().find("has no function nvmlInit_v2"), std::string::npos) << other.reason();
  for (cuda::GpuEnergy* energy : {&none, &old, &absent, &other}) EXPECT_FALSE(energy->joules());
}

}  // namespace
}  // namespace ark::test
