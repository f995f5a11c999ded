// The graph every stage of the importer works on, and the partitioner starts from.
//
// SSA over indices: a Value has one producer (a node, a graph input, or a constant); nodes stand in
// topological order. Ids stay valid when nodes are removed: removed values and nodes are tombstones
// until compact() is called.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/expr.h"
#include "base/ir/attributes.h"
#include "base/ir/constant.h"
#include "base/ir/limits.h"
#include "base/ir/ops.h"

namespace ark {

using ValueId = int32_t;
using NodeId = int32_t;
inline constexpr ValueId kNoValue = -1;
inline constexpr NodeId kNoNode = -1;
inline constexpr int64_t kMaxElements = 4096;  // of Value::elements

struct Value {
  std::string name;  // as in the file, or derived; unique only as a matter of courtesy
  DType dtype = DType::kUndefined;
  std::optional<Shape> shape;  // nullopt: rank unknown
  ConstantPtr constant;        // set for weights and folded values
  NodeId producer = kNoNode;   // kNoNode for inputs and constants
  // For small integer tensors (rank 0 or 1) whose elements are known symbolically: one Expr an element.
  std::optional<std::vector<Expr>> elements;
};

struct Graph;

struct Node {
  Op op = Op::kIdentity;
  std::string name;  // "/model/layers.0/attn/MatMul (MatMul)": the ONNX node it stems from, for messages
  std::vector<ValueId> inputs;   // kNoValue for absent optional inputs
  std::vector<ValueId> outputs;  // kNoValue for outputs nobody wants
  Attributes attributes;
  std::vector<std::shared_ptr<Graph>> subgraphs;  // If: then, else; Loop, Scan: body
  bool removed = false;

  // kNoValue where there is none, also behind the last.
  ValueId input(std::size_t i) const { return i < inputs.size() ? inputs[i] : kNoValue; }
  ValueId output(std::size_t i) const { return i < outputs.size() ? outputs[i] : kNoValue; }
};

struct Graph {
  std::string name;
  std::vector<Value> values;
  std::vector<Node> nodes;  // topological order among those not removed
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  // As in the file, one an output (values may be merged or passed through).
  std::vector<std::string> output_names;
  // What constant folding may still make; shared with subgraphs, never null.
  std::shared_ptr<FoldBudget> folding = std::make_shared<FoldBudget>();
  // Fresh ones made so far; shared with subgraphs.
  std::shared_ptr<int64_t> symbols = std::make_shared<int64_t>(0);
  // Equalities between sizes that the graph needs to hold; passes/unify_symbols.cc solves them where it can. What is
  // left must hold for the dims of a call's inputs (who runs the graph checks it).
  std::vector<std::pair<Expr, Expr>> assumptions;
  // Inputs (by name) that nothing reads, since the graph was built for one value of them (importer/input_facts.cc).
  std::vector<std::pair<std::string, int64_t>> settled;
  // Subgraphs read outer values by these: captured[i].first is the outer id, .second the id in here.
  std::vector<std::pair<ValueId, ValueId>> captured;

  ValueId add_value(std::string name, DType dtype, std::optional<Shape> shape);
  ValueId add_constant(ConstantPtr constant);
  // Appends a node and its fresh outputs (typed by the caller or by infer).
  NodeId add_node(Op op, std::string name, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
                  Attributes attributes = {});
  const Value& value(ValueId id) const { return values[id]; }
  Value& value(ValueId id) { return values[id]; }
  const Node& node(NodeId id) const { return nodes[id]; }
  Node& node(NodeId id) { return nodes[id]; }
  const Node* producer(ValueId id) const;  // nullptr for inputs, constants, kNoValue

  // Readers of each value (node ids, once per reading node), recomputed on each call.
  std::vector<std::vector<NodeId>> consumers() const;
  void replace_uses(ValueId from, ValueId to);  // in nodes' inputs and graph outputs
  bool merge_constants();                       // one value for constants of one content; whether any merged
  void remove_dead();                           // nodes none of whose outputs reach an output
  void sort();                                  // restores topological order; Error(kBadModel) on a cycle
  void compact();                               // drops tombstones and unused values, renumbers

  // One line a node: `%12 f32[batch, seq, 64] = MatMul(%10, %11) {trans_b=1}  # name`.
  std::string str() const;
};

// Structure, types and ranks hold together: ids in range, single producers, topological order, every
// input produced before use. Throws Error(kInternal) naming the node and `after` (the pass that ran).
void verify(const Graph& graph, std::string_view after);

}  // namespace ark
