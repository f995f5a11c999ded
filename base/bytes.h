// How messages say sizes of memory and files.
#pragma once

#include <cstdint>
#include <string>

namespace ark {

// To the nearest: "92 MiB".
inline std::string mebibytes(int64_t bytes) { return std::to_string((bytes + (1 << 19)) >> 20) + " MiB"; }

}  // namespace ark
