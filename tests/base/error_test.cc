#include "base/error.h"

#include <gtest/gtest.h>

#include <system_error>

namespace ark {
namespace {

// std::thread's own words are "Resource temporarily unavailable".
TEST(Error, AThreadThatCannotBeStartedIsNamed) {
  try {
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  } catch (const std::exception&) {
    const Error error = current_error();
    EXPECT_EQ(error.code(), Code::kOs);
    EXPECT_EQ(std::string(error.what()).rfind("cannot start a thread: ", 0), 0u) << error.what();
  }
}

}  // namespace
}  // namespace ark
