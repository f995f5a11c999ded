// Where a split axis is cut: whole units (heads, panels), nested so that tp = 1, 2, 4 share their borders.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/program/program.h"

namespace ark {

// parts + 1 ascending borders of [0, units): even `parts` halve (larger half first) and recurse, odd ones are
// cut evenly at once. So the borders for n are among those for 2n. Parts are empty where units run out.
std::vector<int64_t> cut_points(int64_t units, int64_t parts);

// An axis of `size` elements in units of `unit` elements (the last one may be partial).
struct UnitAxis {
  int64_t size = 0;
  int64_t unit = 1;
  int64_t units() const { return (size + unit - 1) / unit; }
  Range elements(Range units) const;  // clipped to size
};
std::vector<Range> split(const UnitAxis& axis, int64_t ranks);

// K borders of rank's slabs in a row-parallel weight of `ranks` ranks, relative to the rank's part. The slabs of all
// ranks together are the same for 1, 2, 4 and 8 ranks: at most kMaxSlabs, one unit at least if possible.
inline constexpr int64_t kMaxSlabs = 8;
std::vector<int32_t> slab_borders(const UnitAxis& axis, int64_t ranks, int64_t rank);

}  // namespace ark
