// How one ONNX operator becomes canonical nodes: the interface of importer/ops/<op>.cc.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/ir/graph.h"
#include "importer/onnx.h"

namespace ark {

// Appends a canonical node to `graph` and infers its outputs' types, shapes and symbolic elements at once;
// folds it away if all inputs are small constants or known symbolic elements. `outputs` fresh value ids are
// returned (one per output; names = `name` plus a suffix). Defined in importer/infer.cc.
std::vector<ValueId> emit(Graph& graph, Op op, const std::string& name, std::vector<ValueId> inputs,
                          Attributes attributes = {}, int outputs = 1);

// Infers (again) the outputs of one node from its inputs. Throws Error(kBadModel) naming the node when
// shapes or types contradict each other.
void infer_node(Graph& graph, NodeId node);

// What an operator's importer sees and does.
class OpContext {
 public:
  OpContext(Graph& graph, const onnx::Node& node, int64_t opset, std::string label,
            std::vector<ValueId> inputs)
      : graph(graph),
        node(node),
        opset(opset),
        label(std::move(label)),
        inputs(std::move(inputs)),
        outputs(std::max<std::size_t>(node.outputs.size(), kMostOutputs), kNoValue) {}

  Graph& graph;
  const onnx::Node& node;
  const int64_t opset;                // of the node's domain
  const std::string label;            // escaped, for messages: "/layers.0/MatMul (MatMul)"
  const std::vector<ValueId> inputs;  // kNoValue where absent
  // To be filled by the importer: at least what the node names. Longer than that, so that a file that names
  // too few outputs cannot make an importer write beyond the end.
  static constexpr std::size_t kMostOutputs = 8;
  std::vector<ValueId> outputs;
  ValueId labels = kNoValue;  // whose scores the first output is: what a map has beside its values

  bool has_input(std::size_t i) const { return i < inputs.size() && inputs[i] != kNoValue; }
  ValueId input(std::size_t i) const;  // throws Error(kBadModel) if absent
  bool wants_output(std::size_t i) const { return i < node.outputs.size() && !node.outputs[i].empty(); }
  int rank(std::size_t i) const;               // throws Error(kUnsupported) if unknown
  int64_t axis(int64_t axis, int rank) const;  // wraps negatives; throws if out of range

  // Attributes with defaults; wrong types throw Error(kBadModel) naming node and attribute.
  int64_t attr_int(std::string_view name, int64_t fallback) const;
  bool attr_flag(std::string_view name) const;  // 0, also if it is not there, or 1
  double attr_float(std::string_view name, double fallback) const;
  std::string attr_string(std::string_view name, std::string fallback) const;
  // One of `words`: the first, unless there is a `fallback`.
  std::string attr_word(std::string_view name, std::initializer_list<std::string_view> words,
                        std::string_view fallback = {}) const;
  std::vector<int64_t> attr_ints(std::string_view name, std::vector<int64_t> fallback = {}) const;
  std::vector<double> attr_floats(std::string_view name, std::vector<double> fallback = {}) const;
  bool has_attr(std::string_view name) const { return node.attribute(name) != nullptr; }

  // Emits one node with one output and returns it. The label becomes its name.
  ValueId emit(Op op, std::vector<ValueId> in, Attributes attributes = {}) {
    return ark::emit(graph, op, label, std::move(in), std::move(attributes))[0];
  }
  std::vector<ValueId> emit_many(Op op, std::vector<ValueId> in, Attributes attributes, int count) {
    return ark::emit(graph, op, label, std::move(in), std::move(attributes), count);
  }
  ValueId constant_float(float value, DType dtype = DType::kF32);  // scalar
  ValueId constant_ints(std::vector<int64_t> values);              // rank 1, i64
  // The input's elements as expressions if they are known (constant or symbolic).
  std::optional<std::vector<Expr>> elements(std::size_t i) const;
  // A size that must equal another: fails with `what` where both are numbers and differ, else it holds from here on.
  void require_equal(const Expr& size, const Expr& wanted, const std::string& what);
  [[noreturn]] void fail(const std::string& why) const;         // Error(kBadModel): "node LABEL: why"
  [[noreturn]] void unsupported(const std::string& why) const;  // Error(kUnsupported)
};

using OpImporter = void (*)(OpContext&);

// The registry: one line per operator in importer/ops/<stem>.cc's table, gathered in
// importer/ops/registry.cc. domain "" is ai.onnx. nullptr if ark does not know the operator.
OpImporter find_op_importer(std::string_view domain, std::string_view op_type);
std::vector<std::pair<std::string, std::string>>
all_op_importers();  // (domain, op_type), for the matrix test

}  // namespace ark
