// The argument of every_primitive.
#pragma once

#include "dma/device.h"

namespace ark::dev {

struct EveryParameters {
  const f32x4* constant;
  float* floats;
  u32* words;
  u64* long_words;
  u8* bytes;
};

}  // namespace ark::dev
