// The attributes of a variant, decoded once: what bodies want as plain numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/program/program.h"

namespace ark {

// What the OpCode does not have keeps its default.
struct VariantFacts {
  float scale = 1, softcap = 0, epsilon = 0, parameter = 0;
  int64_t window = 0, axis = 0, first = 0, rotary_dim = 0;
  bool rms = false, interleaved = false;
  std::vector<int64_t> head_map, borders;
  // Throws Error(kBadModel) if an attribute that the OpCode has is absent or of another type.
  static VariantFacts of(const Variant& variant);
};

}  // namespace ark
