// Codes of a block of weights that bring every number back bit for bit: found from the numbers alone, whatever made
// them (a dequantised GGUF, DequantizeLinear, rounding to nearest).
#pragma once

#include <cstdint>
#include <span>

#include "engine/program/program.h"

namespace ark {

// The scale and the zero or offset of a block (BlockTerms).
struct BlockFit {
  float scale = 0, other = 0;
  // What found it, a hint for the next block: with zeros the codes' largest distance from it; with offsets that from
  // the smallest code, or, negative, that from a code whose number is 0.
  int span = 0;
};

// Searches codes below 2^bits (bits <= 8) so that for every i, in f32,
//   kZeros: (codes[i] - other) * scale, other an integer below 2^bits,
//   kScales16: the same, other the middle of the codes, scale an f16 number,
//   kOffsets, kOffsets16: fma(codes[i], scale, other), scale and other f32 or f16 numbers
// has the bits of values[i]; or is -0 where that is +0, with zeros and unless `keeps_signs`. With zeros codes are found
// wherever they lie; with offsets where they are of up to five bits, or lie around a zero, or a block's smallest has
// code 0 and its largest 63, 127 or 255. `hint`: tried first.
bool fit_block(std::span<const float> values, int bits, BlockTerms terms, int hint, bool keeps_signs,
               BlockFit& fit, uint8_t* codes);

}  // namespace ark
