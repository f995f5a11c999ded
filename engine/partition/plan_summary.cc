#include "engine/partition/plan_summary.h"

#include <map>

#include "base/index.h"
#include "engine/partition/op_rule.h"

namespace ark {
namespace {

std::string sizes_text(const std::vector<Range>& ranges) {
  std::string text;
  for (const Range& r : ranges) text += (text.empty() ? "" : "|") + std::to_string(r.size());
  return text;
}

// How a product's or table's weight is cut: "columns 320|256".
std::string weight_text(const Sharded& s, const Node& node, NodeId id) {
  const ValueId weight = node.op == Op::kGather ? node.inputs[0] : node.inputs[1];
  const Spec& spec = s.specs[weight];
  if (spec.kind != Spec::Kind::kSplit) return "whole on every rank";
  if (node.op == Op::kGather) return (spec.axis == 0 ? "rows " : "columns ") + sizes_text(spec.ranges);
  return (s.row_parallel.contains(id) ? "rows " : "columns ") + sizes_text(spec.ranges);
}

}  // namespace

std::vector<std::string> plan_summary(const Sharded& s, const std::vector<Program>& programs) {
  std::vector<std::string> order;
  std::map<std::string, int> counts;
  const auto count = [&](const std::string& line) {
    if (counts[line]++ == 0) order.push_back(line);
  };
  for (std::size_t n = 0; n < s.graph.nodes.size(); ++n) {
    const Node& node = s.graph.nodes[n];
    const bool is_table = node.op == Op::kGather && s.graph.value(node.inputs[0]).constant;
    const bool is_product = node.op == Op::kMatMul && s.graph.value(node.inputs[1]).constant;
    if (is_table || is_product) {
      const ValueId w = is_table ? node.inputs[0] : node.inputs[1];
      count(std::string(is_table ? "table " : "MatMul ") + str(shape_of(s.graph, w)) + ": " +
            weight_text(s, node, static_cast<NodeId>(n)));
    } else if (node.op == Op::kPagedAttention) {
      const Spec& q = s.specs[node.inputs[0]];
      const Spec& k = s.specs[node.inputs[1]];
      count("attention heads " + (q.kind == Spec::Kind::kSplit ? sizes_text(q.ranges) : "whole") +
            ", key/value heads " + (k.kind == Spec::Kind::kSplit ? sizes_text(k.ranges) : "whole"));
    } else if (node.op == Op::kAllReduce || node.op == Op::kAllGather) {
      count(std::string(name_of(node.op)) + " of " + str(shape_of(s.graph, node.outputs[0])));
    }
  }
  std::vector<std::string> lines;
  for (const std::string& line : order) lines.push_back(std::to_string(counts[line]) + " x " + line);
  if (!programs.empty()) {
    lines.push_back(std::to_string(programs[0].phases.size()) + " phases, " +
                    std::to_string(programs[0].variants.size()) + " variants, " +
                    std::to_string(programs[0].repeats.size()) + " repeats");
  }
  return lines;
}

}  // namespace ark
