// How much memory this process may still take.
#pragma once

#include <cstdint>
#include <filesystem>

namespace ark {

// Bytes: what the machine has left, or what the process's control group (v1 or v2, and those above it) leaves
// of its limit, whichever is less. `root` stands for "/" (tests). 4 GiB if nothing can be read.
int64_t available_memory(const std::filesystem::path& root = "/");

}  // namespace ark
