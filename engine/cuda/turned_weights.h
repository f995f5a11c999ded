// A device's copy of weights: the order in which its tensor cores take them (engine/cuda/image.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/program/program.h"

namespace ark::cuda {

class TurnedWeights {
 public:
  // Of one weight of `k` rows.
  TurnedWeights(const WeightUse& use, uint64_t k);

  bool is_turned() const { return unit_bytes_ != 0; }
  // What is turned at once: windows begin at multiples of it.
  uint64_t unit_bytes() const { return unit_bytes_; }
  // Bytes from number `at` on of the weight's, whole units. They live until the next call.
  std::span<const std::byte> turn(std::span<const std::byte> window, uint64_t at);

 private:
  void turn_rows(std::span<const std::byte> rows, uint64_t first);
  void turn_blocks(std::span<const std::byte> blocks);

  // Of a block of codes: where each of its bytes comes from. Four bits: of its low and its high half, each in the low
  // (+ 0) or the high half (+ 1) of a byte, times two.
  std::vector<uint32_t> low_, high_;
  uint64_t unit_bytes_ = 0, k_;
  bool has_codes_ = false;
  std::vector<std::byte> turned_;
};

}  // namespace ark::cuda
