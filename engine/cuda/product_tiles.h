// How a matrix product is cut into tiles: chosen by what it would cost, before anything runs.
#pragma once

#include <cstdint>
#include <span>

#include "engine/cuda/image.h"

namespace ark::cuda {

struct Cutting {
  int64_t rows;        // of x, at most
  int64_t panels;      // of the products that run side by side
  int32_t weights;     // that a tile takes pieces of: 2 of a gated product
  int32_t processors;  // of a rank
  int32_t groups;      // 0, or what is asked for instead of a choice: a power of two
  TileShape tiles;     // of the loop's code
  bool is_taken_up;    // the norm behind adds up what tiles share, which it does by nodes
  int32_t wide_rows;   // of x, of a wide tile; 0: it has none
};

// Sets the stream's groups, and from how many rows on its tiles are wide; sizes of the weights are there. Whether the
// norm behind does add up what tiles share: not if they are too many.
bool cut(Stream& s, Cutting how);

// Rows times groups of tiles that share outputs, at most, over all steps; 0: none ever does.
int64_t shared_rows(const Stream& s, const Cutting& how);

// Up to how many rows of a step its products leave scratch to a ring of so many stages (scratch_of() in image.h): not
// beyond few where a long ring would cost long pieces, of 4 bits, that their x is copied ahead.
int32_t leaving_rows(std::span<const Stream> products, int32_t stages);

}  // namespace ark::cuda
