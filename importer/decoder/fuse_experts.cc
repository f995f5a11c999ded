// Mixtures that look the weights of chosen experts up, token by token, or multiply by those of all: as products with
// the chosen ones, which copy and read nothing else.
#include <algorithm>

#include "base/ir/keys.h"
#include "importer/decoder/cleanup.h"
#include "importer/passes/match.h"

namespace ark::decoder {
namespace {

class ExpertFuser {
 public:
  explicit ExpertFuser(TokenBuilder& out) : out_(out) {}

  int run() {
    const int fused =
        each(Op::kMatMul, &ExpertFuser::look_ups) + each(Op::kReduceSum, &ExpertFuser::masked_sum);
    if (fused == 0) return 0;
    out_.graph.sort();
    out_.graph.remove_dead();
    each(Op::kReduceSum, &ExpertFuser::shared_sum);
    out_.graph.sort();
    out_.graph.remove_dead();
    return fused;
  }

 private:
  using Values = std::vector<ValueId>;

  int each(Op op, ValueId (ExpertFuser::*fuse)(const Node&)) {
    readers_ = out_.graph.consumers();
    int n = 0;
    const std::size_t count = out_.graph.nodes.size();
    for (std::size_t i = 0; i < count; ++i) {
      const Node node = out_.graph.nodes[i];  // nodes move as others are added
      if (node.removed || node.op != op) continue;
      out_.label = node.name;
      const ValueId value = (this->*fuse)(node);
      if (value == kNoValue) continue;
      out_.graph.replace_uses(node.outputs[0], out_.reshape(value, out_.dims(node.outputs[0])));
      ++n;
    }
    return n;
  }

  const Node* made_by(ValueId id, Op op) const {
    const Node* node = out_.graph.producer(id);
    return node && node->op == op ? node : nullptr;
  }
  ValueId behind_reshapes(ValueId id) const {
    while (const Node* node = made_by(id, Op::kReshape)) id = node->inputs[0];
    return id;
  }
  ConstantPtr constant(ValueId id) const { return id == kNoValue ? nullptr : out_.graph.value(id).constant; }

  // A stack [E, N, K] ([E, K, N] if not `turned`) as matrices [N, K]; none where that would copy it.
  Values matrices(const ConstantPtr& stack, bool turned) {
    auto whole = std::make_shared<Constant>(*stack);
    if (whole->perm == std::vector<int64_t>{0, 2, 1} && whole->begin.empty()) {
      whole->perm.clear();
      whole->dims = whole->stored_dims;
      turned = !turned;
    }
    const int64_t rows = whole->dims[1];
    if (!whole->perm.empty() || !whole->begin.empty() || whole->quantized) return {};
    const ConstantPtr flat = reshaped(whole, {whole->dims[0] * rows, whole->dims[2]});
    Values result;
    for (int64_t e = 0; e < stack->dims[0]; ++e) {
      const ConstantPtr one = sliced(flat, 0, e * rows, (e + 1) * rows);
      result.push_back(out_.constant(turned ? one : transposed(one, {1, 0})));
    }
    return result;
  }

  ValueId product(ValueId x, ValueId experts, ValueId shares, const Values& weights) {
    Values inputs{x, experts, shares};
    inputs.insert(inputs.end(), weights.begin(), weights.end());
    return out_.emit(Op::kExpertMatMul, inputs);
  }

  // The row of `k` features that all of x's are copies of; kNoValue if they may differ.
  ValueId one_row(ValueId x, int64_t k) {
    x = behind_reshapes(x);
    if (const Node* expand = made_by(x, Op::kExpand)) x = expand->inputs[0];
    const Dims dims = constant(x) ? Dims{} : out_.dims(x);
    return !dims.empty() && dims.back() == k && element_count(dims) == k ? out_.reshape(x, {k}) : kNoValue;
  }

  // rows [..., 1, K] times the weights that Gather looks up.
  ValueId look_ups(const Node& matmul) {
    if (matmul.attributes.get_or(key::kTransA, 0) != 0) return kNoValue;
    bool turned = matmul.attributes.get_or(key::kTransB, 0) != 0;
    ValueId looked_up = matmul.inputs[1];
    if (const Node* turn = made_by(looked_up, Op::kTranspose)) {
      std::vector<int64_t> swap = turn->attributes.get(key::kPerm);
      std::swap(swap[swap.size() - 1], swap[swap.size() - 2]);
      if (!std::is_sorted(swap.begin(), swap.end())) return kNoValue;
      turned = !turned;
      looked_up = turn->inputs[0];
    }
    const Node* gather = made_by(looked_up, Op::kGather);
    const ConstantPtr stack = gather ? constant(gather->inputs[0]) : nullptr;
    if (!stack || stack->dims.size() != 3 || gather->attributes.get(key::kAxis) != 0 ||
        !are_choices(gather->inputs[1]) || constant(matmul.inputs[0]))
      return kNoValue;
    const ValueId indices = gather->inputs[1];
    const Dims slots = out_.dims(indices), x = out_.dims(matmul.inputs[0]);
    const int64_t k = x.back(), count = element_count(slots);
    if (x.size() != slots.size() + 2 || x[slots.size()] != 1) return kNoValue;
    const bool is_one = element_count(x) == k;
    if (!is_one && !std::equal(slots.begin(), slots.end(), x.begin())) return kNoValue;
    const Values weights = matrices(stack, turned);
    if (weights.empty()) return kNoValue;
    ValueId rows = one_row(matmul.inputs[0], k);
    if (rows == kNoValue) rows = out_.reshape(matmul.inputs[0], {count, k});
    return product(rows, out_.reshape(indices, {count}), kNoValue, weights);
  }

  // The factors of a sum over the first feature axis: rows [n, features] and one number for each, [n, 1].
  bool factors(const Node& sum, ValueId& rows, ValueId& numbers) const {
    const auto axes = sum.attributes.get_or(key::kAxes, {});
    const Node* mul = made_by(sum.inputs[0], Op::kMul);
    if (axes != std::vector<int64_t>{1} || !mul || out_.dims(sum.inputs[0]).size() != 2) return false;
    for (const std::size_t side : {0, 1}) {
      rows = mul->inputs[side], numbers = mul->inputs[1 - side];
      if (constant(rows) || constant(numbers)) return false;
      const Dims a = out_.dims(rows), b = out_.dims(numbers);
      if (a.size() == 2 && b.size() == 2 && a[0] == b[0] && b[1] == 1) return true;
    }
    return false;
  }

  // Products of chosen experts, times shares, added up.
  ValueId shared_sum(const Node& sum) {
    ValueId rows = kNoValue, shares = kNoValue;
    if (!factors(sum, rows, shares)) return kNoValue;
    const Dims dims = out_.dims(rows);
    rows = behind_reshapes(rows);
    const Node* products = made_by(rows, Op::kExpertMatMul);
    if (!products || products->inputs[2] != kNoValue || out_.dims(rows) != dims || readers_[rows].size() != 1)
      return kNoValue;
    const Node own = *products;
    return product(own.inputs[0], own.inputs[1], out_.reshape(shares, {dims[0]}),
                   Values(own.inputs.begin() + 3, own.inputs.end()));
  }

  // All experts' results times numbers of which all but the chosen ones' shares are 0, added up.
  ValueId masked_sum(const Node& sum) {
    ValueId rows = kNoValue, numbers = kNoValue;
    if (!factors(sum, rows, numbers)) return kNoValue;
    const Node* scatter = made_by(behind_reshapes(numbers), Op::kScatterElements);
    if (!scatter || scatter->attributes.get(key::kAxis) != 1 ||
        scatter->attributes.get_or(key::kReduction, "none") != "none" || !is_zero(scatter->inputs[0]))
      return kNoValue;
    const ValueId experts = scatter->inputs[1], shares = scatter->inputs[2];
    if (!are_choices(experts) || out_.dims(experts).size() != 1) return kNoValue;
    experts_ = experts, all_ = out_.dims(rows)[0], slots_ = out_.dims(experts)[0], products_ = 0;
    const ValueId chosen = of_chosen(rows);
    if (chosen == kNoValue || products_ == 0) return kNoValue;
    const ValueId times = out_.emit(Op::kMul, {chosen, out_.reshape(shares, {slots_, 1})});
    return out_.emit(Op::kReduceSum, {times}, {{key::kAxes, std::vector<int64_t>{1}}, {key::kKeepdims, 0}});
  }
  bool is_zero(ValueId id) const {
    if (const Node* expand = made_by(id, Op::kExpand)) id = expand->inputs[0];
    const ConstantPtr c = constant(id);
    return c && c->is_small() && passes::is_all(*c, 0);
  }

  // Places of a router's best, all different.
  bool are_choices(ValueId id) const {
    id = behind_reshapes(id);
    const Node* top = made_by(id, Op::kTopK);
    return top && top->outputs.size() == 2 && top->outputs[1] == id;
  }

  // What lies in rows [experts, features] of `id` for the chosen ones: [slots, features]; kNoValue if that is unknown.
  ValueId of_chosen(ValueId id) {
    const Dims dims = out_.dims(id);
    const int64_t features = dims.back();
    if (dims.empty() || dims[0] != all_ || element_count(dims) != all_ * features) return kNoValue;
    id = behind_reshapes(id);
    if (out_.dims(id).back() != features || !out_.graph.producer(id)) return kNoValue;
    const Node node = *out_.graph.producer(id);
    if (node.op == Op::kMatMul) return of_all_experts(node);
    const auto last = static_cast<int64_t>(out_.dims(id).size());  // with the tokens' axis
    if (node.op == Op::kSlice && node.attributes.has(key::kStarts) &&
        node.attributes.get(key::kAxes) == std::vector<int64_t>{last}) {
      const ValueId x = of_chosen(node.inputs[0]);
      Attributes bounds = node.attributes;
      bounds.set(key::kAxes, std::vector<int64_t>{2});
      return x == kNoValue ? x : out_.emit(Op::kSlice, {x}, bounds);
    }
    if (node.op == Op::kSplit && node.attributes.get(key::kAxis) == last) {
      const ValueId x = of_chosen(node.inputs[0]);
      if (x == kNoValue) return x;
      const auto place = std::find(node.outputs.begin(), node.outputs.end(), id) - node.outputs.begin();
      return out_.emit_many(Op::kSplit, {x},
                            {{key::kAxis, 2}, {key::kSizes, node.attributes.get(key::kSizes)}},
                            static_cast<int>(node.outputs.size()))[static_cast<std::size_t>(place)];
    }
    return is_pointwise(node.op) ? elementwise(node, features) : kNoValue;
  }

  ValueId of_all_experts(const Node& matmul) {
    const ConstantPtr stack = constant(matmul.inputs[1]);
    const ValueId x = matmul.inputs[0];
    if (!stack || stack->dims.size() != 3 || stack->dims[0] != all_ || constant(x) ||
        matmul.attributes.get_or(key::kTransA, 0) != 0)
      return kNoValue;
    const int64_t k = out_.dims(x).back();
    ValueId rows = one_row(x, k);
    if (rows == kNoValue) rows = of_chosen(x);
    if (rows == kNoValue) return kNoValue;
    const Values weights = matrices(stack, matmul.attributes.get_or(key::kTransB, 0) != 0);
    if (weights.empty()) return kNoValue;
    ++products_;
    return product(rows, experts_, kNoValue, weights);
  }

  ValueId elementwise(const Node& node, int64_t features) {
    Values inputs;
    for (const ValueId id : node.inputs) {
      const ConstantPtr c = constant(id);
      if (id == kNoValue || (c && (c->size() == 1 || (c->size() == features && c->dims.back() == features))))
        inputs.push_back(id == kNoValue ? id : out_.reshape(id, c->size() == 1 ? Dims{} : Dims{features}));
      else if (c && c->size() == all_ * features && c->dims.back() == features)  // one row an expert
        inputs.push_back(
            out_.emit(Op::kGather, {out_.reshape(id, {all_, features}), experts_}, {{key::kAxis, 0}}));
      else
        inputs.push_back(c ? kNoValue : of_chosen(id));
      if (id != kNoValue && inputs.back() == kNoValue) return kNoValue;
    }
    return out_.emit(node.op, inputs, node.attributes);
  }

  TokenBuilder& out_;
  std::vector<std::vector<NodeId>> readers_;
  // Of the sum at hand.
  ValueId experts_ = kNoValue;
  int64_t all_ = 0, slots_ = 0, products_ = 0;
};

}  // namespace

int fuse_experts(TokenBuilder& out) { return ExpertFuser(out).run(); }

}  // namespace ark::decoder
