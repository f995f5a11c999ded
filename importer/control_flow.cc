// If, Loop and Scan: bodies become graphs of their own that capture outer values by name.
#include "base/error.h"
#include "base/ir/keys.h"
#include "importer/builder.h"
#include "importer/op_importer.h"

namespace ark {
namespace {

const onnx::Graph& graph_attribute(const onnx::Node& node, const char* name, const std::string& label) {
  const onnx::Attribute* a = node.attribute(name);
  if (!a || !a->g) throw Error(Code::kBadModel, "node " + label + ": attribute '" + name + "' is no graph");
  return *a->g;
}

std::optional<int64_t> known_scalar(const Graph& graph, ValueId id) {
  if (id == kNoValue) return std::nullopt;
  const Value& v = graph.value(id);
  if (v.elements && v.elements->size() == 1) return v.elements->front().constant();
  if (v.constant && v.constant->size() == 1) return materialise(*v.constant).integer(0);
  return std::nullopt;
}

bool is_true(const onnx::TensorRef& tensor) {
  return tensor.constant && tensor.constant->dtype == DType::kBool && tensor.constant->size() == 1 &&
         materialise(*tensor.constant).integer(0) != 0;
}

// The body hands on its condition input, or a constant true: only the trip count ends the loop.
bool never_breaks(const onnx::Graph& body) {
  if (body.outputs.empty() || body.inputs.size() < 2) return false;
  std::string name = body.outputs[0].name;
  for (std::size_t hops = 0; hops <= body.nodes.size(); ++hops) {
    if (name == body.inputs[1].name) return true;
    for (const onnx::TensorRef& t : body.initializers)
      if (t.name == name) return is_true(t);
    const onnx::Node* producer = nullptr;
    for (const onnx::Node& n : body.nodes)
      if (n.outputs.size() == 1 && n.outputs[0] == name) producer = &n;
    if (!producer) return false;
    if (producer->op_type == "Constant") {
      const onnx::Attribute* value = producer->attribute("value");
      return value && is_true(value->t);
    }
    if (producer->op_type != "Identity" || producer->inputs.size() != 1) return false;
    name = producer->inputs[0];
  }
  return false;
}

}  // namespace

bool Builder::add_control_flow(Scope& scope, const onnx::Node& node, const std::string& label) {
  if (!node.domain.empty()) return false;
  if (node.op_type == "If")
    add_if(scope, node, label);
  else if (node.op_type == "Loop")
    add_loop(scope, node, label);
  else if (node.op_type == "Scan")
    add_scan(scope, node, label);
  else
    return false;
  return true;
}

std::shared_ptr<Graph> Builder::subgraph(Scope& scope, const onnx::Graph& graph,
                                         const std::vector<BodyInput>& inputs, const std::string& label,
                                         int64_t trips) {
  if (scope.depth >= limits_.max_nesting)
    throw Error(Code::kBadModel, "node " + label + ": more than " + std::to_string(limits_.max_nesting) +
                                     " levels of calls and subgraphs (max_nesting)");
  if (graph.inputs.size() != inputs.size())
    throw Error(Code::kBadModel, "node " + label + ": its body has " + std::to_string(graph.inputs.size()) +
                                     " inputs instead of " + std::to_string(inputs.size()));
  auto result = std::make_shared<Graph>();
  result->name = graph.name;
  result->folding = scope.graph.folding;
  result->symbols = scope.graph.symbols;
  Scope body{*result, &scope, scope.opsets, scope.attributes, scope.prefix, scope.depth + 1, trips};
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const DType declared = dtype_numbered(graph.inputs[i].type.element_type);
    if (declared != DType::kUndefined && declared != inputs[i].dtype)
      throw Error(Code::kBadModel, "node " + label + ": its body's input " + std::to_string(i) +
                                       " is declared " + std::string(name_of(declared)) + ", but is given " +
                                       std::string(name_of(inputs[i].dtype)));
    const ValueId id = result->add_value(graph.inputs[i].name, inputs[i].dtype, inputs[i].shape);
    result->inputs.push_back(id);
    const onnx::Type& type = graph.inputs[i].type;
    const ValueId seen =
        inputs[i].may_be_row && type.has_shape && type.dims.size() == 1
            ? emit(*result, Op::kReshape, graph.inputs[i].name, {id}, {{key::kShape, Shape{Expr(1)}}})[0]
            : id;
    define(body, graph.inputs[i].name, seen, "a body input of node " + label);
  }
  add_initializers(body, graph);
  add_nodes(body, graph.nodes);
  add_outputs(body, graph);
  return result;
}

void Builder::finish_control_flow(Scope& scope, Op op, const onnx::Node& node, const std::string& label,
                                  std::vector<ValueId> inputs, std::vector<std::shared_ptr<Graph>> subgraphs,
                                  Attributes attributes) {
  const std::size_t first_new = scope.graph.values.size();
  std::vector<ValueId> outputs;
  for (const std::string& name : node.outputs)
    outputs.push_back(name.empty() ? kNoValue : scope.graph.add_value(name, DType::kUndefined, std::nullopt));
  const NodeId id = scope.graph.add_node(op, label, std::move(inputs), outputs, std::move(attributes));
  scope.graph.node(id).subgraphs = std::move(subgraphs);
  infer_node(scope.graph, id);
  name_outputs(scope, node, outputs, first_new, label);
}

// The condition is known: the branch's nodes join the graph around it.
void Builder::inline_branch(Scope& scope, const onnx::Node& node, const onnx::Graph& branch,
                            const std::string& label) {
  if (scope.depth >= limits_.max_nesting)
    throw Error(Code::kBadModel, "node " + label + ": more than " + std::to_string(limits_.max_nesting) +
                                     " levels of calls and subgraphs (max_nesting)");
  Scope body{scope.graph, &scope, scope.opsets, scope.attributes, scope.prefix, scope.depth + 1, scope.trips};
  add_initializers(body, branch);
  add_nodes(body, branch.nodes);
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i].empty()) continue;
    const auto id = find(body, branch.outputs[i].name, "node " + label);
    if (!id || *id == kNoValue)
      throw Error(Code::kBadModel,
                  "node " + label + ": its branch does not produce output " + std::to_string(i));
    define(scope, node.outputs[i], *id, "node " + label);
  }
}

void Builder::add_if(Scope& scope, const onnx::Node& node, const std::string& label) {
  const onnx::Graph& then_branch = graph_attribute(node, "then_branch", label);
  const onnx::Graph& else_branch = graph_attribute(node, "else_branch", label);
  const std::vector<ValueId> inputs = inputs_of(scope, node, label);
  if (const auto condition = known_scalar(scope.graph, inputs[0]))
    return inline_branch(scope, node, *condition ? then_branch : else_branch, label);
  std::vector<std::shared_ptr<Graph>> subgraphs = {subgraph(scope, then_branch, {}, label, scope.trips),
                                                   subgraph(scope, else_branch, {}, label, scope.trips)};
  finish_control_flow(scope, Op::kIf, node, label, inputs, std::move(subgraphs), {});
}

// The body, for state of any size that occurs: where the first attempt shows that a size changes from trip to
// trip, it becomes a symbol of the body's own ("this trip's size"), and the body is built again.
std::shared_ptr<Graph> Builder::stable_body(Scope& scope, const onnx::Graph& body,
                                            std::vector<BodyInput> inputs, std::size_t first_state,
                                            std::size_t states, std::size_t first_output,
                                            const std::string& label, int64_t trips) {
  std::vector<std::vector<bool>> varies(states);  // by state and axis
  for (;;) {
    auto graph = subgraph(scope, body, inputs, label, trips);
    bool stable = true;
    for (std::size_t i = 0; i < states; ++i) {
      BodyInput& state = inputs[first_state + i];
      const Value& next = graph->value(graph->outputs[first_output + i]);
      if (next.dtype != state.dtype)
        throw Error(Code::kBadModel, "node " + label + ": state " + std::to_string(i) +
                                         " changes its type from " + std::string(name_of(state.dtype)) +
                                         " to " + std::string(name_of(next.dtype)));
      if (!state.shape) continue;
      if (!next.shape || next.shape->size() != state.shape->size()) {
        state.shape.reset();
        stable = false;
        continue;
      }
      varies[i].resize(state.shape->size());
      for (std::size_t d = 0; d < state.shape->size(); ++d) {
        if (varies[i][d] || (*state.shape)[d] == (*next.shape)[d]) continue;
        (*state.shape)[d] = Expr::symbol("state_" + std::to_string((*graph->symbols)++));
        varies[i][d] = true;
        stable = false;
      }
    }
    if (stable) return graph;  // ends: each attempt makes at least one more size or rank unknown
  }
}

void Builder::add_loop(Scope& scope, const onnx::Node& given, const std::string& label) {
  std::vector<std::string> collected;
  const onnx::Node node = with_collected(scope, given, &collected);
  const onnx::Graph& body = graph_attribute(node, "body", label);
  const std::vector<ValueId> inputs = inputs_of(scope, node, label);
  const std::size_t states = inputs.size() - 2;
  if (node.outputs.size() < states)
    throw Error(Code::kBadModel, "node " + label + ": has fewer outputs than values carried around");
  int64_t trips = scope.trips;
  const auto count = known_scalar(scope.graph, inputs[0]);
  const bool starts = inputs[1] == kNoValue || known_scalar(scope.graph, inputs[1]).value_or(0) != 0;
  if (count && *count > 0 && starts && never_breaks(body)) {
    if (*count > limits_.max_loop_trips / trips)
      throw Error(Code::kBadModel, "node " + label + ": a constant trip count of " + std::to_string(*count) +
                                       (trips > 1 ? " inside of " + std::to_string(trips) + " trips" : "") +
                                       "; at most " + std::to_string(limits_.max_loop_trips) +
                                       " (max_loop_trips)");
    trips *= *count;
  }
  // The number of the trip and the condition: tf2onnx's bodies slice by the former, of rank 1, as ONNX Runtime has it.
  std::vector<BodyInput> body_inputs = {{DType::kI64, Shape{}, true}, {DType::kBool, Shape{}, true}};
  for (std::size_t i = 2; i < inputs.size(); ++i) {
    if (inputs[i] == kNoValue)
      throw Error(Code::kBadModel, "node " + label + ": state without a first value");
    body_inputs.push_back({scope.graph.value(inputs[i]).dtype, scope.graph.value(inputs[i]).shape});
  }
  auto graph = stable_body(scope, body, std::move(body_inputs), 2, states, 1, label, trips);
  if (const DType going = graph->value(graph->outputs[0]).dtype; going != DType::kBool)
    throw Error(Code::kBadModel,
                "node " + label + ": its body's condition is " + std::string(name_of(going)) + ", not bool");
  finish_control_flow(scope, Op::kLoop, node, label, inputs, {std::move(graph)}, {});
  for (const std::string& name : collected) add_stack(scope, name, 0, label);
}

void Builder::add_scan(Scope& scope, const onnx::Node& node, const std::string& label) {
  if (opset_of(scope, node) < 9)
    throw Error(Code::kUnsupported, "node " + label + ": Scan of opset 8; export with opset 9 or later");
  const onnx::Graph& body = graph_attribute(node, "body", label);
  const std::vector<ValueId> inputs = inputs_of(scope, node, label);
  OpContext context(scope.graph, node, 9, label, inputs);
  const int64_t scans = context.attr_int("num_scan_inputs", 0);
  if (scans < 1 || scans > static_cast<int64_t>(inputs.size()))
    context.fail("num_scan_inputs is out of range");
  const std::size_t states = inputs.size() - static_cast<std::size_t>(scans);
  if (node.outputs.size() < states) context.fail("has fewer outputs than values carried around");
  const auto list = [&](const char* name, std::size_t size) {
    auto values = context.attr_ints(name, std::vector<int64_t>(size, 0));
    if (values.size() != size)
      context.fail(std::string("attribute '") + name + "' has another length than needed");
    return values;
  };
  const auto directions = [&](const char* name, std::size_t size) {
    auto values = list(name, size);
    for (const int64_t v : values)
      if (v < 0 || v > 1)
        context.fail(std::string("attribute '") + name + "' has direction " + std::to_string(v) +
                     "; 0 is forward, 1 backward");
    return values;
  };
  const std::size_t outs = node.outputs.size() - std::min(states, node.outputs.size());
  const auto axes = list("scan_input_axes", static_cast<std::size_t>(scans));
  Attributes attributes = {
      {key::kNumScanInputs, scans},
      {key::kScanInputAxes, axes},
      {key::kScanInputDirections, directions("scan_input_directions", static_cast<std::size_t>(scans))},
      {key::kScanOutputAxes, list("scan_output_axes", outs)},
      {key::kScanOutputDirections, directions("scan_output_directions", outs)}};
  std::vector<BodyInput> body_inputs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Value& v = scope.graph.value(context.input(i));
    BodyInput in{v.dtype, v.shape};
    if (i >= states && in.shape) {
      const int64_t axis = context.axis(axes[i - states], static_cast<int>(in.shape->size()));
      in.shape->erase(in.shape->begin() + axis);
    }
    body_inputs.push_back(std::move(in));
  }
  auto graph = stable_body(scope, body, std::move(body_inputs), 0, states, 0, label, scope.trips);
  finish_control_flow(scope, Op::kScan, node, label, inputs, {std::move(graph)}, std::move(attributes));
}

}  // namespace ark
