// TreeEnsemble, and Lookup.
#include "base/ir/kernels/common.h"
#include "base/ir/keys.h"

namespace ark::kernels {
namespace {

constexpr int64_t kTreeRows = 64;  // of one tile
constexpr int64_t kNodeFields = 5;

// Inputs by position.
struct TreeInput {
  enum : std::size_t { kRow, kRoots, kNodes, kThresholds, kLeaves, kTargets, kLeafWeights };
};

bool holds(int64_t comparison, double x, double threshold) {
  switch (comparison) {
    case 0:
      return x <= threshold;
    case 1:
      return x < threshold;
    case 2:
      return x >= threshold;
    case 3:
      return x > threshold;
    case 4:
      return x == threshold;
    default:
      return x != threshold;
  }
}

void check_next(int64_t next, int64_t node, int64_t nodes, int64_t leaves) {
  // Children stand behind their node, so that every walk ends.
  if (next < 0 ? -1 - next >= leaves : next <= node || next >= nodes)
    misfit("node " + std::to_string(node) + " of the trees leads to " + std::to_string(next) +
           ", which is no leaf and no node behind it");
}

std::vector<OutputType> tree_shapes(const KernelCall& call) {
  std::vector<OutputType> types = by_rule(call);
  for (const TensorView& view : call.inputs)
    if (!view.data && view.size() > 0) return types;  // the validator asks about sizes alone
  const TensorView &table = call.inputs[TreeInput::kNodes], &leaves = call.inputs[TreeInput::kLeaves];
  const int64_t nodes = table.dims[0], features = call.inputs[TreeInput::kRow].dims[1],
                weights = call.inputs[TreeInput::kTargets].size();
  for (int64_t i = 0; i < call.inputs[TreeInput::kRoots].size(); ++i)
    check_next(load_one<int64_t>(call.inputs[TreeInput::kRoots], i), -1, nodes, leaves.dims[0]);
  for (int64_t i = 0; i < nodes; ++i) {
    int64_t node[kNodeFields];
    load(table, i * kNodeFields, kNodeFields, node);
    if (node[0] < 0 || node[0] >= features)
      misfit("node " + std::to_string(i) + " of the trees reads feature " + std::to_string(node[0]) + " of " +
             std::to_string(features));
    check_next(node[2], i, nodes, leaves.dims[0]);
    check_next(node[3], i, nodes, leaves.dims[0]);
  }
  for (int64_t i = 0; i < leaves.dims[0]; ++i) {
    int64_t leaf[2];
    load(leaves, i * 2, 2, leaf);
    if (leaf[0] < 0 || leaf[1] < 0 || leaf[0] > weights || leaf[1] > weights - leaf[0])
      misfit("leaf " + std::to_string(i) + " of the trees has weights that are not there");
  }
  for (int64_t i = 0; i < weights; ++i)
    if (const int64_t target = load_one<int64_t>(call.inputs[TreeInput::kTargets], i);
        target < 0 || target >= call.attributes->get(key::kN))
      misfit("a leaf of the trees gives to target " + std::to_string(target));
  return types;
}

int64_t tree_grid(const KernelCall& call) {
  return (call.inputs[TreeInput::kRow].dims[0] + kTreeRows - 1) / kTreeRows;
}

void tree_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[TreeInput::kRow], &y = call.outputs[0];
  const int64_t features = x.dims[1], targets = y.dims[1], trees = call.inputs[TreeInput::kRoots].size();
  const int64_t *roots = call.inputs[TreeInput::kRoots].as<int64_t>(),
                *nodes = call.inputs[TreeInput::kNodes].as<int64_t>(),
                *leaves = call.inputs[TreeInput::kLeaves].as<int64_t>(),
                *to = call.inputs[TreeInput::kTargets].as<int64_t>();
  const auto all_of = [&](std::size_t i) {
    std::vector<double> values(static_cast<std::size_t>(call.inputs[i].size()));
    load(call.inputs[i], 0, call.inputs[i].size(), values.data());
    return values;
  };
  const std::vector<double> thresholds = all_of(TreeInput::kThresholds),
                            weights = all_of(TreeInput::kLeafWeights);
  const std::string how = call.attributes->get_or(key::kAggregate, "SUM");
  std::vector<double> row(static_cast<std::size_t>(features)), sums(static_cast<std::size_t>(targets));
  std::vector<bool> has(sums.size());
  for (int64_t r = tile * kTreeRows; r < std::min(x.dims[0], (tile + 1) * kTreeRows); ++r) {
    load(x, r * features, features, row.data());
    std::fill(sums.begin(), sums.end(), 0);
    std::fill(has.begin(), has.end(), false);
    for (int64_t t = 0; t < trees; ++t) {
      int64_t at = roots[t];
      while (at >= 0) {
        const int64_t* node = nodes + at * kNodeFields;
        const double value = row[node[0]];
        const bool yes = value != value ? node[4] != 0 : holds(node[1], value, thresholds[at]);
        at = yes ? node[2] : node[3];
      }
      const int64_t* leaf = leaves + (-1 - at) * 2;
      for (int64_t w = leaf[0]; w < leaf[0] + leaf[1]; ++w) {
        double& sum = sums[to[w]];
        if (how == "MIN" && has[to[w]])
          sum = std::min(sum, weights[w]);
        else if (how == "MAX" && has[to[w]])
          sum = std::max(sum, weights[w]);
        else
          sum += weights[w];
        has[to[w]] = true;
      }
    }
    if (how == "AVERAGE")
      for (double& sum : sums) sum /= static_cast<double>(trees);
    store(y, r * targets, targets, sums.data());
  }
}

std::vector<OutputType> lookup_shapes(const KernelCall& call) {
  check_scalar(call, 3, "the default of Lookup");
  if (call.inputs[1].rank != 1 || call.inputs[1].size() != call.inputs[2].size())
    misfit("Lookup has " + std::to_string(call.inputs[1].size()) + " keys and " +
           std::to_string(call.inputs[2].size()) + " values");
  check_same_type(call.inputs[0], call.inputs[1]);
  check_same_type(call.inputs[2], call.inputs[3]);
  return {{call.inputs[2].dtype, dims_of(call.inputs[0])}};
}

void lookup_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &keys = call.inputs[1], &values = call.inputs[2],
                   &y = call.outputs[0];
  const auto [begin, end] = elements_of(tile, y.size());
  const int64_t size = element_bytes(y);
  with_compute_type(x.dtype, [&, begin = begin, end = end](auto type) {
    using C = decltype(type);
    std::vector<std::pair<C, int64_t>> sorted;
    int64_t for_nan = -1;
    for (int64_t i = 0; i < keys.size(); ++i) {
      const C key = load_one<C>(keys, i);
      if (key == key)
        sorted.emplace_back(key, i);
      else if (for_nan < 0)
        for_nan = i;
    }
    std::sort(sorted.begin(), sorted.end());
    for (int64_t i = begin; i < end; ++i) {
      const C value = load_one<C>(x, i);
      int64_t found = value == value ? -1 : for_nan;
      const auto it = std::lower_bound(sorted.begin(), sorted.end(), std::pair<C, int64_t>{value, 0});
      if (value == value && it != sorted.end() && it->first == value) found = it->second;
      copy_element(y.data + i * size, found < 0 ? call.inputs[3].data : values.data + found * size, size);
    }
  });
}

}  // namespace

void register_trees(std::vector<Kernel>& into) {
  into.push_back({Op::kTreeEnsemble, tree_shapes, tree_grid, tree_tile});
  into.push_back({Op::kLookup, lookup_shapes, grid_by_elements, lookup_tile});
}

}  // namespace ark::kernels
