// Inference of one node at a time, and emit(): append, infer, fold.
#include "importer/infer.h"

#include <algorithm>

#include "base/error.h"
#include "base/ir/keys.h"
#include "base/ir/limits.h"
#include "base/ir/shape_rules/rules.h"
#include "base/ir/work.h"
#include "importer/fold.h"
#include "importer/op_importer.h"

namespace ark {
namespace {

using shape_rules::Context;

bool all_inputs_constant(const Graph& graph, const Node& node) {
  for (const ValueId id : node.inputs)
    if (id != kNoValue && !graph.value(id).constant) return false;
  return true;
}

// A file must not ask for absurd tensors: sizes that are known at load are checked here, before anything of
// that size exists. A tensor made from sizes alone costs the file nothing, so less is allowed of it.
void check_size(const Graph& graph, const Node& node, const Value& value) {
  if (!value.shape || value.dtype == DType::kUndefined) return;
  const auto count = element_count(*value.shape).constant();
  if (!count) return;
  const Limits limits;
  const bool generated = is_one_of(node.op, {Op::kConstantOfShape, Op::kExpand, Op::kTile, Op::kRange,
                                             Op::kPad, Op::kOneHot, Op::kResize});
  const bool cheap = generated && all_inputs_constant(graph, node);
  const int64_t limit = cheap ? limits.max_generated_bytes : limits.max_tensor_bytes;
  if (*count <= limit && bytes_of(value.dtype, *count) <= limit) return;
  throw Error(Code::kBadModel, "node " + escaped(node.name) + ": makes a tensor of shape " +
                                   str(*value.shape) + " (" + std::string(name_of(value.dtype)) +
                                   "), more than " + std::to_string(limit) + " bytes (" +
                                   (cheap ? "max_generated_bytes" : "max_tensor_bytes") +
                                   "): the file is broken, or the limit too low");
}

std::vector<DType> output_types(const Graph& graph, const Node& node) {
  std::vector<DType> types;
  for (const ValueId id : node.outputs)
    types.push_back(id == kNoValue ? DType::kUndefined : graph.value(id).dtype);
  return types;
}

void become_constants(Graph& graph, NodeId id, std::vector<ConstantPtr> constants) {
  Node& node = graph.node(id);
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] == kNoValue) continue;
    Value& value = graph.value(node.outputs[i]);
    value.constant = std::move(constants[i]);
    value.dtype = value.constant->dtype;
    value.shape = Shape(value.constant->dims.begin(), value.constant->dims.end());
    value.producer = kNoNode;
    value.elements.reset();  // elements_of() reads the constant
  }
  node.removed = true;
}

// Elements known as numbers: a constant.
ConstantPtr constant_of_elements(const Value& value) {
  if (!value.elements) return nullptr;
  const auto known = constants_of(*value.elements);
  if (!known) return nullptr;
  const Dims& numbers = *known;
  const Dims dims = value.shape && value.shape->empty() ? Dims{} : Dims{static_cast<int64_t>(numbers.size())};
  switch (value.dtype) {
    case DType::kI64:
      return make_constant(Tensor::of<int64_t>(value.dtype, dims, numbers), value.name);
    case DType::kI32: {
      const std::vector<int32_t> narrow(numbers.begin(), numbers.end());
      return make_constant(Tensor::of<int32_t>(value.dtype, dims, narrow), value.name);
    }
    case DType::kBool: {
      const std::vector<uint8_t> narrow(numbers.begin(), numbers.end());
      return make_constant(Tensor::of<uint8_t>(value.dtype, dims, narrow), value.name);
    }
    default:
      return nullptr;
  }
}

// A part that the file asks for, which may lie outside.
ConstantPtr part_of(const Node& node, const ConstantPtr& x, int64_t axis, int64_t begin, int64_t end) {
  const int64_t size = x->dims.at(static_cast<std::size_t>(axis));
  if (begin < 0 || end < begin || end > size)
    throw Error(Code::kBadModel, "node " + escaped(node.name) + ": takes " + std::to_string(begin) + " to " +
                                     std::to_string(end) + " of an axis of " + std::to_string(size));
  return sliced(x, axis, begin, end);
}

bool fold_views(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.inputs.empty() || node.inputs[0] == kNoValue) return false;
  if (ConstantPtr view = lazy_view(node, graph.value(node.inputs[0]).constant)) {
    become_constants(graph, id, {std::move(view)});
    return true;
  }
  if (node.op != Op::kSplit || !node.attributes.has(key::kSizes) || !graph.value(node.inputs[0]).constant)
    return false;
  std::vector<ConstantPtr> parts;
  int64_t begin = 0;
  for (const Expr& e : node.attributes.get(key::kSizes)) {
    const auto size = e.constant();
    ConstantPtr part = size ? part_of(node, graph.value(node.inputs[0]).constant,
                                      node.attributes.get(key::kAxis), begin, begin + *size)
                            : nullptr;
    if (!part) return false;
    parts.push_back(std::move(part));
    begin += *size;
  }
  become_constants(graph, id, std::move(parts));
  return true;
}

// More than a vector: what is multiplied with. Such weights stay as they are stored, however small.
bool is_matrix(const Value& v) {
  return std::count_if(v.shape->begin(), v.shape->end(), [](const Expr& e) { return !e.is_constant(1); }) > 1;
}

// A result worth computing now: all inputs known, small enough, and not merely a small thing blown up.
bool worth_evaluating(const Graph& graph, const Node& node, int64_t max_elements) {
  if (!can_evaluate(node.op) || !all_inputs_constant(graph, node)) return false;
  int64_t in = 1, out = 0;
  for (const ValueId id : node.inputs)
    if (id != kNoValue) in = std::max(in, graph.value(id).constant->size());
  for (const ValueId id : node.outputs) {
    if (id == kNoValue) continue;
    const Value& value = graph.value(id);
    if (value.dtype == DType::kString) return false;
    // Its size comes with its value, and is bounded by the input's.
    const bool counted = node.op == Op::kNonZero;
    const auto n =
        counted || !value.shape ? std::optional<int64_t>() : element_count(*value.shape).constant();
    if (!n && !counted) return false;
    out = std::max(out, n.value_or(0));
  }
  if (in > max_elements || out > max_elements || !graph.folding->allows(out)) return false;
  constexpr int64_t kSmall = 4096;
  const bool widens = node.op == Op::kCast &&
                      bits_of(output_types(graph, node)[0]) > bits_of(graph.value(node.inputs[0]).dtype);
  if (node.op == Op::kDequantizeLinear && is_matrix(graph.value(node.outputs[0]))) return false;
  if (widens || node.op == Op::kDequantizeLinear) return out <= 16 * kSmall;  // 16-bit weights stay 16-bit
  const bool blows_up = node.op == Op::kExpand || node.op == Op::kConstantOfShape || node.op == Op::kTile;
  return !blows_up || out <= kSmall || out <= in;
}

bool fold_by_evaluation(Graph& graph, NodeId id, int64_t max_elements) {
  if (!worth_evaluating(graph, graph.node(id), max_elements)) return false;
  const Node& node = graph.node(id);
  // A sum is small however much it reads.
  const double work =
      work_of(graph, node, node.attributes, [](const Expr& e) { return e.constant().value_or(0); });
  if (!graph.folding->take_work(work)) return false;
  std::vector<Tensor> inputs;
  for (const ValueId in : node.inputs)
    inputs.push_back(in == kNoValue ? Tensor{} : materialise(*graph.value(in).constant));
  const auto results = evaluate(node, inputs, output_types(graph, node));
  if (!results) return false;
  std::vector<ConstantPtr> constants;
  for (std::size_t i = 0; i < results->size(); ++i) {
    const ValueId out = node.outputs[i];
    graph.folding->take((*results)[i].size());
    constants.push_back(out == kNoValue ? nullptr : make_constant((*results)[i], graph.value(out).name));
  }
  become_constants(graph, id, std::move(constants));
  return true;
}

// Elements known as expressions, of an i64 tensor: the canonical node that makes such tensors.
bool become_dims(Graph& graph, NodeId id) {
  Node& node = graph.node(id);
  if (node.op == Op::kDims || node.outputs.size() != 1 || node.outputs[0] == kNoValue) return false;
  const Value& value = graph.value(node.outputs[0]);
  if (!value.elements || value.dtype != DType::kI64) return false;
  node.op = Op::kDims;
  node.inputs.clear();
  node.attributes = {{key::kValues, *value.elements},
                     {key::kScalar, static_cast<int64_t>(value.shape->empty())}};
  return true;
}

// Elements of an earlier inference that no longer fit the shape.
void drop_stale_elements(Graph& graph, const Node& node) {
  for (const ValueId id : node.outputs) {
    if (id == kNoValue || !graph.value(id).elements) continue;
    Value& v = graph.value(id);
    const Expr count = v.shape ? element_count(*v.shape) : Expr(-1);
    if (!count.is_constant(static_cast<int64_t>(v.elements->size()))) v.elements.reset();
  }
}

}  // namespace

ConstantPtr lazy_view(const Node& node, const ConstantPtr& x) {
  if (!x || node.outputs.size() != 1) return nullptr;
  switch (node.op) {
    case Op::kIdentity:
      return x;
    case Op::kTranspose:
      return transposed(x, node.attributes.get(key::kPerm));
    case Op::kReshape: {
      if (!node.attributes.has(key::kShape)) return nullptr;
      const auto dims = constants_of(node.attributes.get(key::kShape));
      return dims ? reshaped(x, *dims) : nullptr;
    }
    case Op::kSlice: {
      if (!node.attributes.has(key::kStarts)) return nullptr;
      ConstantPtr view = x;
      const auto& axes = node.attributes.get(key::kAxes);
      for (std::size_t i = 0; i < axes.size(); ++i) {
        const auto begin = node.attributes.get(key::kStarts)[i].constant(),
                   end = node.attributes.get(key::kEnds)[i].constant();
        if (!begin || !end || *end < *begin || node.attributes.get(key::kSteps)[i] != 1) return nullptr;
        view = view ? part_of(node, view, axes[i], *begin, *end) : nullptr;
      }
      return view;
    }
    default:
      return nullptr;
  }
}

void infer_node(Graph& graph, NodeId id) {
  Context context(graph, id);
  const Op op = graph.node(id).op;
  const shape_rules::Rule rule = shape_rules::rule_of(op);
  if (!rule) context.fail("operator " + std::string(name_of(op)) + " has no shape rule");
  try {
    rule(context);
    // Numbers are computed by folding, without an expression for each.
    if (!(is_pointwise(op) && all_inputs_constant(graph, graph.node(id))))
      if (auto elements = shape_rules::propagate_elements(context))
        context.out_elements(std::move(*elements));
    drop_stale_elements(graph, graph.node(id));
    for (const ValueId out : graph.node(id).outputs)
      if (out != kNoValue) check_size(graph, graph.node(id), graph.value(out));
  } catch (const Error& error) {
    const std::string where = "node " + escaped(graph.node(id).name);
    if (std::string_view(error.what()).starts_with(where)) throw;
    throw Error(error.code(), where + ": " + error.what());
  } catch (const std::out_of_range&) {
    context.fail("an attribute or shape has fewer entries than the operator needs");
  }
}

void substitute(Graph& graph, const std::map<std::string, Expr>& map) {
  const auto settle = [&](std::vector<Expr>& sizes) {
    for (Expr& e : sizes)
      if (!e.constant()) e = e.substitute(map);
  };
  for (Value& v : graph.values) {
    if (v.shape) settle(*v.shape);
    if (v.elements) settle(*v.elements);
  }
  for (Node& n : graph.nodes) {
    n.attributes.change_sizes([&](const Expr& e) { return e.substitute(map); });
    for (auto& subgraph : n.subgraphs) substitute(*subgraph, map);
  }
  for (auto& [a, b] : graph.assumptions) {
    const std::string was = a.str() + " = " + b.str();
    a = a.substitute(map), b = b.substitute(map);
    if (a.constant() && b.constant() && !(a == b))
      throw Error(Code::kBadModel, "no input fits the graph: a node needs " + was + ", by the other nodes " +
                                       a.str() + " = " + b.str() +
                                       "; check the sizes that the inputs declare");
  }
}

void infer_all(Graph& graph) {
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    if (!graph.nodes[i].removed) infer_node(graph, static_cast<NodeId>(i));
}

bool fold_node(Graph& graph, NodeId id, int64_t max_elements) {
  const Node& node = graph.node(id);
  if (node.removed || !node.subgraphs.empty()) return false;
  if (node.outputs.size() == 1 && node.outputs[0] != kNoValue)
    if (ConstantPtr c = constant_of_elements(graph.value(node.outputs[0]))) {
      become_constants(graph, id, {std::move(c)});
      return true;
    }
  return fold_views(graph, id) || fold_by_evaluation(graph, id, max_elements) || become_dims(graph, id);
}

std::vector<ValueId> emit(Graph& graph, Op op, const std::string& name, std::vector<ValueId> inputs,
                          Attributes attributes, int outputs) {
  std::vector<ValueId> results;
  for (int i = 0; i < outputs; ++i)
    results.push_back(graph.add_value(name + ":" + std::to_string(i), DType::kUndefined, std::nullopt));
  const NodeId id = graph.add_node(op, name, std::move(inputs), results, std::move(attributes));
  infer_node(graph, id);
  fold_node(graph, id, 4096);
  return results;
}

}  // namespace ark
