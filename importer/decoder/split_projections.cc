#include <algorithm>
#include <map>

#include "base/ir/keys.h"
#include "importer/decoder/cleanup.h"
#include "importer/decoder/origins.h"

namespace ark::decoder {
namespace {

struct Range {
  int64_t begin, end;
};

// The columns [begin, end) of `product` that `value` is, if it is nothing else.
std::optional<Range> columns_of(Origins& origins, ValueId value, ValueId product) {
  const Origins::Row& row = origins.of(value);
  if (row.empty()) return std::nullopt;
  for (std::size_t i = 0; i < row.size(); ++i)
    if (row[i].value != product || row[i].index != row[0].index + static_cast<int64_t>(i))
      return std::nullopt;
  return Range{row[0].index, row[0].index + static_cast<int64_t>(row.size())};
}

class Splitter {
 public:
  explicit Splitter(TokenBuilder& out) : out_(out) {}

  bool split(NodeId id) {
    const Node node = out_.graph.node(id);
    if (node.removed || node.op != Op::kMatMul || out_.is_constant(node.inputs[0]) ||
        node.attributes.get_or(key::kTransA, 0))
      return false;
    const ConstantPtr weight = out_.graph.value(node.inputs[1]).constant;
    if (!weight || weight->dims.size() != 2 || out_.dims(node.outputs[0]).size() != 1) return false;
    if (!knows_readers_) readers_ = out_.graph.consumers();
    knows_readers_ = true;
    const std::vector<Step> steps = steps_after(node.outputs[0]);
    const ValueId last = steps.empty() ? node.outputs[0] : steps.back().out;
    const auto parts = parts_of(last);
    if (parts.empty()) return false;
    knows_readers_ = false;  // new nodes are coming
    std::vector<ValueId> products;
    for (const auto& [value, range] : parts) {
      const ValueId y = product(node, weight, steps, range);
      if (y == kNoValue) return false;
      products.push_back(y);
    }
    for (std::size_t i = 0; i < parts.size(); ++i)
      out_.graph.replace_uses(parts[i].first, out_.reshape(products[i], out_.dims(parts[i].first)));
    return true;
  }

 private:
  // An Add or Mul of a constant row (a bias, a factor) or number, between a product and its parts.
  struct Step {
    Op op;
    ConstantPtr row;
    ValueId out;
  };
  std::vector<Step> steps_after(ValueId value) const {
    std::vector<Step> steps;
    while (readers_[value].size() == 1) {
      const Node& user = out_.graph.node(readers_[value][0]);
      if ((user.op != Op::kAdd && user.op != Op::kMul) || user.inputs[0] == user.inputs[1]) break;
      const ConstantPtr& row = out_.graph.value(user.inputs[user.inputs[0] == value ? 1 : 0]).constant;
      if (!row || row->dims.size() > 1 || out_.dims(user.outputs[0]) != out_.dims(value)) break;
      value = user.outputs[0];
      steps.push_back({user.op, row, value});
    }
    return steps;
  }

  // The strict column ranges that all uses of a product go through; empty if some use is anything else.
  std::vector<std::pair<ValueId, Range>> parts_of(ValueId product) {
    Origins origins(out_.graph);
    const int64_t width = out_.dims(product)[0];
    std::vector<std::pair<ValueId, Range>> parts;
    std::vector<ValueId> work{product};
    while (!work.empty()) {
      const ValueId id = work.back();
      work.pop_back();
      if (std::find(out_.graph.outputs.begin(), out_.graph.outputs.end(), id) != out_.graph.outputs.end())
        return {};
      if (const auto range = columns_of(origins, id, product); range && range->end - range->begin < width) {
        parts.emplace_back(id, *range);
        continue;
      }
      const auto& users = readers_[id];
      for (const NodeId reader : users) {
        const Node& user = out_.graph.node(reader);
        if (!is_movement(user.op) || user.op == Op::kConcat || user.inputs[0] != id) return {};
        for (const ValueId y : user.outputs)
          if (y != kNoValue && !readers_[y].empty()) work.push_back(y);
      }
    }
    return parts;
  }

  ValueId product(const Node& node, const ConstantPtr& weight, const std::vector<Step>& steps,
                  const Range& range) {
    const auto key = std::make_tuple(node.outputs[0], range.begin, range.end);
    if (const auto it = products_.find(key); it != products_.end()) return it->second;
    const int64_t axis = node.attributes.get_or(key::kTransB, 0) ? 0 : 1;
    const ConstantPtr part = sliced(weight, axis, range.begin, range.end);
    if (!part) return kNoValue;
    std::vector<ConstantPtr> rows;
    for (const Step& step : steps) {
      rows.push_back(step.row->size() == 1 ? step.row : sliced(step.row, 0, range.begin, range.end));
      if (!rows.back()) return kNoValue;
    }
    out_.label = node.name;
    ValueId y = out_.emit(Op::kMatMul, {node.inputs[0], out_.constant(part)}, node.attributes);
    for (std::size_t i = 0; i < steps.size(); ++i) y = out_.emit(steps[i].op, {y, out_.constant(rows[i])});
    return products_[key] = y;
  }

  TokenBuilder& out_;
  std::vector<std::vector<NodeId>> readers_;
  bool knows_readers_ = false;  // they are those of the graph as it is
  std::map<std::tuple<ValueId, int64_t, int64_t>, ValueId> products_;
};

}  // namespace

int split_projections(TokenBuilder& out) {
  Splitter splitter(out);
  int n = 0;
  const auto count = out.graph.nodes.size();
  for (std::size_t i = 0; i < count; ++i) n += splitter.split(static_cast<NodeId>(i));
  out.graph.sort();
  out.graph.remove_dead();
  return n;
}

}  // namespace ark::decoder
