#include "engine/lower/fuse.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/index.h"
#include "base/ir/keys.h"
#include "base/ir/pointwise_host.h"
#include "engine/partition/op_rule.h"
#include "engine/program/weight_codec.h"

namespace ark {
namespace {

constexpr std::size_t kMaxSteps = 32;    // registers of a pointwise phase
constexpr std::size_t kMaxOperands = 8;  // loads of a pointwise phase
constexpr int kBeside = 4;               // products that are brought together: all their outputs live at once

uint32_t activation(const Node& node) {
  if (node.op == Op::kRelu) return kEpilogueRelu;
  if (node.op == Op::kSilu) return kEpilogueSilu;
  if (node.op != Op::kGelu) return 0;
  return node.attributes.get_or(key::kApproximate, "none") == "tanh" ? kEpilogueGeluTanh : kEpilogueGelu;
}

// Scalars that become constants of the bytecode.
std::optional<float> scalar(const Graph& graph, ValueId v) {
  const ConstantPtr& c = graph.value(v).constant;
  if (!c || c->size() != 1 || !is_floating(c->dtype)) return std::nullopt;
  return static_cast<float>(materialise(*c).real(0));
}

// The operator's own parameters as PointwiseStep has them; nullopt if the bytecode does not know it.
std::optional<std::pair<float, float>> parameters(const Graph& graph, const Node& node) {
  const pointwise::Row* row = pointwise::row_of(node.op);
  if (!row || !pointwise::is_fusible(*row)) return std::nullopt;
  if (node.op != Op::kClip) {
    const auto [p, q] = pointwise::parameters_of(*row, node.attributes);
    return std::pair(static_cast<float>(p), static_cast<float>(q));
  }
  std::pair range(std::numeric_limits<float>::lowest(), std::numeric_limits<float>::max());
  for (std::size_t i = 1; i < std::min<std::size_t>(node.inputs.size(), 3); ++i) {
    if (node.inputs[i] == kNoValue) continue;
    const auto value = scalar(graph, node.inputs[i]);
    if (!value) return std::nullopt;
    (i == 1 ? range.first : range.second) = *value;
  }
  return range;
}

class Fuser {
 public:
  explicit Fuser(const Graph& graph)
      : graph_(graph), consumers_(graph.consumers()), cluster_of_(graph.nodes.size(), -1) {}

  std::vector<Cluster> run() {
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (node.removed) continue;
      if (is_panel_matmul(graph_, node) || node.op == Op::kAllReduce) grow_epilogue(static_cast<NodeId>(n));
    }
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (graph_.nodes[n].removed) continue;
      if (graph_.nodes[n].op == Op::kMul) join_gated(static_cast<NodeId>(n));
      if (graph_.nodes[n].op == Op::kPagedAttention) join_rotary(static_cast<NodeId>(n));
    }
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (!graph_.nodes[n].removed && cluster_of_[n] < 0) add_single(static_cast<NodeId>(n));
    }
    std::erase_if(clusters_, [](const Cluster& c) { return c.members.empty(); });
    std::stable_sort(clusters_.begin(), clusters_.end(),
                     [](const Cluster& a, const Cluster& b) { return a.members.back() < b.members.back(); });
    bring_products_together();
    return std::move(clusters_);
  }

 private:
  // What a product multiplies, if that is all that it waits for.
  ValueId only_input(const Cluster& cluster) const {
    const Node& root = graph_.node(cluster.root);
    return root.op == Op::kMatMul && cluster.residual == kNoValue && is_panel_matmul(graph_, root)
               ? root.inputs[0]
               : kNoValue;
  }

  // Products of the same rows (q, k and v; gate and up) stand side by side: processors that are through with one go on
  // to the next, where what follows the first would be waited for.
  void bring_products_together() {
    std::vector<ValueId> inputs;
    for (const Cluster& cluster : clusters_) inputs.push_back(only_input(cluster));
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i] == kNoValue) continue;
      std::size_t behind = i + 1;
      for (std::size_t j = behind; j < inputs.size() && behind < i + kBeside; ++j) {
        if (inputs[j] != inputs[i]) continue;
        const auto move_up = [from = static_cast<int64_t>(j), to = static_cast<int64_t>(behind)](auto& list) {
          std::rotate(list.begin() + to, list.begin() + from, list.begin() + from + 1);
        };
        move_up(clusters_);
        move_up(inputs);
        ++behind;
      }
      i = behind - 1;
    }
  }

  // The only reader of `v`, if it is not seen from outside.
  NodeId only_reader(ValueId v) const {
    const bool is_output = std::find(graph_.outputs.begin(), graph_.outputs.end(), v) != graph_.outputs.end();
    return is_output || consumers_[v].size() != 1 ? kNoNode : consumers_[v][0];
  }

  void absorb(Cluster& cluster, NodeId id, int32_t index) {
    cluster.members.push_back(id);
    cluster.output = graph_.node(id).outputs[0];
    cluster_of_[id] = index;
  }

  void grow_epilogue(NodeId root) {
    const auto index = static_cast<int32_t>(clusters_.size());
    Cluster cluster{.root = root};
    absorb(cluster, root, index);
    // A partial sum is finished by its AllReduce.
    while (true) {
      const NodeId next = only_reader(cluster.output);
      if (next == kNoNode || cluster_of_[next] >= 0 || !extend(cluster, graph_.node(next))) break;
      absorb(cluster, next, index);
    }
    clusters_.push_back(std::move(cluster));
  }

  bool extend(Cluster& cluster, const Node& node) const {
    if (cluster.residual != kNoValue || node.outputs.size() != 1) return false;
    const Shape& shape = shape_of(graph_, cluster.output);
    if (!(shape_of(graph_, node.outputs[0]) == shape) || graph_.value(node.outputs[0]).dtype != DType::kF32)
      return false;
    if (const uint32_t bit = activation(node); bit != 0 && !(cluster.epilogue & ~uint32_t{kEpilogueBias})) {
      cluster.epilogue |= bit;
      return true;
    }
    if (node.op != Op::kAdd || node.inputs[0] == node.inputs[1]) return false;
    const ValueId other = node.inputs[node.inputs[0] == cluster.output ? 1 : 0];
    const Shape& other_shape = shape_of(graph_, other);
    const ConstantPtr& constant = graph_.value(other).constant;
    if (constant && cluster.epilogue == 0 && other_shape.size() == 1 && other_shape[0] == shape.back()) {
      cluster.epilogue |= kEpilogueBias;
      cluster.bias = other;
      return true;
    }
    if (constant || !(other_shape == shape) || graph_.value(other).dtype != DType::kF32) return false;
    cluster.epilogue |= kEpilogueResidual;
    cluster.residual = other;
    return true;
  }

  // Makes one cluster of a Mul and the two products of the same rows that it alone reads, one of which may have an
  // activation.
  void join_gated(NodeId id) {
    const Node& node = graph_.node(id);
    const Shape& shape = shape_of(graph_, node.outputs[0]);
    int32_t parts[2];
    for (std::size_t i = 0; i < 2; ++i) {
      const NodeId producer = graph_.value(node.inputs[i]).producer;
      parts[i] = producer == kNoNode || only_reader(node.inputs[i]) != id ? -1 : cluster_of_[producer];
      if (parts[i] < 0 || !(shape_of(graph_, node.inputs[i]) == shape)) return;
    }
    const auto part = [&](int i) -> Cluster& { return clusters_[at(parts[i])]; };
    const auto level = [&](int i) {
      return graph_.node(part(i).root).attributes.get_or(key::kAccuracyLevel, 0);
    };
    if (parts[0] == parts[1] || only_input(part(0)) == kNoValue ||
        only_input(part(0)) != only_input(part(1)) || level(0) != level(1))
      return;
    if ((part(1).epilogue & kEpilogueActivations) != 0) std::swap(parts[0], parts[1]);
    if ((part(1).epilogue & kEpilogueActivations) != 0) return;
    const auto index = static_cast<int32_t>(clusters_.size());
    const Cluster product{.root = id, .members = {id}, .output = node.outputs[0], .is_pointwise = true};
    Cluster cluster = part(0);
    cluster.apart = {part(0), part(1), product};
    for (const int i : {0, 1}) part(i).members.clear();
    for (const Cluster& other : {cluster.apart[1], product})
      cluster.members.insert(cluster.members.end(), other.members.begin(), other.members.end());
    std::sort(cluster.members.begin(), cluster.members.end());
    for (const NodeId member : cluster.members) cluster_of_[member] = index;
    cluster.output = product.output;
    clusters_.push_back(std::move(cluster));
  }

  // Makes one cluster of an attention and what rotates its queries and keys by the same angles, for it alone.
  void join_rotary(NodeId id) {
    const Node& node = graph_.node(id);
    const auto rotary_of = [&](ValueId v) {
      const NodeId producer = graph_.value(v).producer;
      const bool is_it = producer != kNoNode && is_token_rotary(graph_, graph_.node(producer)) &&
                         only_reader(v) == id && cluster_of_[producer] < 0;
      return is_it ? producer : kNoNode;
    };
    const NodeId q = rotary_of(node.inputs[0]), k = rotary_of(node.inputs[1]);
    if (q == kNoNode || k == kNoNode || q == k) return;
    const auto angles = [&](NodeId rotary) {
      const Node& r = graph_.node(rotary);
      return std::tuple(r.inputs[1], r.inputs[2], r.inputs[3], r.attributes.get_or(key::kInterleaved, 0),
                        r.attributes.get(key::kRotaryDim), r.attributes.get(key::kHeadAxis));
    };
    if (angles(q) != angles(k)) return;
    const auto index = static_cast<int32_t>(clusters_.size());
    Cluster cluster{
        .root = id, .members = {q, k, id}, .output = node.outputs[0], .rotary_q = q, .rotary_k = k};
    std::sort(cluster.members.begin(), cluster.members.end());
    for (const NodeId member : cluster.members) cluster_of_[member] = index;
    clusters_.push_back(std::move(cluster));
  }

  bool is_fusible(const Node& node) const {
    if (node.outputs.size() != 1 || graph_.value(node.outputs[0]).dtype != DType::kF32 ||
        !parameters(graph_, node)) {
      return false;
    }
    const std::size_t data = node.op == Op::kClip ? 1 : node.inputs.size();
    for (std::size_t i = 0; i < data; ++i) {
      if (node.inputs[i] == kNoValue) return false;
      const Value& in = graph_.value(node.inputs[i]);
      if (in.dtype != DType::kF32 && !(in.constant && is_narrow_float(in.dtype))) return false;
    }
    return !shape_of(graph_, node.outputs[0]).empty();
  }

  void add_single(NodeId id) {
    const Node& node = graph_.node(id);
    const auto index = static_cast<int32_t>(clusters_.size());
    Cluster cluster{.root = id, .members = {id}, .output = node.outputs[0]};
    cluster.is_pointwise = is_fusible(node);
    cluster_of_[id] = index;
    if (cluster.is_pointwise) {
      for (const ValueId in : node.inputs) {
        if (in != kNoValue) merge_producer(cluster, in, index);
      }
      std::sort(cluster.members.begin(), cluster.members.end());
    }
    clusters_.push_back(std::move(cluster));
  }

  // Takes over the pointwise cluster that makes `in`, if nobody else reads it.
  void merge_producer(Cluster& cluster, ValueId in, int32_t index) {
    const NodeId producer = graph_.value(in).producer;
    if (producer == kNoNode || only_reader(in) == kNoNode) return;
    const int32_t other = cluster_of_[producer];
    if (other < 0 || other == index || !clusters_[other].is_pointwise) return;
    if (!(shape_of(graph_, in) == shape_of(graph_, cluster.output))) return;
    Cluster merged = cluster;
    merged.members.insert(merged.members.end(), clusters_[other].members.begin(),
                          clusters_[other].members.end());
    std::sort(merged.members.begin(), merged.members.end());
    std::vector<ValueId> operands;
    if (pointwise_steps(graph_, merged, operands).size() > kMaxSteps || operands.size() > kMaxOperands)
      return;
    for (const NodeId member : clusters_[other].members) cluster_of_[member] = index;
    clusters_[other].members.clear();
    cluster.members = std::move(merged.members);
  }

  const Graph& graph_;
  const std::vector<std::vector<NodeId>> consumers_;
  std::vector<int32_t> cluster_of_;
  std::vector<Cluster> clusters_;
};

}  // namespace

namespace {

bool is_panel_weight(const Value& w) {
  const WeightCodec* codec = codec_of(w.dtype);
  return w.constant && codec && codec->has_numbers && w.constant->dims.size() == 2;
}

}  // namespace

bool is_panel_expert_matmul(const Graph& graph, const Node& node) {
  if (node.op != Op::kExpertMatMul) return false;
  const Value &x = graph.value(node.inputs[0]), &experts = graph.value(node.inputs[1]);
  const auto weight = [&](ValueId id) { return is_panel_weight(graph.value(id)); };
  return x.dtype == DType::kF32 && !x.constant && !experts.constant && rank_of(graph, node.inputs[1]) == 2 &&
         (experts.dtype == DType::kI32 || experts.dtype == DType::kI64) &&
         std::all_of(node.inputs.begin() + 3, node.inputs.end(), weight);
}

bool is_token_rotary(const Graph& graph, const Node& node) {
  return node.op == Op::kRotary && rank_of(graph, node.inputs[0]) == 3 && rank_of(graph, node.inputs[3]) == 1;
}

bool is_panel_matmul(const Graph& graph, const Node& node) {
  if (node.op != Op::kMatMul) return false;
  const Value& x = graph.value(node.inputs[0]);
  return is_panel_weight(graph.value(node.inputs[1])) && x.dtype == DType::kF32 && x.shape &&
         x.shape->size() >= 2 && graph.value(node.outputs[0]).dtype == DType::kF32 &&
         node.attributes.get_or(key::kTransA, 0) == 0;
}

bool is_embedding(const Graph& graph, const Node& node) {
  if (node.op != Op::kGather) return false;
  const Value& table = graph.value(node.inputs[0]);
  const DType indices = graph.value(node.inputs[1]).dtype;
  const WeightCodec* codec = codec_of(table.dtype);
  return table.constant && codec && codec->has_numbers && rank_of(graph, node.inputs[0]) == 2 &&
         node.attributes.get(key::kAxis) == 0 && (indices == DType::kI32 || indices == DType::kI64) &&
         !graph.value(node.inputs[1]).constant && graph.value(node.outputs[0]).dtype == DType::kF32;
}

std::vector<PointwiseStep> pointwise_steps(const Graph& graph, const Cluster& cluster,
                                           std::vector<ValueId>& operands) {
  std::vector<PointwiseStep> steps;
  std::map<ValueId, int32_t> registers;
  const auto load = [&](ValueId v) {
    const auto [it, is_new] = registers.try_emplace(v, static_cast<int32_t>(steps.size()));
    if (!is_new) return it->second;
    if (const auto value = scalar(graph, v)) {
      steps.push_back({.op = Op::kConstantOfShape, .p = *value});
    } else {
      steps.push_back({.op = Op::kIdentity, .input = static_cast<int32_t>(operands.size())});
      operands.push_back(v);
    }
    return it->second;
  };
  for (const NodeId id : cluster.members) {
    const Node& node = graph.node(id);
    const auto p = parameters(graph, node);
    ARK_CHECK(p.has_value(), "a pointwise cluster holds " + std::string(name_of(node.op)));
    PointwiseStep step{.op = node.op, .p = p->first, .q = p->second};
    step.a = load(node.inputs[0]);
    if (is_binary_pointwise(node.op)) step.b = load(node.inputs[1]);
    registers[node.outputs[0]] = static_cast<int32_t>(steps.size());
    steps.push_back(step);
  }
  return steps;
}

std::vector<Cluster> fuse(const Graph& graph) { return Fuser(graph).run(); }

std::vector<Cluster> singles(const Graph& graph) {
  std::vector<Cluster> clusters;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (graph.nodes[n].removed) continue;
    const auto id = static_cast<NodeId>(n);
    clusters.push_back({.root = id, .members = {id}, .output = graph.nodes[n].outputs[0]});
  }
  return clusters;
}

}  // namespace ark
