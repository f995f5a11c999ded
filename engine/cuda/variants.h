// The cases of a loop kernel: what of a program's variants is code, told apart from what is data.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/cuda/appended.h"
#include "engine/cuda/x_parts.h"
#include "engine/program/program.h"

namespace ark::cuda {

// kExact: a row's result does not depend on what runs beside it, nor on the size of a batch.
// kFast: in steps of more than kFewRows rows wide tiles (bodies/wide_pieces.h) round x to the weights' 16 bits, of
// codes to bf16, and add up in another order.
enum class Numerics : uint8_t { kExact, kFast };
constexpr int wide_rows(Numerics numerics) {
  return numerics == Numerics::kFast ? kRoundedWideRows : kExactWideRows;
}

// One `case`: a type that has grid() and run() (engine/cuda/bodies), and definitions that it needs.
struct DeviceVariant {
  std::string type;        // "MatMul<dev::f16, 64, kParts>"
  std::string definition;  // of pointwise expressions; else empty
  // No case: what products do with their tiles (bodies/finished_tile.h), for phases that have no instances then.
  bool takes_tiles = false;
  // A product that has wide tiles, where the loop's code has them.
  bool takes_wide_tiles = false;
};

// Of one phase; `parts` and `appended` are the program's. Throws Error(kUnsupported) naming the node if it has no
// device code.
DeviceVariant device_variant(const Program& program, PhaseId phase, const XParts& parts,
                             const Appended& appended);

// Of all programs of one kernel, numbered in the order in which they first appear.
class VariantSet {
 public:
  // Throws Error(kUnsupported) naming the node that has no device code.
  VariantSet(std::span<const Program* const> programs, Numerics numerics);

  int32_t of(std::size_t program, PhaseId phase) const { return numbers_[program][phase]; }
  const std::vector<DeviceVariant>& all() const { return all_; }
  Numerics numerics() const { return numerics_; }
  bool has_peers() const { return has_peers_; }  // programs are of ranks that send each other messages
  // Of a loop with such tiles: whether it has wide ones; rows of x of a phase's, or 0.
  bool takes_wide_tiles(const TileShape& tiles) const;
  int32_t wide_rows(std::size_t program, PhaseId phase, const TileShape& tiles) const;
  const XParts& parts(std::size_t program) const { return parts_[program]; }
  const Appended& appended(std::size_t program) const { return appended_[program]; }

 private:
  const Numerics numerics_;
  bool has_peers_ = false;
  std::vector<DeviceVariant> all_;
  std::vector<std::vector<int32_t>> numbers_;
  std::vector<XParts> parts_;  // by program
  std::vector<Appended> appended_;
};

// Borders of the pieces that a matrix product's rows of weights are cut into, a power of two and equal on all
// ranks; multiples of `unit` rows, and of the 16 that tensor cores take where that can be; at most `stage` rows, those
// that a stage of the ring holds.
std::vector<int32_t> pieces_of(const Recipe& recipe, int32_t unit, int32_t stage);
std::vector<int32_t> pieces_of(const Recipe& recipe, const WeightUse& use);

}  // namespace ark::cuda
