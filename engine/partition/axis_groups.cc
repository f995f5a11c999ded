#include "engine/partition/axis_groups.h"

#include <algorithm>
#include <numeric>

#include "base/index.h"
#include "engine/partition/op_rule.h"

namespace ark {

AxisGroups::AxisGroups(const Graph& graph) {
  std::size_t axes = 0;
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    first_.push_back(axes);
    axes += shape_of(graph, static_cast<ValueId>(v)).size();
  }
  first_.push_back(axes);
  parent_.resize(axes);
  std::iota(parent_.begin(), parent_.end(), std::size_t{0});
  connect(graph);
  number(graph);
}

std::size_t AxisGroups::node_of(ValueId value, int axis) const { return first_[value] + at(axis); }

std::size_t AxisGroups::find(std::size_t node) {
  while (parent_[node] != node) node = parent_[node] = parent_[parent_[node]];
  return node;
}

bool AxisGroups::is_splittable(const Graph& graph, ValueId value, int axis) const {
  const auto size = shape_of(graph, value)[axis].constant();
  return size && *size > 1;
}

void AxisGroups::connect(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    if (node.removed) continue;
    for (const Loop& loop : loops_of(graph, node)) {
      std::vector<std::size_t> whole, sharing;
      bool splittable = true;
      const auto add = [&](ValueId value, int axis, bool shared) {
        if (value == kNoValue || axis < 0) return;
        splittable &= shared || is_splittable(graph, value, axis);
        (shared ? sharing : whole).push_back(node_of(value, axis));
      };
      for (std::size_t i = 0; i < node.inputs.size(); ++i)
        add(node.inputs[i], loop.inputs[i], loop.shared >> i & 1);
      for (std::size_t i = 0; i < node.outputs.size(); ++i) add(node.outputs[i], loop.outputs[i], false);
      if (!splittable) continue;
      for (const std::size_t n : whole) parent_[find(n)] = find(whole[0]);
      for (const std::size_t n : sharing) {
        parent_[find(n)] = find(sharing[0]);
        shared_.emplace_back(n, whole[0]);
      }
    }
  }
}

void AxisGroups::number(const Graph& graph) {
  struct Sizes {
    int64_t least = 0, most = 0;
    bool columns = true;  // nothing but last axes and weights
  };
  std::vector<Sizes> sizes;
  std::vector<int32_t> number_of_root(parent_.size(), kNoGroup);
  numbers_.assign(parent_.size(), kNoGroup);
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    const auto value = static_cast<ValueId>(v);
    const Shape& shape = shape_of(graph, value);
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      const auto size = shape[axis].constant();
      if (!size || *size < 1) continue;
      int32_t& group = number_of_root[find(first_[v] + axis)];
      if (group == kNoGroup) {
        group = static_cast<int32_t>(sizes.size());
        sizes.push_back({*size, *size, true});
      }
      numbers_[first_[v] + axis] = group;
      Sizes& s = sizes[group];
      s.least = std::min(s.least, *size);
      s.most = std::max(s.most, *size);
      s.columns &= axis + 1 == shape.size() || graph.value(value).constant != nullptr;
    }
  }
  groups_.resize(sizes.size());
  for (std::size_t g = 0; g < sizes.size(); ++g) {
    groups_[g].panels = sizes[g].columns && sizes[g].least == sizes[g].most;
    groups_[g].units = groups_[g].panels ? UnitAxis{sizes[g].most, kPanelUnit}.units() : sizes[g].least;
  }
  for (std::size_t n = 0; n < parent_.size(); ++n) {  // block structure must divide every member
    if (numbers_[n] == kNoGroup) continue;
    const std::size_t v =
        static_cast<std::size_t>(std::upper_bound(first_.begin(), first_.end(), n) - first_.begin()) - 1;
    Group& group = groups_[numbers_[n]];
    if (group.units == 0 || group.panels) continue;
    const int64_t size = *shape_of(graph, static_cast<ValueId>(v))[n - first_[v]].constant();
    if (size % group.units != 0) group.units = 0;
  }
  for (const auto& [sharing, finer] : shared_) {
    const int32_t coarse = numbers_[sharing], fine = numbers_[finer];
    if (coarse == kNoGroup || fine == kNoGroup || coarse == fine) continue;
    Group& group = groups_[coarse];
    const bool fits = group.units > 0 && !group.panels && groups_[fine].units % group.units == 0 &&
                      groups_[fine].finer == kNoGroup && (group.finer == kNoGroup || group.finer == fine);
    group.finer = fine;
    if (!fits) group.units = groups_[fine].units = 0;
  }
}

int32_t AxisGroups::group(ValueId value, int axis) const {
  const int32_t group = numbers_[node_of(value, axis)];
  return group != kNoGroup && groups_[group].units > 0 ? group : kNoGroup;
}

UnitAxis AxisGroups::axis(int32_t group, int64_t size) const {
  const Group& g = groups_[group];
  return {size, g.panels ? kPanelUnit : size / g.units};
}

std::vector<Range> AxisGroups::ranges(int32_t group, int64_t size, int64_t ranks) const {
  const Group& g = groups_[group];
  if (g.finer == kNoGroup) return split(axis(group, size), ranks);
  const int64_t ratio = groups_[g.finer].units / g.units;
  const int64_t unit = size / g.units;
  std::vector<Range> ranges;
  for (const Range& fine : split({groups_[g.finer].units, 1}, ranks)) {
    const int64_t begin = fine.begin / ratio;
    const int64_t end = fine.size() == 0 ? begin : (fine.end + ratio - 1) / ratio;
    ranges.push_back({begin * unit, end * unit});
  }
  return ranges;
}

}  // namespace ark
