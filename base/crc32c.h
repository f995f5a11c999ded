// CRC-32C (Castagnoli; RFC 3720, appendix B.4): tells what a disk has damaged, not what somebody has forged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ark {

// About 7 GB/s a thread where the processor has the instruction (SSE4.2), else a tenth of that.
uint32_t crc32c(std::span<const std::byte> bytes);

// The same without the instruction.
uint32_t crc32c_by_table(std::span<const std::byte> bytes);

}  // namespace ark
