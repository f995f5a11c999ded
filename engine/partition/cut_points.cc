#include "engine/partition/cut_points.h"

#include <algorithm>
#include <bit>

namespace ark {
namespace {

void cut(int64_t begin, int64_t end, int64_t parts, std::vector<int64_t>& borders) {
  const int64_t units = end - begin;
  if (parts > 1 && parts % 2 == 0) {
    const int64_t middle = begin + (units + 1) / 2;
    cut(begin, middle, parts / 2, borders);
    cut(middle, end, parts / 2, borders);
    return;
  }
  for (int64_t i = 1; i <= parts; ++i) {
    borders.push_back(begin + units / parts * i + std::min(i, units % parts));
  }
}

}  // namespace

std::vector<int64_t> cut_points(int64_t units, int64_t parts) {
  std::vector<int64_t> borders = {0};
  cut(0, units, parts, borders);
  return borders;
}

Range UnitAxis::elements(Range units) const {
  return {std::min(units.begin * unit, size), std::min(units.end * unit, size)};
}

std::vector<Range> split(const UnitAxis& axis, int64_t ranks) {
  const std::vector<int64_t> borders = cut_points(axis.units(), ranks);
  std::vector<Range> ranges;
  for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
    ranges.push_back(axis.elements({borders[i], borders[i + 1]}));
  }
  return ranges;
}

std::vector<int32_t> slab_borders(const UnitAxis& axis, int64_t ranks, int64_t rank) {
  const std::vector<int64_t> ranks_borders = cut_points(axis.units(), ranks);
  const auto r = static_cast<std::size_t>(rank);
  const int64_t first = ranks_borders[r], units = ranks_borders[r + 1] - first;
  // Slabs over all ranks: a power of two that depends on the axis only. Ranks that are a power of two share
  // them evenly; others cut their own part, and their sums are not those of one rank.
  const auto all = static_cast<uint64_t>(std::clamp<int64_t>(axis.units(), 1, kMaxSlabs));
  const int64_t slabs = std::bit_ceil(all);
  const int64_t own =
      std::has_single_bit(static_cast<uint64_t>(ranks)) ? std::max<int64_t>(slabs / ranks, 1) : slabs;
  const int64_t begin = axis.elements({first, first}).begin;
  std::vector<int32_t> borders;
  for (const int64_t border : cut_points(units, own)) {
    borders.push_back(static_cast<int32_t>(axis.elements({first + border, first + border}).begin - begin));
  }
  return borders;
}

}  // namespace ark
