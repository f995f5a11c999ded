#include "engine/cuda/driver.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/cuda/environment.h"

namespace ark::cuda {
namespace {

TEST(Driver, WithoutLibcudaOneLineSaysSo) {
  const test::Environment variable("ARK_LIBCUDA", "libcuda-that-is-not-here.so.1");
  try {
    open_gpu();
    FAIL() << "opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnavailable);
    EXPECT_EQ(error.exit_code(), 69);
    EXPECT_STREQ(error.what(), "no CUDA here: libcuda-that-is-not-here.so.1 cannot be loaded");
  }
}

// Any library that is no CUDA driver.
TEST(Driver, AWrongLibraryIsNamedWithTheFunctionItLacks) {
  const test::Environment variable("ARK_LIBCUDA", "libm.so.6");
  try {
    open_gpu();
    FAIL() << "opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnavailable);
    EXPECT_NE(std::string(error.what()).find("libm.so.6 has no function cuInit"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace ark::cuda
