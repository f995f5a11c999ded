// The order in which a weight's products are added up must be that of the plan's cuts, on all ranks.
#include <algorithm>
#include <map>
#include <set>

#include "base/index.h"
#include "engine/partition/cut_points.h"
#include "engine/program/opcodes.h"
#include "engine/program/unroll.h"
#include "engine/validate/validate.h"

namespace ark::validation {
namespace {

// One multiplication on one rank: the part of K that it has, and its slabs.
struct Use {
  Range part;
  std::vector<int32_t> slabs;
  std::string place;
};

// Per constant, in program order.
using Uses = std::map<int32_t, std::vector<Use>>;

Uses uses_of(const Program& p) {
  Uses uses;
  for (const Instance& i : unroll(p)) {
    const Phase& phase = p.phases[i.phase];
    const Variant& variant = p.variants[phase.variant];
    if (!(info_of(variant.code).parts & kHasRecipe)) continue;
    for (const Operand& operand : phase.operands) {
      const BufferId b = resolve(p, phase, operand, i.trip);
      if (b == kNone || p.buffers[b].weight == kNone) continue;
      const WeightUse& w = p.weights[p.buffers[b].weight];
      if (w.layout != Layout::kPanels) continue;
      uses[w.constant].push_back({w.ranges[w.transposed ? 1 : 0], variant.recipe.slabs,
                                  "phase " + std::to_string(i.phase) + " '" + phase.name + "'"});
    }
  }
  return uses;
}

// Whether `axis`, cut for all of the ranks, gives their parts and their slabs.
bool is_cut_of(const UnitAxis& axis, int64_t first, const std::vector<Use>& ranks) {
  const auto n = static_cast<int64_t>(ranks.size());
  const std::vector<Range> parts = split(axis, n);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (Range{parts[r].begin + first, parts[r].end + first} != ranks[r].part) return false;
    if (slab_borders(axis, n, static_cast<int64_t>(r)) != ranks[r].slabs) return false;
  }
  return true;
}

// Either K is whole on every rank and added up in one go, or it is cut into units of one size.
bool is_sound(const std::vector<Use>& ranks) {
  const bool is_whole = std::all_of(ranks.begin(), ranks.end(), [&](const Use& u) {
    return u.part == ranks[0].part && u.slabs == std::vector<int32_t>{0, static_cast<int32_t>(u.part.size())};
  });
  if (is_whole) return true;
  int64_t first = ranks[0].part.begin, end = ranks[0].part.end;
  for (const Use& u : ranks) {
    first = std::min(first, u.part.begin);
    end = std::max(end, u.part.end);
  }
  for (int64_t unit = 1; unit <= end - first; ++unit) {
    if (is_cut_of({end - first, unit}, first, ranks)) return true;
  }
  return false;
}

}  // namespace

void check_recipes(std::span<const Program> programs, std::vector<std::string>& errors) {
  std::vector<Uses> all;
  for (const Program& p : programs) all.push_back(uses_of(p));
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (!Report(errors, static_cast<int32_t>(r))
             .check(all[r].size() == all[0].size(), "program", "multiplies by other constants than rank 0"))
      return;
  }
  std::set<std::vector<std::vector<int64_t>>> known;  // sound ones: layers are alike
  for (const auto& [constant, first] : all[0]) {
    for (std::size_t i = 0; i < first.size(); ++i) {
      std::vector<Use> ranks;
      std::vector<std::vector<int64_t>> key;
      for (std::size_t r = 0; r < all.size(); ++r) {
        if (!Report(errors, static_cast<int32_t>(r))
                 .check(all[r][constant].size() == first.size(), "constant " + std::to_string(constant),
                        "is not multiplied by as often as on rank 0"))
          return;
        const Use& use = all[r][constant][i];
        ranks.push_back(use);
        key.push_back({use.part.begin, use.part.end});
        key.emplace_back(use.slabs.begin(), use.slabs.end());
      }
      if (known.contains(key)) continue;
      if (Report(errors).check(is_sound(ranks), first[i].place,
                               "its recipe's slabs are not those of one cut of K over all ranks"))
        known.insert(key);
    }
  }
}

}  // namespace ark::validation
