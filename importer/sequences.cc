// Sequences of tensors: how exporters write unbind, split and stack. Where the length and the places are
// known at load, a sequence is a list of values and needs no nodes of its own. A sequence that a split cut in slices of
// one, or that a loop collected, is also one tensor, the stack of its elements, from which places are gathered.
#include <algorithm>

#include "base/error.h"
#include "base/ir/keys.h"
#include "importer/builder.h"
#include "importer/op_importer.h"
#include "importer/ops/helpers.h"

namespace ark {
namespace {

using Values = std::vector<ValueId>;

constexpr int64_t kMostElements = 4096;  // of one sequence: each is a value of the graph

// The sizes along the axis that SplitToSequence cuts; `single`: elements of size 1, whose axis may go.
std::vector<int64_t> part_sizes(OpContext& c, int64_t size, bool* single) {
  *single = !c.has_input(1);
  const auto given = ops::known_ints(c, 1);
  if (c.has_input(1) && !given)
    c.unsupported("sizes that are computed at run time; export with constant ones");
  std::vector<int64_t> sizes;
  if (!given || ops::rank_of(c, c.inputs[1]) == 0) {
    const int64_t part = given ? given->at(0) : 1;
    if (part <= 0 || size / part >= kMostElements)
      c.fail("an axis of " + std::to_string(size) + " cannot be cut into parts of " + std::to_string(part));
    for (int64_t left = size; left > 0; left -= part) sizes.push_back(std::min(part, left));
    return sizes;
  }
  int64_t sum = 0;
  for (const int64_t n : *given) {
    if (n < 0 || n > size - sum) c.fail("sizes that do not add up to the axis of " + std::to_string(size));
    sum += n;
  }
  if (sum != size || static_cast<int64_t>(given->size()) > kMostElements)
    c.fail("sizes that do not add up to the axis of " + std::to_string(size));
  return *given;
}

Values split(OpContext& c) {
  const ValueId x = c.input(0);
  const int64_t axis = c.axis(c.attr_int("axis", 0), c.rank(0));
  const int64_t size = ops::constant_dim(c, x, static_cast<std::size_t>(axis), "the axis that is cut");
  bool single = false;
  const std::vector<int64_t> sizes = part_sizes(c, size, &single);
  Values parts{x};
  if (sizes.size() != 1)
    parts =
        c.emit_many(Op::kSplit, {x}, {{key::kAxis, axis}, {key::kSizes, Shape(sizes.begin(), sizes.end())}},
                    static_cast<int>(sizes.size()));
  if (single && c.attr_int("keepdims", 1) == 0)
    for (ValueId& part : parts) {
      Shape shape = ops::shape_of(c, part);
      shape.erase(shape.begin() + axis);
      part = ops::reshape(c, part, shape);
    }
  return parts;
}

ValueId concat(OpContext& c, Values elements) {
  if (elements.empty()) c.fail("joins an empty sequence");
  const int rank = static_cast<int>(ops::rank_of(c, elements[0]));
  const bool stack = c.attr_int("new_axis", 0) != 0;
  const int64_t axis = c.axis(c.attr_int("axis", 0), stack ? rank + 1 : rank);
  if (stack)
    for (ValueId& x : elements) {
      Shape shape = ops::shape_of(c, x);
      if (static_cast<int>(shape.size()) != rank) c.fail("stacks tensors of different ranks");
      shape.insert(shape.begin() + axis, Expr(1));
      x = ops::reshape(c, x, shape);
    }
  return elements.size() == 1 ? elements[0] : c.emit(Op::kConcat, elements, {{key::kAxis, axis}});
}

// The place that tensor input `i` names in a sequence of `count`; `ends`: the end is a place too, and
// negative places count from the last element all the same.
std::size_t place(OpContext& c, std::size_t i, int64_t count, bool ends = false) {
  const auto given = ops::known_ints(c, i);
  if (!given || given->size() != 1)
    c.unsupported("a place in a sequence that is computed at run time; export with tensors only");
  const int64_t at = given->front() < 0 ? given->front() + count : given->front();
  if (at < 0 || at >= count + ends)
    c.fail("place " + std::to_string(given->front()) + " of a sequence of " + std::to_string(count));
  return static_cast<std::size_t>(at);
}

// The name of a sequence's stack: no file's names begin so.
std::string stack_name(const std::string& sequence) { return "\x01stack of " + sequence; }

// What ConcatFromSequence makes of a stack on `axis`.
ValueId join_stack(OpContext& c, ValueId stack, int64_t axis) {
  const auto rank = static_cast<int>(ops::rank_of(c, stack));
  const bool stacks = c.attr_int("new_axis", 0) != 0;
  const int64_t to = c.axis(c.attr_int("axis", 0), stacks ? rank : rank - 1);
  std::vector<int64_t> perm;
  for (int64_t i = 0; i < rank; ++i)
    if (i != axis) perm.push_back(i);
  perm.insert(perm.begin() + to, axis);
  const ValueId y = ops::transpose(c, stack, perm);
  if (stacks) return y;
  Shape shape = ops::shape_of(c, y);
  const auto at = static_cast<std::size_t>(to);
  shape[at] = shape[at] * shape[at + 1];
  shape.erase(shape.begin() + to + 1);
  return ops::reshape(c, y, shape);
}

// How often nodes read a name, subgraphs included.
int64_t reads_of(const onnx::Graph& graph, const std::string& name) {
  int64_t count = 0;
  for (const onnx::Node& node : graph.nodes) {
    count += std::count(node.inputs.begin(), node.inputs.end(), name);
    for (const onnx::Attribute& a : node.attributes)
      if (a.g) count += reads_of(*a.g, name);
  }
  for (const onnx::ValueInfo& output : graph.outputs) count += output.name == name;
  return count;
}

}  // namespace

onnx::Node Builder::with_collected(const Scope& scope, const onnx::Node& loop,
                                   std::vector<std::string>* collected) const {
  onnx::Node node = loop;
  const auto body = std::find_if(node.attributes.begin(), node.attributes.end(),
                                 [](const onnx::Attribute& a) { return a.name == "body" && a.g; });
  if (body == node.attributes.end() || body->g->inputs.size() != node.inputs.size() ||
      body->g->outputs.size() + 1 < node.inputs.size() || node.outputs.size() + 2 < node.inputs.size())
    return node;  // refused by what reads it
  for (std::size_t i = node.inputs.size(); i-- > 2;) {
    const auto first = scope.sequences.find(node.inputs[i]);
    if (first == scope.sequences.end() || !first->second.empty()) continue;
    onnx::Graph graph = *body->g;
    const auto state = graph.inputs.begin() + static_cast<std::ptrdiff_t>(i);
    const auto result = graph.outputs.begin() + static_cast<std::ptrdiff_t>(i) - 1;
    const auto insert = std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const onnx::Node& n) {
      return n.op_type == "SequenceInsert" && n.inputs.size() == 2 && n.inputs[0] == state->name &&
             n.outputs.size() == 1 && n.outputs[0] == result->name;
    });
    if (insert == graph.nodes.end() || reads_of(graph, state->name) != 1 ||
        reads_of(graph, result->name) != 1)
      continue;
    onnx::ValueInfo element;
    element.name = insert->inputs[1];
    node.outputs.resize(graph.outputs.size() - 1);  // scan outputs that the file leaves out
    graph.nodes.erase(insert);
    graph.inputs.erase(state);
    graph.outputs.erase(result);
    graph.outputs.push_back(std::move(element));
    body->g = std::make_shared<onnx::Graph>(std::move(graph));
    node.inputs.erase(node.inputs.begin() + static_cast<std::ptrdiff_t>(i));
    const auto output = node.outputs.begin() + static_cast<std::ptrdiff_t>(i) - 2;
    const std::string sequence = *output;
    node.outputs.erase(output);
    node.outputs.push_back(sequence.empty() ? "" : stack_name(sequence));
    if (!sequence.empty()) collected->push_back(sequence);
  }
  return node;
}

void Builder::add_stack(Scope& scope, const std::string& name, int64_t axis, const std::string& label) {
  if (scope.names.contains(name) || !scope.stacks.emplace(name, axis).second)
    throw Error(Code::kBadModel, "node " + label + ": the sequence '" + escaped(name) + "' is made twice");
  scope.unusable[name] = "a sequence of tensors";
}

// Operators that read a sequence whose stack is known.
bool Builder::read_stack(Scope& scope, const onnx::Node& node, const std::string& label) {
  const Scope* owner = &scope;
  while (owner && !owner->stacks.contains(node.inputs[0])) owner = owner->outer;
  if (!owner) return false;
  const int64_t axis = owner->stacks.at(node.inputs[0]);
  const ValueId stack = *find(scope, stack_name(node.inputs[0]), "node " + label);
  onnx::Node tensors = node;
  tensors.inputs[0].clear();
  const std::size_t first_new = scope.graph.values.size();
  OpContext c(scope.graph, node, opset_of(scope, node), label, inputs_of(scope, tensors, label));
  if (node.op_type == "SequenceAt")
    c.outputs[0] = c.emit(Op::kGather, {stack, ops::reshape(c, c.input(1), {})}, {{key::kAxis, axis}});
  else if (node.op_type == "SequenceLength")
    c.outputs[0] =
        ops::reshape(c, ops::dims(c, {ops::shape_of(c, stack)[static_cast<std::size_t>(axis)]}), {});
  else if (node.op_type == "ConcatFromSequence")
    c.outputs[0] = join_stack(c, stack, axis);
  else
    return false;
  name_outputs(scope, node, c.outputs, first_new, label);
  return true;
}

bool Builder::add_sequence_operator(Scope& scope, const onnx::Node& node, const std::string& label) {
  if (!node.domain.empty() || node.outputs.size() != 1) return false;
  const bool makes = node.op_type == "SplitToSequence" || node.op_type == "SequenceConstruct" ||
                     node.op_type == "SequenceEmpty";
  const auto known = node.inputs.empty() ? scope.sequences.end() : scope.sequences.find(node.inputs[0]);
  if (!makes && known == scope.sequences.end()) return !node.inputs.empty() && read_stack(scope, node, label);
  onnx::Node tensors = node;  // the sequence is no tensor
  if (!makes) tensors.inputs[0].clear();
  const std::size_t first_new = scope.graph.values.size();
  OpContext c(scope.graph, node, opset_of(scope, node), label, inputs_of(scope, tensors, label));
  Values elements = makes ? Values{} : known->second;
  const auto count = static_cast<int64_t>(elements.size());
  if (node.op_type == "SequenceAt" && !ops::known_ints(c, 1) && read_stack(scope, node, label)) return true;
  if (node.op_type == "SequenceAt" || node.op_type == "ConcatFromSequence" ||
      node.op_type == "SequenceLength") {
    c.outputs[0] = node.op_type == "SequenceAt" ? elements[place(c, 1, count)]
                   : node.op_type == "ConcatFromSequence"
                       ? concat(c, std::move(elements))
                       : ops::scalar(c, static_cast<double>(count), DType::kI64);
    name_outputs(scope, node, c.outputs, first_new, label);
    return true;
  }
  if (node.op_type == "SplitToSequence") {
    if (!c.has_input(1)) {
      const int64_t axis = c.axis(c.attr_int("axis", 0), c.rank(0));
      Shape shape = ops::shape_of(c, c.input(0));
      const bool counted = shape[static_cast<std::size_t>(axis)].constant().has_value();
      if (c.attr_int("keepdims", 1)) shape.insert(shape.begin() + axis + 1, Expr(1));
      define(scope, stack_name(node.outputs[0]), ops::reshape(c, c.input(0), shape), "node " + label);
      add_stack(scope, node.outputs[0], axis, label);
      if (!counted) return true;
    }
    elements = split(c);
  } else if (node.op_type == "SequenceConstruct") {
    for (std::size_t i = 0; i < c.inputs.size(); ++i) elements.push_back(c.input(i));
  } else if (node.op_type == "SequenceInsert") {
    const std::size_t at = c.has_input(2) ? place(c, 2, count, true) : elements.size();
    elements.insert(elements.begin() + static_cast<std::ptrdiff_t>(at), c.input(1));
  } else if (node.op_type == "SequenceErase") {
    if (elements.empty()) c.fail("takes an element from an empty sequence");
    const std::size_t at = c.has_input(1) ? place(c, 1, count) : elements.size() - 1;
    elements.erase(elements.begin() + static_cast<std::ptrdiff_t>(at));
  } else if (node.op_type == "SequenceEmpty") {
    if (const int64_t type = c.attr_int("dtype", 1); dtype_numbered(type) == DType::kUndefined)
      c.fail("dtype " + std::to_string(type) + " is no type of tensors");
  } else if (node.op_type != "Identity") {
    return false;
  }
  // Each step has a list of its own: held to the limit of nodes.
  nodes_ += static_cast<int64_t>(elements.size());
  if (static_cast<int64_t>(elements.size()) > kMostElements || nodes_ > limits_.max_nodes)
    c.fail("sequences of too many tensors");
  const std::string& name = node.outputs[0];
  if (scope.names.contains(name) || !scope.sequences.emplace(name, std::move(elements)).second)
    c.fail("the sequence '" + escaped(name) + "' is made twice");
  scope.unusable[name] = "a sequence of tensors";
  return true;
}

}  // namespace ark
