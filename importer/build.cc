#include "base/error.h"
#include "importer/builder.h"
#include "importer/op_importer.h"
#include "importer/schema.h"

namespace ark {
namespace {

constexpr int64_t kNewestOpset = 28;  // of ai.onnx that the operators' importers were written for

[[noreturn]] void bad(const std::string& why) { throw Error(Code::kBadModel, why); }

void check_type(const std::string& what, const onnx::Type& type, DType computed) {
  const DType declared = dtype_numbered(type.element_type);
  if (type.kind == "tensor" && declared != DType::kUndefined && declared != computed)
    bad(what + " is declared " + std::string(name_of(declared)) + " but computed as " +
        std::string(name_of(computed)));
}

// An initializer is what the input of its name says.
void check_default(const onnx::ValueInfo& input, const Value& value) {
  const std::string what = "initializer '" + escaped(input.name) + "'";
  check_type(what, input.type, value.dtype);
  const Dims& have = value.constant->dims;
  bool fits = have.size() == input.type.dims.size();
  for (std::size_t i = 0; fits && i < have.size(); ++i)
    fits = input.type.dims[i].value < 0 || input.type.dims[i].value == have[i];
  if (input.type.has_shape && !fits)
    bad(what + " has shape " + str(*value.shape) + ", which the graph input of its name does not declare");
}

}  // namespace

Builder::Builder(const onnx::Model& model, const ImportOptions& options, InputFacts facts)
    : model_(model),
      options_(options),
      limits_(options.limits),
      facts_(std::move(facts)),
      sizes_(model.graph, options.fixed_dims, facts_.misnamed),
      functions_(model, options.limits) {}

Graph Builder::build() {
  for (const auto& [domain, version] : model_.opsets)
    if (domain.empty() && (version < 1 || version > kNewestOpset))
      throw Error(Code::kUnsupported, "opset " + std::to_string(version) + " of ai.onnx; ark knows 1 to " +
                                          std::to_string(kNewestOpset) +
                                          ": convert with onnx.version_converter");
  Graph graph;
  graph.name = model_.graph.name;
  *graph.folding = {limits_.max_folded_elements, limits_.max_folded_total, limits_.max_folded_work};
  Scope scope{graph, nullptr, model_.opsets, nullptr, ""};
  add_initializers(scope, model_.graph);
  add_inputs(scope, model_.graph);
  add_nodes(scope, model_.graph.nodes);
  add_outputs(scope, model_.graph);
  for (const onnx::ValueInfo& output : model_.graph.outputs)
    if (const auto it = scope.labels.find(output.name);
        it != scope.labels.end()) {  // behind those of the file
      graph.outputs.push_back(it->second);
      graph.output_names.push_back(output.name + ".labels");
    }
  return graph;
}

// An input that is also an initializer has a default value (before IR version 4: is a weight): a constant.
void Builder::add_inputs(Scope& scope, const onnx::Graph& graph) {
  const std::unordered_map<std::string, ValueId> initializers = scope.names;
  for (const onnx::ValueInfo& input : graph.inputs) {
    if (const auto it = initializers.find(input.name); it != initializers.end())
      check_default(input, scope.graph.value(it->second));
    if (initializers.contains(input.name) || scope.unusable.contains(input.name)) continue;
    const DType dtype = dtype_numbered(input.type.element_type);
    if (input.type.kind != "tensor")
      scope.unusable[input.name] = "a value of kind " + escaped(input.type.kind);
    else if (dtype == DType::kUndefined)
      scope.unusable[input.name] = "of element type " + onnx::element_type_name(input.type.element_type);
    if (scope.unusable.contains(input.name)) continue;
    std::optional<Shape> shape;
    if (input.type.has_shape) {
      shape.emplace();
      for (std::size_t axis = 0; axis < input.type.dims.size(); ++axis)
        shape->push_back(sizes_.size(input, axis));
    }
    const ValueId id = scope.graph.add_value(input.name, dtype, std::move(shape));
    const auto settled = facts_.settled.find(input.name);
    define(scope, input.name,
           settled == facts_.settled.end() ? id : scope.graph.add_constant(settled->second), "a graph input");
    scope.graph.inputs.push_back(id);
  }
}

void Builder::add_initializers(Scope& scope, const onnx::Graph& graph) {
  for (const onnx::TensorRef& tensor : graph.initializers)
    define(scope, tensor.name, scope.graph.add_constant(tensor.constant), "an initializer");
}

void Builder::add_nodes(Scope& scope, const std::vector<onnx::Node>& nodes) {
  for (const std::size_t i : execution_order(nodes)) add_node(scope, nodes[i], i);
}

void Builder::add_outputs(Scope& scope, const onnx::Graph& graph) {
  for (const onnx::ValueInfo& output : graph.outputs) {
    const std::string what = "graph output '" + escaped(output.name) + "'";
    const auto id = find(scope, output.name, what);
    if (!id || *id == kNoValue) bad(what + " is produced by no node");
    check_type(what, output.type, scope.graph.value(*id).dtype);
    scope.graph.outputs.push_back(*id);
    scope.graph.output_names.push_back(output.name);
  }
  // What the file says of values between: of their types only, as ONNX Runtime.
  std::unordered_map<std::string_view, const onnx::Type*> declared;
  for (const onnx::ValueInfo& info : graph.value_infos) declared.emplace(info.name, &info.type);
  for (const onnx::Node& node : graph.nodes)
    for (const std::string& name : node.outputs)
      if (const auto it = declared.find(name); it != declared.end() && scope.names.contains(name))
        check_type("value '" + escaped(name) + "'", *it->second, scope.graph.value(scope.names[name]).dtype);
}

void Builder::define(Scope& scope, const std::string& name, ValueId id, const std::string& by) {
  if (!scope.names.emplace(name, id).second || scope.unusable.contains(name))
    bad("value '" + escaped(name) + "' is defined twice, the second time by " + by +
        "; ONNX graphs assign each name once");
  if (static_cast<int64_t>(scope.graph.values.size()) > limits_.max_values)
    bad("the graph has more than " + std::to_string(limits_.max_values) + " values (max_values)");
}

std::optional<ValueId> Builder::find(Scope& scope, const std::string& name, const std::string& reader) {
  if (const auto it = scope.names.find(name); it != scope.names.end()) return it->second;
  if (const auto it = scope.captures.find(name); it != scope.captures.end()) return it->second;
  if (const auto it = scope.unusable.find(name); it != scope.unusable.end())
    throw Error(Code::kUnsupported, reader + " reads '" + escaped(name) + "', which is " + it->second +
                                        "; ark computes with dense tensors only");
  if (!scope.outer) return std::nullopt;
  const auto outer = find(*scope.outer, name, reader);
  if (!outer || *outer == kNoValue || &scope.outer->graph == &scope.graph) return outer;
  const Value& value = scope.outer->graph.value(*outer);
  ValueId id = kNoValue;
  if (value.constant) {
    id = scope.graph.add_constant(value.constant);
  } else {
    id = scope.graph.add_value(value.name, value.dtype, value.shape);
    scope.graph.value(id).elements = value.elements;
    scope.graph.captured.emplace_back(*outer, id);
  }
  scope.captures.emplace(name, id);
  return id;
}

std::vector<ValueId> Builder::inputs_of(Scope& scope, const onnx::Node& node, const std::string& label) {
  std::vector<ValueId> inputs;
  for (const std::string& name : node.inputs) {
    const auto id = name.empty() ? kNoValue : find(scope, name, "node " + label);
    if (!id) bad("node " + label + " reads '" + escaped(name) + "', which nothing produces");
    inputs.push_back(*id);
  }
  if (functions_.find(node)) return inputs;
  std::vector<DType> types;
  for (const ValueId id : inputs) {
    types.push_back(id == kNoValue ? DType::kUndefined : scope.graph.value(id).dtype);
    if (id == kNoValue) continue;
    if (const auto& shape = scope.graph.value(id).shape)
      onnx::check_input_rank(node, label, types.size() - 1, shape->size());
  }
  onnx::check_input_types(node, opset_of(scope, node), label, types);
  return inputs;
}

void Builder::add_node(Scope& scope, const onnx::Node& node, std::size_t index) {
  const std::string label = onnx::label_of(scope.prefix, node, index);
  if (++nodes_ > limits_.max_nodes)
    bad("node " + label + ": more than " + std::to_string(limits_.max_nodes) +
        " nodes after inlining functions and subgraphs (max_nodes)");
  try {
    const bool copies = std::any_of(node.attributes.begin(), node.attributes.end(),
                                    [](const onnx::Attribute& a) { return !a.ref_attr_name.empty(); });
    std::optional<onnx::Node> resolved;
    if (copies) resolved = with_attributes(scope, node);
    const onnx::Node& n = resolved ? *resolved : node;
    if (const onnx::Function* function = functions_.find(n))
      add_call(scope, n, *function, label);
    else if (!add_control_flow(scope, n, label) && !add_sequence_operator(scope, n, label))
      add_operator(scope, n, label);
  } catch (const Error& e) {
    // Tensors are sized by the file here: memory that cannot be had is the file's fault.
    const Code code =
        e.code() == Code::kExhausted || e.code() == Code::kInvalidArgument ? Code::kBadModel : e.code();
    const std::string message = e.what();
    const bool located = message.starts_with("node ") || message.starts_with("graph output");
    throw Error(code, located ? message : "node " + label + ": " + message);
  }
}

int64_t Builder::opset_of(const Scope& scope, const onnx::Node& node) const {
  const auto it = scope.opsets.find(node.domain);
  if (it != scope.opsets.end()) return it->second;
  return 1;  // com.microsoft (check_model)
}

void Builder::add_operator(Scope& scope, const onnx::Node& node, const std::string& label) {
  const int64_t opset = opset_of(scope, node);
  const OpImporter import = find_op_importer(node.domain, node.op_type);
  if (!import && node.domain == "com.microsoft.nchwc")
    throw Error(Code::kUnsupported,
                "node " + label +
                    ": ONNX Runtime saved this file for one kind of processor (its weights lie in blocks); "
                    "save it again with ORT_ENABLE_EXTENDED instead of ORT_ENABLE_ALL");
  if (!import) onnx::refuse_unknown(node, opset, label);
  if (node.outputs.empty()) bad("node " + label + " has no outputs");
  const std::size_t first_new = scope.graph.values.size();
  OpContext context(scope.graph, node, opset, label, inputs_of(scope, node, label));
  import(context);
  name_outputs(scope, node, context.outputs, first_new, label);
  if (context.labels != kNoValue) scope.labels.emplace(node.outputs[0], context.labels);
}

void Builder::name_outputs(Scope& scope, const onnx::Node& node, const std::vector<ValueId>& outputs,
                           std::size_t first_new, const std::string& label) {
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i].empty()) continue;
    const ValueId id = i < outputs.size() ? outputs[i] : kNoValue;
    if (id == kNoValue)
      throw Error(Code::kUnsupported, "node " + label + ": output " + std::to_string(i) + " '" +
                                          escaped(node.outputs[i]) + "' is not computed by ark");
    if (static_cast<std::size_t>(id) >= first_new)
      scope.graph.value(id).name = scope.prefix + node.outputs[i];
    define(scope, node.outputs[i], id, "node " + label);
  }
}

onnx::Node Builder::with_attributes(const Scope& scope, const onnx::Node& node) const {
  onnx::Node resolved = node;
  resolved.attributes.clear();
  for (const onnx::Attribute& a : node.attributes) {
    if (a.ref_attr_name.empty()) {
      resolved.attributes.push_back(a);
      continue;
    }
    const auto it = scope.attributes->find(a.ref_attr_name);
    if (it == scope.attributes->end())
      continue;  // not given and no default: the operator's own default holds
    resolved.attributes.push_back(*it->second);
    resolved.attributes.back().name = a.name;
  }
  return resolved;
}

void Builder::add_call(Scope& scope, const onnx::Node& node, const onnx::Function& function,
                       const std::string& label) {
  if (scope.depth >= limits_.max_nesting)
    bad("node " + label + ": more than " + std::to_string(limits_.max_nesting) +
        " levels of calls and subgraphs (max_nesting)");
  FunctionAttributes attributes;
  for (const onnx::Attribute& a : function.attribute_defaults) attributes[a.name] = &a;
  for (const onnx::Attribute& a : node.attributes) attributes[a.name] = &a;
  const std::string prefix = scope.prefix + (node.name.empty() ? node.op_type : node.name) + "/";
  Scope body{scope.graph,     nullptr,    function.opsets, &attributes, prefix.substr(0, 1024),
             scope.depth + 1, scope.trips};
  const std::vector<ValueId> inputs = inputs_of(scope, node, label);
  for (std::size_t i = 0; i < function.inputs.size(); ++i)
    define(body, function.inputs[i], i < inputs.size() ? inputs[i] : kNoValue,
           "function " + escaped(function.name));
  add_nodes(body, function.nodes);
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i].empty()) continue;
    const auto id = find(body, function.outputs[i], "node " + label);
    if (!id || *id == kNoValue)
      bad("node " + label + ": function " + escaped(function.name) + " does not produce its output '" +
          escaped(function.outputs[i]) + "'");
    define(scope, node.outputs[i], *id, "node " + label);
  }
}

}  // namespace ark
