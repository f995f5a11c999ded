#include "importer/decoder/part_probe.h"

#include <algorithm>

#include "base/error.h"
#include "base/ir/keys.h"
#include "importer/fold.h"

namespace ark::decoder {
namespace {

constexpr int64_t kMostWhole = 1 << 22;     // elements of a value that is evaluated as a whole
constexpr int64_t kMostWork = 100'000'000;  // elements of all parts of one model
constexpr int64_t kWorkOfANode = 64;

Shape as_shape(const Dims& dims) { return Shape(dims.begin(), dims.end()); }

// The part that meets `box` when a value of `dims` is broadcast.
Box broadcast_box(const Dims& dims, const Box& box) {
  Box part{Dims(dims.size(), 0), Dims(dims.size(), 1)};
  for (std::size_t back = 1; back <= std::min(dims.size(), box.size.size()); ++back) {
    const std::size_t to = dims.size() - back, from = box.size.size() - back;
    if (dims[to] != 1) part.begin[to] = box.begin[from], part.size[to] = box.size[from];
  }
  return part;
}

bool fits(const Dims& dims, const Box& box) {
  if (dims.size() != box.size.size()) return false;
  for (std::size_t i = 0; i < dims.size(); ++i)
    if (box.begin[i] < 0 || box.size[i] < 0 || box.begin[i] + box.size[i] > dims[i]) return false;
  return true;
}

std::string text(const Box& box) {
  std::string result;
  for (std::size_t i = 0; i < box.size.size(); ++i)
    result += (i ? ", " : "") + std::to_string(box.begin[i] + box.size[i]);
  return "[" + result + "]";
}

}  // namespace

Dims PartProbe::dims(ValueId id, const Step& step) {
  const Value& v = graph_.value(id);
  if (v.constant) return v.constant->dims;
  const SymbolValues values = roles_.at(step.batch, step.sequence, step.past);
  if (!v.shape) return probe_.value(id, step).dims;
  Dims result;
  for (const Expr& e : *v.shape) {
    const auto size = e.try_evaluate(values);
    if (!size) return probe_.value(id, step).dims;
    result.push_back(*size);
  }
  return result;
}

Tensor PartProbe::run(Node node, std::vector<Tensor> inputs, Attributes attributes) {
  node.attributes = std::move(attributes);
  try {
    auto results = evaluate(node, inputs, {graph_.value(node.outputs[0]).dtype});
    if (!results || results->size() != 1) refuse(node, "cannot be evaluated at load");
    return std::move((*results)[0]);
  } catch (const Error& error) {
    refuse(node, error.what());
  }
}

Tensor PartProbe::whole(ValueId id, const Step& step, const Box& box) {
  const Dims have = dims(id, step);
  const Node* node = graph_.producer(id);
  const std::string at = node ? node->name : "";
  if (element_count(have) > kMostWhole) throw Refusal(at, "is too large to be checked");
  const ConstantPtr value = make_constant(probe_.value(id, step));
  if (!fits(value->dims, box)) throw Refusal(at, "is smaller than what is read of it, " + text(box));
  ConstantPtr view = value;
  for (std::size_t i = 0; i < box.size.size(); ++i)
    view = sliced(view, static_cast<int64_t>(i), box.begin[i], box.begin[i] + box.size[i]);
  return materialise(*view);
}

Tensor PartProbe::broadcast_part(ValueId id, const Step& step, const Box& box) {
  return part(id, step, broadcast_box(dims(id, step), box));
}

Tensor PartProbe::pointwise(const Node& node, const Step& step, const Box& box) {
  std::vector<Tensor> inputs;
  for (const ValueId id : node.inputs)
    inputs.push_back(id == kNoValue ? Tensor{} : broadcast_part(id, step, box));
  return run(node, std::move(inputs), node.attributes);
}

std::optional<Tensor> PartProbe::slice(const Node& node, const Step& step, Box box) {
  if (!node.attributes.has(key::kStarts)) return std::nullopt;
  const auto& axes = node.attributes.get(key::kAxes);
  const SymbolValues values = roles_.at(step.batch, step.sequence, step.past);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (node.attributes.get(key::kSteps)[i] != 1) return std::nullopt;
    box.begin.at(static_cast<std::size_t>(axes[i])) +=
        node.attributes.get(key::kStarts).at(i).evaluate(values);
  }
  return part(node.inputs[0], step, box);
}

// Axes of size 1 come and go; anything else needs the whole.
std::optional<Tensor> PartProbe::reshape(const Node& node, const Step& step, const Box& box) {
  const Dims from = dims(node.inputs[0], step), to = dims(node.outputs[0], step);
  Box inner{Dims(from.size(), 0), Dims(from.size(), 1)};
  std::size_t at = 0;
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (to[i] == 1) continue;
    while (at < from.size() && from[at] == 1) ++at;
    if (at == from.size() || from[at] != to[i]) return std::nullopt;
    inner.begin[at] = box.begin[i], inner.size[at] = box.size[i];
    ++at;
  }
  for (; at < from.size(); ++at)
    if (from[at] != 1) return std::nullopt;
  Tensor result = part(node.inputs[0], step, inner);
  result.dims = box.size;
  return result;
}

std::optional<Tensor> PartProbe::gather(const Node& node, const Step& step, const Box& box) {
  const auto axis = static_cast<std::size_t>(node.attributes.get(key::kAxis));
  const Dims data = dims(node.inputs[0], step);
  const std::size_t rank = dims(node.inputs[1], step).size();
  Box rows, index;
  for (std::size_t i = 0; i < box.size.size(); ++i) {
    Box& to = i >= axis && i < axis + rank ? index : rows;
    to.begin.push_back(box.begin[i]), to.size.push_back(box.size[i]);
  }
  const auto place = static_cast<std::ptrdiff_t>(axis);
  rows.begin.insert(rows.begin.begin() + place, 0);
  rows.size.insert(rows.size.begin() + place, data.at(axis));
  if (element_count(rows.size) > kMostWhole) return std::nullopt;
  return run(node, {part(node.inputs[0], step, rows), part(node.inputs[1], step, index)}, node.attributes);
}

std::optional<Tensor> PartProbe::through(const Node& node, const Step& step, const Box& box) {
  if (is_pointwise(node.op)) return pointwise(node, step, box);
  const std::size_t rank = box.size.size();
  switch (node.op) {
    case Op::kSlice:
      return slice(node, step, box);
    case Op::kReshape:
      return reshape(node, step, box);
    case Op::kGather:
      return gather(node, step, box);
    case Op::kTranspose: {
      const auto& perm = node.attributes.get(key::kPerm);
      Box inner = box;
      for (std::size_t i = 0; i < rank; ++i) {
        const auto from = static_cast<std::size_t>(perm.at(i));
        inner.begin.at(from) = box.begin[i], inner.size.at(from) = box.size[i];
      }
      return run(node, {part(node.inputs[0], step, inner)}, node.attributes);
    }
    case Op::kExpand:
      return run(node, {broadcast_part(node.inputs[0], step, box)}, {{key::kShape, as_shape(box.size)}});
    case Op::kConstantOfShape: {
      if (!node.attributes.has(key::kShape)) return std::nullopt;
      Attributes attributes = node.attributes;
      attributes.set(key::kShape, as_shape(box.size));
      return run(node, {}, std::move(attributes));
    }
    case Op::kTrilu: {  // row and column count from the corner of the part
      if (rank < 2) return std::nullopt;
      const ValueId given = node.input(1);
      const int64_t k = given != kNoValue ? probe_.value(given, step).integer(0)
                                          : node.attributes.get_or(key::kDiagonal, 0);
      return run(node, {part(node.inputs[0], step, box)},
                 {{key::kUpper, node.attributes.get_or(key::kUpper, 1)},
                  {key::kDiagonal, k + box.begin[rank - 2] - box.begin[rank - 1]}});
    }
    default:
      return std::nullopt;
  }
}

Tensor PartProbe::part(ValueId id, const Step& step, const Box& box) {
  if (step != now_) memo_.clear(), now_ = step;
  const auto key = std::make_pair(id, box);
  if (const auto known = memo_.find(key); known != memo_.end()) return known->second;
  const Depth here(depth_, graph_, id);
  work_ += kWorkOfANode + element_count(box.size);
  if (work_ > kMostWork) throw Refusal("", "masks and positions are too large to be checked");
  const Value& v = graph_.value(id);
  const Dims have = dims(id, step);
  const Node* node = graph_.producer(id);
  if (!fits(have, box))
    throw Refusal(node ? node->name : "", "value " + escaped(v.name) + " of " + str(as_shape(have)) +
                                              " is smaller than what is read of it, " + text(box));
  std::optional<Tensor> result;
  if (v.constant) {
    ConstantPtr view = v.constant;
    for (std::size_t i = 0; i < box.size.size(); ++i)
      view = sliced(view, static_cast<int64_t>(i), box.begin[i], box.begin[i] + box.size[i]);
    result = materialise(*view);
  } else if (node && node->outputs.size() == 1 && element_count(have) > element_count(box.size)) {
    result = through(*node, step, box);
  }
  if (!result) result = whole(id, step, box);
  return memo_[key] = std::move(*result);
}

}  // namespace ark::decoder
