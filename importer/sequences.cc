// Sequences of tensors: how exporters write unbind, split and stack. Where the length and the places are
// known at load, a sequence is a list of values and needs no nodes of its own.
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

}  // namespace

bool Builder::add_sequence_operator(Scope& scope, const onnx::Node& node, const std::string& label) {
  if (!node.domain.empty() || node.outputs.size() != 1) return false;
  const bool makes = node.op_type == "SplitToSequence" || node.op_type == "SequenceConstruct" ||
                     node.op_type == "SequenceEmpty";
  const auto known = node.inputs.empty() ? scope.sequences.end() : scope.sequences.find(node.inputs[0]);
  if (!makes && known == scope.sequences.end()) return false;
  onnx::Node tensors = node;  // the sequence is no tensor
  if (!makes) tensors.inputs[0].clear();
  const std::size_t first_new = scope.graph.values.size();
  OpContext c(scope.graph, node, opset_of(scope, node), label, inputs_of(scope, tensors, label));
  Values elements = makes ? Values{} : known->second;
  const auto count = static_cast<int64_t>(elements.size());
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
  } else if (node.op_type != "SequenceEmpty" && node.op_type != "Identity") {
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
