#include "engine/cuda/variants.h"

#include <algorithm>
#include <numeric>

#include "engine/cuda/device_ops.h"
#include "engine/program/text.h"
#include "engine/program/weight_codec.h"

namespace ark::cuda {

std::vector<int32_t> pieces_of(const Recipe& recipe, int32_t unit) {
  std::vector<int32_t> pieces = {0};
  const int32_t both = std::lcm(unit, 16), step = both <= kMaxPanelBlock ? both : unit;
  const auto parts_of = [step](int32_t rows) {
    if (rows <= kPieceRows) return 1;
    // Whole steps are dealt evenly, else a piece may be one step longer. (Numbers keep the pieces that they
    // have had, and so their bits.)
    const bool is_whole = step > 16 && rows % step == 0;
    const int32_t dealt = is_whole ? step : 1, most = is_whole ? kPieceRows : kPieceRows - step;
    int32_t parts = 1;
    while ((rows / dealt + parts - 1) / parts * dealt > most) parts *= 2;
    return parts;
  };
  // Each slab is cut by its own length only, and filled up with empty pieces: equal bits on any rank.
  int32_t most = 1;
  for (std::size_t s = 0; s + 1 < recipe.slabs.size(); ++s)
    most = std::max(most, parts_of(recipe.slabs[s + 1] - recipe.slabs[s]));
  for (std::size_t s = 0; s + 1 < recipe.slabs.size(); ++s) {
    const int32_t first = recipe.slabs[s], rows = recipe.slabs[s + 1] - first, parts = parts_of(rows);
    for (int32_t i = 1; i <= most; ++i) {
      const int32_t end = i >= parts ? rows : static_cast<int32_t>(int64_t{rows} * i / parts / step * step);
      pieces.push_back(first + end);
    }
  }
  return pieces;
}

DeviceVariant device_variant(const Program& program, PhaseId phase, Numerics numerics) {
  const PhaseOperands operands(program, program.phases[phase], 0);
  if (operands.variant().precision != Precision::kF32)
    operands.refuse("products in " + std::string(name_of(operands.variant().precision)));
  const DeviceOp& op = device_op(operands.variant().code);
  return op.name ? op.name(operands, numerics) : DeviceVariant{std::string(ark::name_of(op.code)), ""};
}

VariantSet::VariantSet(std::span<const Program* const> programs, Numerics numerics) {
  std::map<std::string, int32_t> known;
  for (const Program* program : programs) {
    std::vector<int32_t>& numbers = numbers_.emplace_back();
    for (std::size_t phase = 0; phase < program->phases.size(); ++phase) {
      DeviceVariant variant = device_variant(*program, static_cast<PhaseId>(phase), numerics);
      const auto [it, is_new] =
          known.try_emplace(variant.type + variant.definition, static_cast<int32_t>(all_.size()));
      if (is_new) all_.push_back(std::move(variant));
      numbers.push_back(it->second);
    }
  }
}

}  // namespace ark::cuda
