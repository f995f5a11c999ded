#include "importer/decoder/probe.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/ir/keys.h"
#include "importer/decoder/quantized_weights.h"
#include "importer/decoder/refusal.h"
#include "importer/fold.h"

namespace ark::decoder {
namespace {

constexpr int64_t kMaxTensor = 16'000'000;  // elements of one value
constexpr int64_t kMaxWork = 200'000'000;   // elements computed by one probe: half a second
constexpr int64_t kMaxHeld = 192 << 20;     // bytes of the values that are remembered together

// Folded bounds and targets hold for the sizes that the file assumes; a longer step may lie beyond its
// tables.
void check_sizes(const Node& node, const Dims& in) {
  const auto number = [&](Key<Shape> key, std::size_t i) { return *node.attributes.get(key)[i].constant(); };
  const auto size_of = [&](int64_t axis) {
    if (axis < 0 || axis >= static_cast<int64_t>(in.size()))
      refuse(node, "has axis " + std::to_string(axis) + " of a value of rank " + std::to_string(in.size()));
    return in[static_cast<std::size_t>(axis)];
  };
  if (node.op == Op::kSlice && node.attributes.has(key::kStarts)) {
    const auto& axes = node.attributes.get(key::kAxes);
    for (std::size_t i = 0; i < axes.size(); ++i) {
      const int64_t size = size_of(axes[i]), least = node.attributes.get(key::kSteps)[i] < 0 ? -1 : 0;
      for (const int64_t bound : {number(key::kStarts, i), number(key::kEnds, i)})
        if (bound < least || bound > size)
          refuse(node,
                 "reads up to " + std::to_string(bound) + " of a stored size of " + std::to_string(size));
    }
  } else if ((node.op == Op::kReshape && node.attributes.has(key::kShape)) ||
             (node.op == Op::kSplit && node.attributes.has(key::kSizes))) {
    const bool reshape = node.op == Op::kReshape;
    int64_t have = 1, want = reshape ? 1 : 0;
    if (reshape)
      have = element_count(in);
    else
      have = size_of(node.attributes.get(key::kAxis));
    for (const Expr& e : node.attributes.get(reshape ? key::kShape : key::kSizes))
      want = reshape ? want * *e.constant() : want + *e.constant();
    if (have != want)
      refuse(node, "rearranges " + std::to_string(have) + " elements as " + std::to_string(want));
  }
}

}  // namespace

Step Probe::possible(Step step) const {
  if (const auto b = roles_.sizes.batch.constant()) step.batch = *b;
  if (const auto s = roles_.sizes.sequence.constant()) step.sequence = *s;
  if (const auto p = roles_.sizes.past.constant()) step.past = *p;
  return step;
}

Tensor Probe::input(std::size_t index, const Step& step) {
  const Value& v = graph_.value(graph_.inputs[index]);
  if (!v.shape) throw Refusal("", "input " + escaped(v.name) + " has no known rank");
  Dims dims;
  for (const Expr& e : *v.shape) dims.push_back(e.evaluate(roles_.at(step.batch, step.sequence, step.past)));
  hold("", v.dtype, dims);
  if (auto given = step_input(graph_, roles_.signature, index, dims, step.past, step.sequence)) return *given;
  throw Refusal("", "input " + escaped(v.name) + " has no role in a decoder");
}

Node Probe::concrete(const Node& node, const Step& step) const {
  Node result = node;
  SymbolValues values = roles_.at(step.batch, step.sequence, step.past);
  if (const auto known = measured_.find(step); known != measured_.end())
    values.insert(known->second.begin(), known->second.end());
  result.attributes = node.attributes.evaluated(values);
  return result;
}

// Rows of a table too large to be copied as a whole.
std::optional<Tensor> Probe::gather_rows(const Node& node, const Step& step) {
  if (node.op != Op::kGather || node.attributes.get(key::kAxis) != 0) return std::nullopt;
  ConstantPtr table = graph_.value(node.inputs[0]).constant;
  const Node* maker = graph_.producer(node.inputs[0]);
  if (maker && maker->op == Op::kDequantizeLinear) table = quantized_weight(graph_, *maker);
  if (!table || (table->is_small() && !table->quantized) || table->dims.empty() || bits_of(table->dtype) < 8)
    return std::nullopt;
  const Tensor rows = value(node.inputs[1], step);
  Dims dims = rows.dims;
  dims.insert(dims.end(), table->dims.begin() + 1, table->dims.end());
  Tensor result = Tensor::empty(table->dtype, dims);
  const int64_t count = table->dims[0], bytes = rows.size() ? result.bytes() / rows.size() : 0;
  for (int64_t i = 0; i < rows.size(); ++i) {
    const int64_t row = rows.integer(i) < 0 ? rows.integer(i) + count : rows.integer(i);
    if (row < 0 || row >= count)
      refuse(node,
             "index " + std::to_string(row) + " is beyond its table of " + std::to_string(count) + " rows");
    const Tensor one = materialise_rows(*table, row, 1);
    std::memcpy(result.data.get() + i * bytes, one.data.get(), static_cast<std::size_t>(bytes));
  }
  return result;
}

// A part of a stored mask too large to be copied as a whole.
std::optional<Tensor> Probe::slice_constant(const Node& node, const Step& step) {
  if (node.op != Op::kSlice || !node.attributes.has(key::kStarts)) return std::nullopt;
  ConstantPtr view = graph_.value(node.inputs[0]).constant;
  if (!view || view->is_small()) return std::nullopt;
  const Node now = concrete(node, step);
  check_sizes(now, view->dims);
  const auto& axes = now.attributes.get(key::kAxes);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (now.attributes.get(key::kSteps)[i] != 1) return std::nullopt;
    const int64_t end = now.attributes.get(key::kEnds)[i].constant().value();
    const int64_t begin = std::min(end, now.attributes.get(key::kStarts)[i].constant().value());
    view = sliced(view, axes[i], begin, end);
    if (!view) return std::nullopt;
  }
  return materialise(*view);
}

// What is dequantized here is held as f32 from now on: neither a product nor a look-up reads it as it is
// stored.
void Probe::count_unpacked(const Node& node) {
  constexpr int64_t kMost = 4'000'000, kMostTogether = 64'000'000;  // elements
  const ConstantPtr& codes = graph_.value(node.inputs[0]).constant;
  const int64_t size = codes ? codes->size() : 0;
  if (size <= kMost && unpacked_ + size <= kMostTogether) {
    unpacked_ += size;
    return;
  }
  const ValueId made = node.outputs[0];
  const auto reader = std::find_if(graph_.nodes.begin(), graph_.nodes.end(), [&](const Node& n) {
    return !n.removed && std::find(n.inputs.begin(), n.inputs.end(), made) != n.inputs.end();
  });
  const bool matrix = quantized_weight(graph_, node) != nullptr;
  std::string why = "dequantizes " + std::to_string(size) + " elements ";
  if (!matrix)
    why += "that are no matrix of 4 or 8 bits";
  else if (reader != graph_.nodes.end())
    why +=
        "for " + escaped(reader->name) + ", where a product or a look-up would read them as they are stored";
  refuse(node, why + "; at most " + std::to_string(kMost) + " are unpacked, " +
                   std::to_string(kMostTogether) + " of a model");
}

std::vector<Tensor> Probe::run(const Node& node, const Step& step) {
  if (auto rows = gather_rows(node, step)) return {std::move(*rows)};
  if (auto part = slice_constant(node, step)) return {std::move(*part)};
  if (node.op == Op::kDequantizeLinear) count_unpacked(node);
  if (!can_evaluate(node.op))
    refuse(node,
           "operator " + std::string(name_of(node.op)) + " in a mask or in positions is not understood");
  std::vector<Tensor> inputs;
  for (const ValueId id : node.inputs) inputs.push_back(id == kNoValue ? Tensor{} : value(id, step));
  std::vector<DType> types;
  for (const ValueId id : node.outputs)
    types.push_back(id == kNoValue ? DType::kUndefined : graph_.value(id).dtype);
  try {
    for (const ValueId id : node.outputs) {
      if (id == kNoValue || !graph_.value(id).shape) continue;
      const SymbolValues values = roles_.at(step.batch, step.sequence, step.past);
      const auto count = element_count(*graph_.value(id).shape).try_evaluate(values);
      if (count && *count > kMaxTensor) throw Exhausted(node.name, "is too large to be checked");
    }
    const Node now = concrete(node, step);
    if (!inputs.empty()) check_sizes(now, inputs[0].dims);
    auto results = evaluate(now, inputs, types, kMaxTensor);
    if (!results) refuse(node, "cannot be evaluated at load");
    return std::move(*results);
  } catch (const Error& error) {
    refuse(node, error.what());
  }
}

void Probe::hold(const std::string& at, DType type, const Dims& dims) {
  const int64_t size = element_count(dims);
  if (size > kMaxTensor || (held_ += bytes_of(type, size)) > kMaxHeld)
    throw Exhausted(at, "masks and positions are too large to be checked");
}

Depth::Depth(int& depth, const Graph& graph, ValueId id) : depth_(depth) {
  constexpr int kMost = 500;
  if (depth >= kMost)
    throw Refusal("", "value " + escaped(graph.value(id).name) + " stands before more than " +
                          std::to_string(kMost) + " nodes that make masks or positions");
  ++depth_;
}

Tensor Probe::value(ValueId id, const Step& step) {
  auto& known = memo_[step];
  if (const auto it = known.find(id); it != known.end()) return it->second;
  const Depth here(depth_, graph_, id);
  const Value& v = graph_.value(id);
  if (v.constant) {
    hold("", v.constant->dtype, v.constant->dims);
    return known[id] = materialise(*v.constant);
  }
  if (const Node* node = graph_.producer(id)) {
    const auto results = run(*node, step);
    for (const Tensor& t : results) {
      hold(node->name, t.dtype, t.dims);
      if ((work_ += t.size()) > kMaxWork)
        throw Exhausted(node->name, "masks and positions take too long to be checked");
    }
    for (std::size_t i = 0; i < node->outputs.size(); ++i) {
      if (node->outputs[i] == kNoValue) continue;
      known[node->outputs[i]] = results[i];
      const auto& shape = graph_.value(node->outputs[i]).shape;
      for (std::size_t k = 0; shape && k < std::min(shape->size(), results[i].dims.size()); ++k)
        if (const auto symbol = (*shape)[k].as_symbol()) measured_[step].emplace(*symbol, results[i].dims[k]);
    }
    return known.at(id);
  }
  const auto it = std::find(graph_.inputs.begin(), graph_.inputs.end(), id);
  if (it == graph_.inputs.end()) throw Refusal("", "value " + escaped(v.name) + " has no producer");
  return known[id] = input(static_cast<std::size_t>(it - graph_.inputs.begin()), step);
}

}  // namespace ark::decoder
