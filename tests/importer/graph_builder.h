// Tiny graphs for tests, without files.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "base/ir/op_attributes.h"
#include "base/ir/shape_rules/rules.h"
#include "importer/op_importer.h"

namespace ark::test {

// Sizes as text: "batch, past + seq, 8".
inline Shape shape_of(const std::string& text) {
  Shape shape;
  std::string rest = text;
  int depth = 0;
  std::size_t start = 0;
  for (std::size_t i = 0; i <= rest.size(); ++i) {
    if (i < rest.size() && rest[i] == '(') ++depth;
    if (i < rest.size() && rest[i] == ')') --depth;
    if (i < rest.size() && (rest[i] != ',' || depth)) continue;
    if (i > start) shape.push_back(Expr::parse(rest.substr(start, i - start)));
    start = i + 1;
  }
  return shape;
}

class GraphBuilder {
 public:
  ValueId input(const std::string& name, const std::string& dims, DType type = DType::kF32) {
    const ValueId id = graph.add_value(name, type, shape_of(dims));
    graph.inputs.push_back(id);
    return id;
  }
  ValueId reals(const Dims& dims, const std::vector<float>& values) {
    return graph.add_constant(make_constant(Tensor::of<float>(DType::kF32, dims, values)));
  }
  ValueId real(float value) { return reals({}, {value}); }
  ValueId ints(const std::vector<int64_t>& values) {
    return ints({static_cast<int64_t>(values.size())}, values);
  }
  ValueId ints(const Dims& dims, const std::vector<int64_t>& values) {
    return graph.add_constant(make_constant(Tensor::of<int64_t>(DType::kI64, dims, values)));
  }
  ValueId integer(int64_t value) { return ints({}, {value}); }
  // A constant too large to be folded by value.
  ValueId weight(const Dims& dims, const std::string& name = "w") {
    Tensor t = Tensor::zeros(DType::kF32, dims);
    for (int64_t i = 0; i < t.size(); ++i) t.as<float>()[i] = static_cast<float>(i % 17) - 8;
    return graph.add_constant(make_constant(t, name));
  }

  // As importers do: inferred and folded at once.
  ValueId emit(Op op, std::vector<ValueId> in, Attributes attributes = {}) {
    return emit(op, std::move(in), std::move(attributes), 1)[0];
  }
  std::vector<ValueId> emit(Op op, std::vector<ValueId> in, Attributes attributes, int outputs) {
    return ark::emit(graph, op, std::string(name_of(op)) + std::to_string(graph.nodes.size()), std::move(in),
                     std::move(attributes), outputs);
  }
  // Inferred only, as a pass would find it.
  ValueId node(Op op, std::vector<ValueId> in, Attributes attributes = {}) {
    const std::string name = std::string(name_of(op)) + std::to_string(graph.nodes.size());
    const ValueId out = graph.add_value(name, DType::kUndefined, std::nullopt);
    infer_node(graph, graph.add_node(op, name, std::move(in), {out}, std::move(attributes)));
    return out;
  }
  void output(ValueId id) { graph.outputs.push_back(id); }

  // One ONNX operator through its importer.
  std::vector<ValueId> onnx(const std::string& op_type, std::vector<ValueId> in,
                            std::vector<onnx::Attribute> attributes = {}, int64_t opset = 21, int outputs = 1,
                            const std::string& domain = "") {
    ark::onnx::Node node;
    node.op_type = op_type;
    node.domain = domain;
    for (std::size_t i = 0; i < in.size(); ++i)
      node.inputs.push_back(in[i] == kNoValue ? "" : "i" + std::to_string(i));
    for (int i = 0; i < outputs; ++i) node.outputs.push_back("o" + std::to_string(i));
    node.attributes = std::move(attributes);
    OpContext context(graph, node, opset, op_type + "_test", std::move(in));
    find_op_importer(domain, op_type)(context);
    for (const Node& n : graph.nodes)
      if (const std::string fault = attribute_fault(n.op, n.attributes); !fault.empty())
        throw std::logic_error(op_type + " emits a node of which " + fault);
    return context.outputs;
  }

  std::string shape(ValueId id) const {
    const Value& v = graph.value(id);
    return v.shape ? str(*v.shape) : "?";
  }
  std::string elements(ValueId id) const {
    const auto e = shape_rules::elements_of(graph, id);
    return e ? str(*e) : "?";
  }
  // "MatMul Add Relu": the operators left, in order.
  std::string ops() const {
    std::string text;
    for (const Node& n : graph.nodes)
      if (!n.removed) text += (text.empty() ? "" : " ") + std::string(name_of(n.op));
    return text;
  }
  const Node& last() const {
    for (std::size_t i = graph.nodes.size(); i-- > 0;)
      if (!graph.nodes[i].removed) return graph.nodes[i];
    return graph.nodes.at(0);
  }

  Graph graph;
};

// ONNX attributes.
inline onnx::Attribute attribute(const std::string& name, int64_t value) {
  onnx::Attribute a;
  a.name = name;
  a.type = onnx::AttributeType::kInt;
  a.i = value;
  return a;
}
inline onnx::Attribute attribute(const std::string& name, int value) {
  return attribute(name, int64_t{value});
}
inline onnx::Attribute attribute(const std::string& name, double value) {
  onnx::Attribute a;
  a.name = name;
  a.type = onnx::AttributeType::kFloat;
  a.f = value;
  return a;
}
inline onnx::Attribute attribute(const std::string& name, const std::string& value) {
  onnx::Attribute a;
  a.name = name;
  a.type = onnx::AttributeType::kString;
  a.s = value;
  return a;
}
inline onnx::Attribute attribute(const std::string& name, const std::vector<int64_t>& value) {
  onnx::Attribute a;
  a.name = name;
  a.type = onnx::AttributeType::kInts;
  a.ints = value;
  return a;
}

}  // namespace ark::test
