#include "base/build_id.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace ark {
namespace {

// readelf is the oracle.
TEST(BuildId, IsWhatTheLinkerHasWritten) {
  FILE* const notes = ::popen("readelf -n /proc/$PPID/exe 2>/dev/null", "r");
  ASSERT_NE(notes, nullptr);
  std::string text;
  for (char line[256]; std::fgets(line, sizeof line, notes) != nullptr;) text += line;
  ::pclose(notes);
  const auto at = text.find("Build ID: ");
  if (at == std::string::npos) GTEST_SKIP() << "no readelf, or the linker makes none";
  EXPECT_EQ(build_id(), text.substr(at + 10, text.find('\n', at) - at - 10));
}

}  // namespace
}  // namespace ark
