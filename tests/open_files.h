// How many files this process holds: what tests that hand files around must leave as it was.
#pragma once

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace ark::test {

inline std::ptrdiff_t open_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

}  // namespace ark::test
