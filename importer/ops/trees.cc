// Ensembles of trees, in both of ONNX's spellings, as one table of nodes whose children stand behind them.
#include <cmath>
#include <limits>
#include <map>

#include "base/error.h"
#include "base/ir/keys.h"
#include "importer/ops/classic.h"

namespace ark::ops {
namespace {

constexpr int64_t kMember = 6;  // the comparison with a set, which becomes one of equality for each member

// The trees of a node as the file has them. Children are indices of nodes, or below 0: -1 - leaf.
struct Trees {
  struct Node {
    int64_t feature, comparison, yes, no, nan_is_yes;
    double threshold;
    std::vector<double> members;
  };
  std::vector<Node> nodes;
  std::vector<int64_t> roots;
  std::vector<std::vector<std::pair<int64_t, double>>> leaves;  // targets and weights
};

// The operands of kTreeEnsemble.
class TreeTable {
 public:
  TreeTable(OpContext& c, const Trees& trees) : c_(c), trees_(trees), seen_(trees.nodes.size()) {
    for (const int64_t root : trees.roots) {
      roots_.push_back(0);
      waiting_.push_back({root, {{&roots_, roots_.size() - 1}}});
      while (!waiting_.empty()) place_next();
    }
    for (const auto& leaf : trees.leaves) {
      leaves_.push_back(static_cast<int64_t>(targets_.size()));
      leaves_.push_back(static_cast<int64_t>(leaf.size()));
      for (const auto& [target, weight] : leaf) targets_.push_back(target), weights_.push_back(weight);
    }
  }

  ValueId emit(ValueId x, DType type, int64_t targets, const std::string& aggregate) const {
    const auto table = [&](const std::vector<int64_t>& values, int64_t width) {
      Dims dims{static_cast<int64_t>(values.size()) / width};
      if (width > 1) dims.push_back(width);
      return c_.graph.add_constant(make_constant(Tensor::of<int64_t>(DType::kI64, dims, values)));
    };
    const auto reals = [&](const std::vector<double>& values) {
      const Dims dims{static_cast<int64_t>(values.size())};
      return c_.graph.add_constant(make_constant(Tensor::of<double>(DType::kF64, dims, values)));
    };
    const ValueId y = c_.emit(Op::kTreeEnsemble,
                              {x, table(roots_, 1), table(nodes_, 5), reals(thresholds_), table(leaves_, 2),
                               table(targets_, 1), reals(weights_)},
                              {{key::kN, targets}, {key::kAggregate, aggregate}});
    return cast(c_, y, type);
  }

 private:
  struct Slot {
    std::vector<int64_t>* in;
    std::size_t at;
  };
  struct Waiting {
    int64_t child;
    std::vector<Slot> slots;  // which want to know where it is placed
  };

  void place_next() {
    const Waiting next = std::move(waiting_.back());
    waiting_.pop_back();
    const auto tell = [&](int64_t where) {
      for (const Slot& slot : next.slots) (*slot.in)[slot.at] = where;
    };
    if (next.child < 0) return tell(next.child);
    const auto index = static_cast<std::size_t>(next.child);
    if (index >= trees_.nodes.size()) c_.fail("a tree has a node that is not there");
    if (seen_[index]) c_.fail("node " + std::to_string(index) + " of the trees is reached twice");
    seen_[index] = true;
    const Trees::Node& node = trees_.nodes[index];
    tell(static_cast<int64_t>(thresholds_.size()));
    std::vector<double> values{node.threshold};
    if (node.comparison == kMember) values = node.members;
    if (values.empty()) values.push_back(std::numeric_limits<double>::quiet_NaN());  // of no set
    Waiting yes{node.yes, {}}, no{node.no, {}};
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t at = nodes_.size();
      thresholds_.push_back(values[i]);
      nodes_.insert(nodes_.end(), {node.feature, node.comparison == kMember ? 4 : node.comparison, 0,
                                   static_cast<int64_t>(thresholds_.size()), node.nan_is_yes});
      yes.slots.push_back({&nodes_, at + 2});
      if (i + 1 == values.size()) no.slots.push_back({&nodes_, at + 3});
    }
    waiting_.push_back(std::move(no));
    waiting_.push_back(std::move(yes));
  }

  OpContext& c_;
  const Trees& trees_;
  std::vector<bool> seen_;
  std::vector<Waiting> waiting_;
  std::vector<int64_t> roots_, nodes_, leaves_, targets_;
  std::vector<double> thresholds_, weights_;
};

// A list of reals that may be a tensor.
std::vector<double> reals_of(OpContext& c, const std::string& name) {
  for (const std::string& tensor : {name + "_as_tensor", name}) {
    const onnx::Attribute* a = c.node.attribute(tensor);
    if (!a || !a->t.constant || a->t.constant->dtype == DType::kString) continue;
    const Tensor t = materialise(*a->t.constant);
    std::vector<double> values;
    for (int64_t i = 0; i < t.size(); ++i) values.push_back(t.real(i));
    return values;
  }
  return c.attr_floats(name);
}

int64_t comparison_named(OpContext& c, const std::string& mode) {
  static const std::map<std::string, int64_t> kModes{{"BRANCH_LEQ", 0}, {"BRANCH_LT", 1}, {"BRANCH_GTE", 2},
                                                     {"BRANCH_GT", 3},  {"BRANCH_EQ", 4}, {"BRANCH_NEQ", 5}};
  const auto it = kModes.find(mode);
  if (it == kModes.end()) c.fail("a tree with the mode '" + escaped(mode, 40) + "'");
  return it->second;
}

// Up to opset 4: lists by (tree, node), the weights of a leaf in lists of their own, `prefix` class or target.
Trees trees_by_name(OpContext& c, const std::string& prefix) {
  const auto trees_of = c.attr_ints("nodes_treeids"), ids = c.attr_ints("nodes_nodeids"),
             features = c.attr_ints("nodes_featureids"), yes = c.attr_ints("nodes_truenodeids"),
             no = c.attr_ints("nodes_falsenodeids"), nan = c.attr_ints("nodes_missing_value_tracks_true");
  const std::vector<double> thresholds = reals_of(c, "nodes_values"),
                            weights = reals_of(c, prefix + "_weights");
  const onnx::Attribute* given = c.node.attribute("nodes_modes");
  const std::vector<std::string> modes = given ? given->strings : std::vector<std::string>{};
  const std::size_t n = ids.size();
  if (n == 0 || trees_of.size() != n || features.size() != n || yes.size() != n || no.size() != n ||
      thresholds.size() != n || modes.size() != n || (!nan.empty() && nan.size() != n))
    c.fail("its lists of nodes are empty or differ in length");
  using Name = std::pair<int64_t, int64_t>;
  std::map<Name, std::size_t> places;
  for (std::size_t i = 0; i < n; ++i)
    if (!places.emplace(Name{trees_of[i], ids[i]}, i).second)
      c.fail("node " + std::to_string(ids[i]) + " of tree " + std::to_string(trees_of[i]) +
             " is there twice");
  const auto place = [&](int64_t tree, int64_t id) {
    const auto it = places.find({tree, id});
    if (it == places.end())
      c.fail("node " + std::to_string(id) + " of tree " + std::to_string(tree) + " is not there");
    return it->second;
  };
  Trees trees;
  std::vector<int64_t> child(n);  // what stands for it: itself, or a leaf
  for (std::size_t i = 0; i < n; ++i) {
    child[i] = static_cast<int64_t>(i);
    if (modes[i] != "LEAF") continue;
    trees.leaves.emplace_back();
    child[i] = -static_cast<int64_t>(trees.leaves.size());
  }
  std::vector<bool> has_parent(n);
  for (std::size_t i = 0; i < n; ++i) {
    Trees::Node node{features[i], 0, -1, -1, nan.empty() ? 0 : nan[i], thresholds[i], {}};
    if (modes[i] != "LEAF") {
      const std::size_t a = place(trees_of[i], yes[i]), b = place(trees_of[i], no[i]);
      has_parent[a] = has_parent[b] = true;
      node.comparison = comparison_named(c, modes[i]), node.yes = child[a], node.no = child[b];
    }
    trees.nodes.push_back(std::move(node));
  }
  for (std::size_t i = 0; i < n; ++i)
    if (!has_parent[i]) trees.roots.push_back(child[i]);
  const auto of_trees = c.attr_ints(prefix + "_treeids"), of_nodes = c.attr_ints(prefix + "_nodeids"),
             targets = c.attr_ints(prefix + "_ids");
  if (of_trees.size() != weights.size() || of_nodes.size() != weights.size() ||
      targets.size() != weights.size())
    c.fail("its lists of weights differ in length");
  for (std::size_t i = 0; i < weights.size(); ++i)
    if (const int64_t leaf = child[place(of_trees[i], of_nodes[i])]; leaf < 0)
      trees.leaves[static_cast<std::size_t>(-1 - leaf)].emplace_back(targets[i], weights[i]);
  return trees;
}

// Since opset 5: nodes and leaves by their places.
Trees trees_by_place(OpContext& c) {
  const auto features = c.attr_ints("nodes_featureids"), yes = c.attr_ints("nodes_truenodeids"),
             no = c.attr_ints("nodes_falsenodeids"), yes_leaf = c.attr_ints("nodes_trueleafs"),
             no_leaf = c.attr_ints("nodes_falseleafs"), nan = c.attr_ints("nodes_missing_value_tracks_true"),
             targets = c.attr_ints("leaf_targetids");
  const auto thresholds = reals_of(c, "nodes_splits"), weights = reals_of(c, "leaf_weights"),
             modes = reals_of(c, "nodes_modes"), members = reals_of(c, "membership_values");
  const std::size_t n = features.size();
  if (n == 0 || yes.size() != n || no.size() != n || yes_leaf.size() != n || no_leaf.size() != n ||
      thresholds.size() != n || modes.size() != n || (!nan.empty() && nan.size() != n) ||
      targets.size() != weights.size())
    c.fail("its lists of nodes or leaves are empty or differ in length");
  Trees trees;
  const auto child = [&](int64_t to, int64_t is_leaf) {
    if (to < 0 || to >= static_cast<int64_t>(is_leaf ? weights.size() : n))
      c.fail("a tree leads to " + std::to_string(to) + ", which is not there");
    return is_leaf ? -1 - to : to;
  };
  std::size_t member = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (!(modes[i] >= 0 && modes[i] <= kMember))
      c.fail("a tree with a mode beyond " + std::to_string(kMember));
    Trees::Node node{features[i],
                     static_cast<int64_t>(modes[i]),
                     child(yes[i], yes_leaf[i]),
                     child(no[i], no_leaf[i]),
                     nan.empty() ? 0 : nan[i],
                     thresholds[i],
                     {}};
    if (node.comparison == kMember) {
      for (; member < members.size() && !std::isnan(members[member]); ++member)
        node.members.push_back(members[member]);
      ++member;  // NaN ends a set
    }
    trees.nodes.push_back(std::move(node));
  }
  trees.roots = c.attr_ints("tree_roots");
  for (std::size_t i = 0; i < weights.size(); ++i) trees.leaves.push_back({{targets[i], weights[i]}});
  return trees;
}

ValueId with_base(OpContext& c, ValueId scores, int64_t count) {
  const auto base = reals_of(c, "base_values");
  if (base.empty()) return scores;
  if (base.size() != 1 && base.size() != static_cast<std::size_t>(count))
    c.fail("has " + std::to_string(base.size()) + " base values for " + std::to_string(count) + " targets");
  return binary(c, Op::kAdd, scores, floats_constant(c, base, {static_cast<int64_t>(base.size())}));
}

}  // namespace

void tree_ensemble_regressor(OpContext& c) {
  const int64_t targets = c.attr_int("n_targets", 1);
  const Trees trees = trees_by_name(c, "target");
  const ValueId sums = TreeTable(c, trees).emit(
      c.input(0), DType::kF32, targets, c.attr_word("aggregate_function", {"SUM", "AVERAGE", "MIN", "MAX"}));
  c.outputs[0] = regressed(c, with_base(c, sums, targets), targets, post_transform_of(c));
}

void tree_ensemble(OpContext& c) {
  const int64_t targets = c.attr_int("n_targets", 1), how = c.attr_int("aggregate_function", 1),
                transform = c.attr_int("post_transform", 0);
  static const char* const kAggregates[] = {"AVERAGE", "SUM", "MIN", "MAX"};
  static const char* const kTransforms[] = {"NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"};
  if (how < 0 || how > 3 || transform < 0 || transform > 4)
    c.fail("aggregate_function or post_transform is out of range");
  const Trees trees = trees_by_place(c);
  const ValueId sums =
      TreeTable(c, trees).emit(c.input(0), dtype_of(c, c.input(0)), targets, kAggregates[how]);
  c.outputs[0] = regressed(c, sums, targets, kTransforms[transform]);
}

// Trees that speak of one class of two give one score: that of the second class, whichever they name, as ONNX Runtime
// has it. The first one's is what is left, or nothing where they name the second.
void tree_ensemble_classifier(OpContext& c) {
  const ClassLabels labels(c, "classlabels_int64s", "classlabels_strings");
  const std::string transform = post_transform_of(c);
  Trees trees = trees_by_name(c, "class");
  const auto ids = c.attr_ints("class_ids");
  const auto base = reals_of(c, "base_values");
  const bool one_score = labels.count() == 2 && !ids.empty() && base.size() < 2 &&
                         (ids[0] == 0 || base.empty()) && std::equal(ids.begin() + 1, ids.end(), ids.begin());
  bool all_positive = true;
  if (one_score)
    for (auto& leaf : trees.leaves)
      for (auto& [target, weight] : leaf) target = 0, all_positive = all_positive && weight >= 0;
  const int64_t count = one_score ? 1 : labels.count();
  const ValueId sums = TreeTable(c, trees).emit(c.input(0), DType::kF32, count, "SUM");
  if (!one_score) {
    const ValueId scores = with_base(c, sums, count);
    labels.choose_greatest(scores);
    c.outputs[1] = post_transformed(c, scores, transform);
    return;
  }
  const ValueId score = with_base(c, sums, 1), minus = c.emit(Op::kNeg, {score});
  labels.choose_by_sign(score, all_positive ? 0.5 : 0);
  const auto both = [&](ValueId first) { return c.emit(Op::kConcat, {first, score}, {{key::kAxis, 1}}); };
  if (ids[0] != 0)
    c.outputs[1] = post_transformed(c, both(binary(c, Op::kSub, score, score)), transform);
  else if (transform == "LOGISTIC")
    c.outputs[1] = post_transformed(c, both(minus), transform);
  else
    c.outputs[1] = both(all_positive ? binary(c, Op::kSub, scalar(c, 1, DType::kF32), score) : minus);
}

}  // namespace ark::ops
