// Which axes of which values must be cut at the same places: the classes that the operators' loops connect.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ir/graph.h"
#include "engine/partition/cut_points.h"

namespace ark {

inline constexpr int32_t kNoGroup = -1;
// Cuts of an axis that no head or block structure limits: multiples of this many columns (4 AVX-512 vectors
// of f32 are 64; 16 keeps small models divisible).
inline constexpr int64_t kPanelUnit = 16;

class AxisGroups {
 public:
  explicit AxisGroups(const Graph& graph);

  // kNoGroup: this axis cannot be split (unknown, symbolic or of size 1, or its class is inconsistent).
  int32_t group(ValueId value, int axis) const;
  // The class' cuts seen on an axis of `size` elements. Not for sharing groups.
  UnitAxis axis(int32_t group, int64_t size) const;
  // Parts of an axis of `size` elements that belongs to `group`, one per rank. They overlap where the group
  // shares its elements with a finer one (kv heads of grouped queries).
  std::vector<Range> ranges(int32_t group, int64_t size, int64_t ranks) const;
  bool shares(int32_t group) const { return groups_[group].finer != kNoGroup; }

 private:
  struct Group {
    int64_t units = 0;         // 0: inconsistent
    bool panels = false;       // units are kPanelUnit columns
    int32_t finer = kNoGroup;  // the group whose ranges this one follows
  };
  std::size_t node_of(ValueId value, int axis) const;
  std::size_t find(std::size_t node);
  void connect(const Graph& graph);
  void number(const Graph& graph);
  bool is_splittable(const Graph& graph, ValueId value, int axis) const;

  std::vector<std::size_t> first_;                           // per value: its axis 0 in parent_
  std::vector<std::size_t> parent_;                          // union-find over all axes of all values
  std::vector<std::pair<std::size_t, std::size_t>> shared_;  // (sharing axis, finer axis)
  std::vector<int32_t> numbers_;                             // per axis: its group
  std::vector<Group> groups_;
};

}  // namespace ark
