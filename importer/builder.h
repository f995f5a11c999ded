// From ONNX structs to the canonical graph. Private to the importer: use build_graph (importer/import.h).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "importer/import.h"
#include "importer/input_reach.h"

namespace ark {

// What a file does not say of its inputs, by name (input_facts.cc finds out).
struct InputFacts {
  input_reach::InputAxes misnamed;             // whose sizes are not what their names say
  std::map<std::string, ConstantPtr> settled;  // read as this constant; they stay inputs that nothing reads
};

// Symbolic sizes of the graph's inputs: the same dim_param is the same symbol, nameless dims and `misnamed` axes
// get their own. Where no input holds integers, two inputs share none: ONNX Runtime takes 1 and n by one name
// where they broadcast.
class InputSizes {
 public:
  InputSizes(const onnx::Graph& graph, const std::map<std::string, int64_t>& fixed,
             input_reach::InputAxes misnamed = {});
  Expr size(const onnx::ValueInfo& input, std::size_t axis);

 private:
  Expr symbol(const std::string& input, const std::string& parameter);
  std::optional<Expr> sum_of_known(const std::string& parameter);
  std::string unique(std::string wanted);

  struct Named {
    Expr size;          // a symbol, a sum or a fixed size
    std::string owner;  // the input that names it first, if others by that name are not the same; else ""
  };
  std::map<std::string, Named> by_parameter_;  // as in the file
  // By (input, parameter), of inputs that name it, too.
  std::map<std::pair<std::string, std::string>, Expr> others_;
  bool is_shared_ = false;             // names stand for one size in all inputs
  std::map<std::string, bool> taken_;  // symbols given out
  input_reach::InputAxes misnamed_;
};

// The file's functions by identity, with the guard against expansion bombs.
class FunctionTable {
 public:
  FunctionTable(const onnx::Model& model, const Limits& limits);
  const onnx::Function* find(const onnx::Node& call) const;
  // Throws Error(kBadModel) if calling all functions of `graph` makes too many nodes, or any function of the
  // file calls too deep or itself.
  void check_expansion(const onnx::Graph& graph);

 private:
  int64_t nodes_of(const std::vector<onnx::Node>& nodes, int depth);
  int64_t nodes_of(const onnx::Function& function, int depth);

  const Limits& limits_;
  std::map<std::string, const onnx::Function*> functions_;
  std::map<const onnx::Function*, int64_t> sizes_;  // -1 while being counted
};

// Indices of `nodes` in an order in which names are produced before they are read; file order where that will
// do. Throws Error(kBadModel) on a cycle, and on names that are produced twice.
std::vector<std::size_t> execution_order(const std::vector<onnx::Node>& nodes);

// Throws Error(kBadModel) for what every run would meet, and can be seen now: integers divided by a stored zero, and
// bombs: what the graph computes from constants alone, and was too large to fold, beyond the limits.
void check_generated(const Graph& graph, const Limits& limits);

class Builder {
 public:
  Builder(const onnx::Model& model, const ImportOptions& options, InputFacts facts = {});
  Graph build();

 private:
  using FunctionAttributes = std::map<std::string, const onnx::Attribute*, std::less<>>;

  // Names visible at one place: of a graph, of a subgraph (sees its outer scope), or of a function body.
  struct Scope {
    Graph& graph;
    Scope* outer = nullptr;
    const std::map<std::string, int64_t>& opsets;
    const FunctionAttributes* attributes = nullptr;  // what ref_attr_name means in here
    std::string prefix;                              // of labels and names: the calls that led here
    int depth = 0;                                   // subgraphs and calls around
    int64_t trips = 1;  // product of the constant trip counts of the loops around
    std::unordered_map<std::string, ValueId> names{};
    std::unordered_map<std::string, ValueId> captures{};
    std::unordered_map<std::string, std::string> unusable{};  // name -> what it is instead of a tensor
    std::unordered_map<std::string, std::vector<ValueId>> sequences{};  // whose length is known at load
    std::unordered_map<std::string, ValueId> labels{};                  // of scores that the file calls a map
    std::unordered_map<std::string, int64_t> stacks{};  // sequences that slice their `stack_name`: the axis
  };

  void add_inputs(Scope& scope, const onnx::Graph& graph);
  void add_initializers(Scope& scope, const onnx::Graph& graph);
  void add_nodes(Scope& scope, const std::vector<onnx::Node>& nodes);
  void add_outputs(Scope& scope, const onnx::Graph& graph);
  void define(Scope& scope, const std::string& name, ValueId id, const std::string& by);
  // The value in scope.graph, captured from outer graphs if need be; nullopt if nothing is called so.
  std::optional<ValueId> find(Scope& scope, const std::string& name, const std::string& reader);
  std::vector<ValueId> inputs_of(Scope& scope, const onnx::Node& node, const std::string& label);

  void add_node(Scope& scope, const onnx::Node& node, std::size_t index);
  void add_operator(Scope& scope, const onnx::Node& node, const std::string& label);
  void add_call(Scope& scope, const onnx::Node& node, const onnx::Function& function,
                const std::string& label);
  onnx::Node with_attributes(const Scope& scope, const onnx::Node& node) const;
  int64_t opset_of(const Scope& scope, const onnx::Node& node) const;
  void name_outputs(Scope& scope, const onnx::Node& node, const std::vector<ValueId>& outputs,
                    std::size_t first_new, const std::string& label);

  // sequences.cc; false: not of sequences, or of none that is known at load
  bool add_sequence_operator(Scope& scope, const onnx::Node& node, const std::string& label);
  void add_stack(Scope& scope, const std::string& name, int64_t axis, const std::string& label);
  bool read_stack(Scope& scope, const onnx::Node& node, const std::string& label);
  // The loop without the sequences that begin empty and gain one tensor a trip: these tensors become scan
  // outputs, and the names of the sequences go to `collected`.
  onnx::Node with_collected(const Scope& scope, const onnx::Node& loop,
                            std::vector<std::string>* collected) const;

  // control_flow.cc
  bool add_control_flow(Scope& scope, const onnx::Node& node, const std::string& label);
  void add_if(Scope& scope, const onnx::Node& node, const std::string& label);
  void add_loop(Scope& scope, const onnx::Node& node, const std::string& label);
  void add_scan(Scope& scope, const onnx::Node& node, const std::string& label);
  void inline_branch(Scope& scope, const onnx::Node& node, const onnx::Graph& branch,
                     const std::string& label);
  void finish_control_flow(Scope& scope, Op op, const onnx::Node& node, const std::string& label,
                           std::vector<ValueId> inputs, std::vector<std::shared_ptr<Graph>> subgraphs,
                           Attributes attributes);
  struct BodyInput {
    DType dtype;
    std::optional<Shape> shape;
    bool may_be_row = false;  // a scalar that the body sees as [1] where it declares one axis
  };
  std::shared_ptr<Graph> subgraph(Scope& scope, const onnx::Graph& graph,
                                  const std::vector<BodyInput>& inputs, const std::string& label,
                                  int64_t trips);
  std::shared_ptr<Graph> stable_body(Scope& scope, const onnx::Graph& body, std::vector<BodyInput> inputs,
                                     std::size_t first_state, std::size_t states, std::size_t first_output,
                                     const std::string& label, int64_t trips);

  const onnx::Model& model_;
  const ImportOptions& options_;
  const Limits& limits_;
  InputFacts facts_;
  InputSizes sizes_;
  FunctionTable functions_;
  int64_t nodes_ = 0;  // added so far, all graphs together
};

}  // namespace ark
