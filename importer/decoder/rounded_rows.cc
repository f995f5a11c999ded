// Rows that a file rounds to integers as it runs: by one scale for all of a step, which the token form cannot have, or
// by a constant, which it has as it is.
#include <algorithm>

#include "base/ir/keys.h"
#include "importer/decoder/quantized_weights.h"
#include "importer/passes/match.h"

namespace ark::decoder {
namespace {

constexpr int64_t kInt8Rows = 4;  // of kAccuracyLevel

class Products {
 public:
  explicit Products(Graph& graph) : graph_(graph), readers_(graph.consumers()) {}

  bool rewrite(NodeId id) {
    const Node integer = graph_.node(id);
    NodeId last = reader(integer.outputs[0], Op::kCast);
    if (last == kNoNode || graph_.value(graph_.node(last).outputs[0]).dtype != DType::kF32) return false;
    const Operand a = operand(integer, 0), b = operand(integer, 1);
    // The scales may come together or one by one: up to the Mul that the last of those goes into that only running
    // tells. What comes later stays.
    std::vector<ValueId> wanted, constants;
    for (const Operand& side : {a, b})
      if (side.real != kNoValue) wanted.push_back(side.scale);
    while (!wanted.empty()) {
      const ValueId product = graph_.node(last).outputs[0];
      last = reader(product, Op::kMul);
      if (last == kNoNode) return false;
      const Node& mul = graph_.node(last);
      if (!take_factors(mul.inputs[mul.inputs[0] == product ? 1 : 0], wanted, constants)) return false;
    }
    const bool same_shape =
        graph_.value(graph_.node(last).outputs[0]).shape == graph_.value(integer.outputs[0]).shape;
    if (!same_shape || constants.size() > 1 || (b.real != kNoValue && !constants.empty())) return false;
    const ValueId left = a.real != kNoValue ? a.real : dequantized(integer, 0, kNoValue);
    if (left == kNoValue) return false;
    const ValueId right =
        b.real != kNoValue ? b.real : dequantized(integer, 1, constants.empty() ? kNoValue : constants[0]);
    if (right == kNoValue) return false;
    Node& product = graph_.node(last);
    product.op = Op::kMatMul;
    product.inputs = {left, right};
    product.attributes = {{key::kAccuracyLevel, kInt8Rows}};
    return true;
  }

 private:
  struct Operand {
    ValueId real = kNoValue, scale = kNoValue;  // of the DynamicQuantizeLinear that makes the codes
  };
  Operand operand(const Node& integer, std::size_t i) const {
    const Node* maker = graph_.producer(integer.inputs[i]);
    if (!maker || maker->op != Op::kDynamicQuantizeLinear || zero(integer, i) != maker->outputs[2]) return {};
    return {maker->inputs[0], maker->outputs[1]};
  }

  static ValueId zero(const Node& integer, std::size_t i) { return integer.input(i + 2); }

  // The one reader of a value, if it is an `op`.
  NodeId reader(ValueId value, Op op) const {
    const auto& found = readers_[static_cast<std::size_t>(value)];
    const auto& outputs = graph_.outputs;
    return found.size() == 1 && graph_.node(found[0]).op == op &&
                   std::find(outputs.begin(), outputs.end(), value) == outputs.end()
               ? found[0]
               : kNoNode;
  }

  // Strikes a factor, or those that it is the product of, off what is wanted.
  bool take_factors(ValueId factor, std::vector<ValueId>& wanted, std::vector<ValueId>& constants) const {
    if (graph_.value(factor).constant) return constants.push_back(factor), true;
    const auto it = std::find(wanted.begin(), wanted.end(), factor);
    if (it != wanted.end()) return wanted.erase(it), true;
    const Node* mul = graph_.producer(factor);
    return mul && mul->op == Op::kMul && std::all_of(mul->inputs.begin(), mul->inputs.end(), [&](ValueId id) {
             return (graph_.value(id).constant ||
                     std::find(wanted.begin(), wanted.end(), id) != wanted.end()) &&
                    take_factors(id, wanted, constants);
           });
  }

  // (codes - zero) * scale, kNoValue: of one. The scale and the zero are one number or one for each column.
  ValueId dequantized(const Node& integer, std::size_t i, ValueId scale) {
    const ValueId codes = integer.inputs[i], zeros = zero(integer, i);
    const auto shape = graph_.value(codes).shape;
    const ConstantPtr scales = scale == kNoValue
                                   ? make_constant(Tensor::of<float>(DType::kF32, {}, {{1.F}}), "one")
                                   : graph_.value(scale).constant;
    const ConstantPtr zero_points = zeros == kNoValue ? nullptr : graph_.value(zeros).constant;
    if (!shape || shape->size() < 2 || (zeros != kNoValue && !zero_points)) return kNoValue;
    const bool per_tensor = scales->size() == 1 && (!zero_points || zero_points->size() == 1);
    const auto columns = shape->back().constant();
    if (!per_tensor && (i == 0 || !columns)) return kNoValue;
    const int64_t count = per_tensor ? 1 : *columns;
    std::vector<ValueId> inputs{codes, repeated(scales, count)};
    if (zero_points) inputs.push_back(repeated(zero_points, count));
    if (std::find(inputs.begin(), inputs.end(), kNoValue) != inputs.end()) return kNoValue;
    const std::string name = graph_.value(codes).name;
    const ValueId made = graph_.add_value(name, DType::kF32, shape);
    graph_.add_node(Op::kDequantizeLinear, name, inputs, {made},
                    {{key::kAxis, static_cast<int64_t>(shape->size()) - 1}});
    return made;
  }

  // One number for each of `count` columns; kNoValue if there are others than one or `count`, along the last axis.
  ValueId repeated(const ConstantPtr& c, int64_t count) {
    if (c->size() != 1 && (c->size() != count || c->dims.back() != count)) return kNoValue;
    const Tensor from = materialise(*c);
    Tensor to = Tensor::empty(c->dtype, {count});
    const auto size = static_cast<std::size_t>(bytes_of(c->dtype, 1));
    for (int64_t i = 0; i < count; ++i)
      std::copy_n(from.data.get() + (c->size() == 1 ? 0 : i * size), size, to.data.get() + i * size);
    return graph_.add_constant(make_constant(std::move(to), c->name));
  }

  Graph& graph_;
  const std::vector<std::vector<NodeId>> readers_;
};

struct Rounding {
  ValueId x;
  double scale, least, most;  // of the codes without their zero
};

// DequantizeLinear(QuantizeLinear(x)) by one constant scale and zero.
std::optional<Rounding> rounding(const Graph& graph, const Node& node) {
  const Node* quantize =
      node.removed || node.op != Op::kDequantizeLinear ? nullptr : graph.producer(node.inputs[0]);
  if (!quantize || quantize->op != Op::kQuantizeLinear) return std::nullopt;
  const auto number = [&](const Node* of, std::size_t i) { return passes::number(graph, of->input(i)); };
  const auto scale = number(quantize, 1);
  const double zero = number(quantize, 2).value_or(0);
  const DType codes = graph.value(node.inputs[0]).dtype;
  const bool same = quantize->inputs.size() == node.inputs.size() && scale == number(&node, 1) &&
                    number(quantize, 2) == number(&node, 2) && (node.inputs.size() < 3 || number(&node, 2)) &&
                    node.attributes.get_or(key::kZeroPoint, 0) == 0;
  if (!scale || !same || !is_integer(codes) || bits_of(codes) > 16 ||
      graph.value(quantize->inputs[1]).dtype != DType::kF32 ||
      graph.value(node.outputs[0]).dtype != DType::kF32 ||
      graph.value(quantize->inputs[0]).dtype != DType::kF32)
    return std::nullopt;
  const double range = 1 << bits_of(codes);
  const double least = is_signed(codes) ? -range / 2 : 0;
  return Rounding{quantize->inputs[0], *scale, least - zero, least + range - 1 - zero};
}

}  // namespace

void spell_out_roundings(Graph& graph) {
  const std::size_t count = graph.nodes.size();
  for (std::size_t i = 0; i < count; ++i) {
    const auto found = rounding(graph, graph.nodes[i]);
    if (!found) continue;
    const std::string name(graph.nodes[i].name);
    const auto number = [&](double v) {
      return graph.add_constant(
          make_constant(Tensor::of<float>(DType::kF32, {}, {{static_cast<float>(v)}}), name));
    };
    const std::optional<Shape> shape = graph.value(graph.nodes[i].outputs[0]).shape;
    const auto add = [&](Op op, std::vector<ValueId> inputs) {
      const ValueId y = graph.add_value(name, DType::kF32, shape);
      graph.add_node(op, name, std::move(inputs), {y});
      return y;
    };
    const ValueId scale = number(found->scale);
    const ValueId codes = add(Op::kRound, {add(Op::kDiv, {found->x, scale})});
    const ValueId kept = add(Op::kClip, {codes, number(found->least), number(found->most)});
    graph.nodes[i].op = Op::kMul;
    graph.nodes[i].inputs = {kept, scale};
    graph.nodes[i].attributes = {};
  }
  if (graph.nodes.size() != count) graph.remove_dead(), graph.sort();
}

int products_of_reals(Graph& graph) {
  Products products(graph);
  const auto count = static_cast<NodeId>(graph.nodes.size());
  int n = 0;
  for (NodeId id = 0; id < count; ++id)
    if (!graph.node(id).removed && graph.node(id).op == Op::kMatMulInteger) n += products.rewrite(id);
  if (graph.nodes.size() != static_cast<std::size_t>(count) || n > 0) graph.remove_dead(), graph.sort();
  return n;
}

}  // namespace ark::decoder
