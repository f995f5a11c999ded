// Where tiles of instances that few processors take begin. A processor runs its instances one after the other: one
// that has a tile of a norm is late for the product behind it, and all others wait for it then. So tiles begin where
// instances before and behind have none, as far as there are such processors.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/program/program.h"

namespace ark::cuda {

// An instance of a step, in the order in which processors run them.
struct Placed {
  static constexpr int32_t kNothing = -2;
  // The processor that takes tile 0; kNone: it is to be found; kNothing: nobody runs it.
  int32_t base = kNone;
  // Of a product: tiles, one a processor, in steps of few rows and of more; where these are more than processors, or
  // none, it does not matter where they begin.
  std::array<int64_t, 2> tiles = {};
};
// Finds what is to be found. `needed`: by instance, those that it waits for.
void place(std::span<Placed> all, const std::vector<std::vector<int32_t>>& needed, int32_t processors);

}  // namespace ark::cuda
