#include "base/files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "tests/scratch_folder.h"

namespace ark {
namespace {

TEST(Files, NamesOfAFolder) {
  const test::ScratchFolder folder;
  for (const char* name : {"b", ".a", "c.onnx"}) std::ofstream(folder.path() / name) << name;
  std::filesystem::create_directory(folder.path() / "d");
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{".a", "b", "c.onnx", "d"}));
  std::error_code why;
  EXPECT_TRUE(names_in(folder.path() / "d", &why).empty() && !why);
  EXPECT_TRUE(names_in(folder.path() / "b", &why).empty());
  EXPECT_EQ(why, std::errc::not_a_directory);
}

}  // namespace
}  // namespace ark
