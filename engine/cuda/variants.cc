#include "engine/cuda/variants.h"

#include <algorithm>
#include <numeric>

#include "base/index.h"
#include "engine/cuda/device_ops.h"
#include "engine/program/text.h"
#include "engine/program/weight_codec.h"

namespace ark::cuda {

std::vector<int32_t> pieces_of(const Recipe& recipe, const WeightUse& use) {
  // Of the widest panel: how wide a rank's are must not change bits.
  const int64_t unit = unit_rows(use.block),
                bytes = codec_of(use.stored)->unit_bytes(64, use.block, use.terms);
  return pieces_of(recipe, static_cast<int32_t>(unit), static_cast<int32_t>(kStageBytes / bytes * unit));
}

std::vector<int32_t> pieces_of(const Recipe& recipe, int32_t unit, int32_t stage) {
  std::vector<int32_t> pieces = {0};
  const int32_t both = std::lcm(unit, 16), step = both <= std::min(kMaxPanelBlock, stage) ? both : unit;
  const int32_t longest = std::max(step, std::min(kPieceRows, stage) / step * step);
  const auto steps_of = [&](int32_t rows) { return (rows + step - 1) / step; };  // they are dealt evenly
  const auto parts_of = [&](int32_t rows) {
    int32_t parts = 1;
    while ((steps_of(rows) + parts - 1) / parts * step > longest) parts *= 2;
    return parts;
  };
  // Each slab is cut by its own length only, and filled up with empty pieces: equal bits on any rank.
  int32_t most = 1;
  for (std::size_t s = 0; s + 1 < recipe.slabs.size(); ++s)
    most = std::max(most, parts_of(recipe.slabs[s + 1] - recipe.slabs[s]));
  for (std::size_t s = 0; s + 1 < recipe.slabs.size(); ++s) {
    const int32_t first = recipe.slabs[s], rows = recipe.slabs[s + 1] - first, parts = parts_of(rows);
    for (int32_t i = 1; i <= most; ++i) {
      const int32_t end =
          i >= parts ? rows : static_cast<int32_t>(int64_t{steps_of(rows)} * i / parts * step);
      pieces.push_back(first + end);
    }
  }
  return pieces;
}

DeviceVariant device_variant(const Program& program, PhaseId phase, const XParts& parts,
                             const Appended& appended) {
  const PhaseOperands operands(program, program.phases[phase], 0, &parts);
  if (operands.variant().precision != Precision::kF32)
    operands.refuse("products in " + std::string(name_of(operands.variant().precision)));
  if (appended.is_done(phase)) return appended_variant(operands);
  const DeviceOp& op = device_op(operands.variant().code);
  return op.name ? op.name(operands) : DeviceVariant{std::string(ark::name_of(op.code)), ""};
}

VariantSet::VariantSet(std::span<const Program* const> programs, Numerics numerics) : numerics_(numerics) {
  std::map<std::string, int32_t> known;
  for (const Program* program : programs) {
    has_peers_ = has_peers_ || program->ranks > 1;
    std::vector<int32_t>& numbers = numbers_.emplace_back();
    const XParts& parts = parts_.emplace_back(*program);
    const Appended& appended = appended_.emplace_back(*program);
    for (std::size_t phase = 0; phase < program->phases.size(); ++phase) {
      DeviceVariant variant = device_variant(*program, static_cast<PhaseId>(phase), parts, appended);
      const auto [it, is_new] =
          known.try_emplace(variant.type + variant.definition, static_cast<int32_t>(all_.size()));
      if (is_new) all_.push_back(std::move(variant));
      numbers.push_back(it->second);
    }
  }
}

bool VariantSet::takes_wide_tiles(const TileShape& tiles) const {
  return tiles.has_wide &&
         std::ranges::any_of(all_, [](const DeviceVariant& v) { return v.takes_wide_tiles; });
}

int32_t VariantSet::wide_rows(std::size_t program, PhaseId phase, const TileShape& tiles) const {
  const DeviceVariant& variant = all_[at(of(program, phase))];
  return tiles.has_wide && variant.takes_wide_tiles ? cuda::wide_rows(numerics_) : 0;
}

}  // namespace ark::cuda
