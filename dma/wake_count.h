// How often this process has asked the kernel to wake somebody: the notifications that its messages have cost.
#pragma once

#include <cstdint>

namespace ark::dma {

// Any thread.
uint64_t wakes_so_far();

}  // namespace ark::dma
