// Products of bytes that a file rounds real rows to as it runs, as products of the real rows.
#include <algorithm>

#include "base/ir/keys.h"
#include "importer/decoder/quantized_weights.h"

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
    if (constants.size() > 1 || (b.real != kNoValue && !constants.empty())) return false;
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

  static ValueId zero(const Node& integer, std::size_t i) {
    return i + 2 < integer.inputs.size() ? integer.inputs[i + 2] : kNoValue;
  }

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

}  // namespace

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
