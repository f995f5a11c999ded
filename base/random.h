// Numbers that nobody can guess, from the kernel. Each std::random_device that is made asks the processor for its
// features, which a virtual machine answers in some 40 us.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ark {

// `count` <= 256. Throws Error(kOs).
std::string random_bytes(std::size_t count);
uint64_t random_word();

}  // namespace ark
