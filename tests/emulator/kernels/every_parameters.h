// The argument of every_primitive, and where its results go.
#pragma once

#include "dma/device.h"

namespace ark::dev {

struct EveryParameters {
  const u8* constant;   // 4 KiB: numbers of 16 bits
  const float* inputs;  // one for each thread of the grid
  u32* results;         // [slot][thread of the grid]
  u32* words;           // of each warp, kWordsOfAWarp
  u64* long_words;
  u8* bytes;  // written by copies and vector stores; of each block, kBytesOfABlock
  i32 traps;
};

inline constexpr int kEveryBlocks = 2, kEveryThreads = 64, kResults = 220;
inline constexpr int kWordsOfAWarp = 32, kBytesOfABlock = 4096;

#if defined(ARK_DEVICE_HEADER)
// On the emulator a slot gets its name, and how many units in the last place two machines may differ by: 0, but of
// floats any NaN is like another; -1 for other bits.
extern "C" void ark_every_result(int slot, const char* name, int ulps);
#endif

}  // namespace ark::dev
