#include "importer/decoder/lower_einsum.h"

#include <algorithm>
#include <map>

#include "base/ir/keys.h"
#include "importer/op_importer.h"

namespace ark::decoder {
namespace {

bool holds(const std::string& text, char c) { return text.find(c) != std::string::npos; }

class Lowering {
 public:
  Lowering(Graph& graph, const Node& node) : graph_(graph), name_(node.name), inputs_(node.inputs) {
    std::string equation = node.attributes.get_or(key::kEquation, "");
    std::erase(equation, ' ');
    const auto comma = equation.find(','), arrow = equation.find("->");
    if (comma == std::string::npos || arrow == std::string::npos || inputs_.size() != 2) return;
    a_ = equation.substr(0, comma);
    b_ = equation.substr(comma + 1, arrow - comma - 1);
    out_ = equation.substr(arrow + 2);
    valid_ = readable(a_, inputs_[0]) && readable(b_, inputs_[1]) && readable(out_, kNoValue);
  }

  // The value that replaces the node's, or kNoValue if the equation is more than a product.
  ValueId run() {
    if (!valid_) return kNoValue;
    std::string batch, summed, left, right;
    for (const char c : a_) {
      if (holds(b_, c))
        (holds(out_, c) ? batch : summed) += c;
      else if (holds(out_, c))
        left += c;
      else
        return kNoValue;
    }
    for (const char c : b_)
      if (!holds(a_, c)) {
        if (!holds(out_, c)) return kNoValue;
        right += c;
      }
    const ValueId a = arranged(inputs_[0], a_, {batch, left, summed}),
                  b = arranged(inputs_[1], b_, {batch, summed, right});
    const ValueId product = emit1(Op::kMatMul, {a, b}, {});
    Shape shape;
    const std::string labels = batch + left + right;
    for (const char c : labels) shape.push_back(sizes_.at(c));
    const ValueId y = shape == *graph_.value(product).shape
                          ? product
                          : emit1(Op::kReshape, {product}, {{key::kShape, shape}});
    return transposed(y, labels, out_);
  }

 private:
  bool readable(const std::string& labels, ValueId id) {
    for (std::size_t i = 0; i < labels.size(); ++i)
      if (!std::isalpha(static_cast<unsigned char>(labels[i])) || holds(labels.substr(i + 1), labels[i]))
        return false;
    if (id == kNoValue) return true;
    const auto& shape = graph_.value(id).shape;
    if (!shape || shape->size() != labels.size()) return false;
    for (std::size_t i = 0; i < labels.size(); ++i) sizes_.emplace(labels[i], (*shape)[i]);
    return true;
  }
  ValueId emit1(Op op, std::vector<ValueId> in, Attributes attributes) {
    return emit(graph_, op, name_, std::move(in), std::move(attributes))[0];
  }
  ValueId transposed(ValueId x, const std::string& from, const std::string& to) {
    std::vector<int64_t> perm;
    for (const char c : to) perm.push_back(static_cast<int64_t>(from.find(c)));
    return std::is_sorted(perm.begin(), perm.end()) ? x : emit1(Op::kTranspose, {x}, {{key::kPerm, perm}});
  }
  // Axes in the order of `groups`: those of the first stay, each other group becomes one axis.
  ValueId arranged(ValueId x, const std::string& labels, const std::vector<std::string>& groups) {
    x = transposed(x, labels, groups[0] + groups[1] + groups[2]);
    Shape shape;
    for (const char c : groups[0]) shape.push_back(sizes_.at(c));
    for (std::size_t g = 1; g < groups.size(); ++g) {
      Expr n = 1;
      for (const char c : groups[g]) n = n * sizes_.at(c);
      shape.push_back(n);
    }
    return shape == *graph_.value(x).shape ? x : emit1(Op::kReshape, {x}, {{key::kShape, shape}});
  }

  Graph& graph_;
  const std::string name_;
  const std::vector<ValueId> inputs_;
  std::string a_, b_, out_;
  std::map<char, Expr> sizes_;
  bool valid_ = false;
};

}  // namespace

bool lower_einsum(Graph& graph) {
  bool changed = false;
  const auto count = graph.nodes.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (graph.nodes[i].removed || graph.nodes[i].op != Op::kEinsum) continue;
    const ValueId before = graph.nodes[i].outputs[0], after = Lowering(graph, Node(graph.nodes[i])).run();
    if (after == kNoValue) continue;
    graph.replace_uses(before, after);
    graph.nodes[i].removed = true;
    changed = true;
  }
  if (changed) graph.sort();
  return changed;
}

}  // namespace ark::decoder
