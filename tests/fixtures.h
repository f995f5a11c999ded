// Where the fixtures lie: $ARK_FIXTURES, or ../shared/fixtures beside the source tree.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace ark::test {

inline std::filesystem::path source_root() { return std::filesystem::path(__FILE__).parent_path().parent_path(); }

inline std::filesystem::path fixtures() {
  if (const char* path = std::getenv("ARK_FIXTURES")) return path;
  return source_root().parent_path() / "shared" / "fixtures";
}

}  // namespace ark::test
