#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/ir/keys.h"
#include "importer/builder.h"

namespace ark {
namespace {

// Unpacking stored weights makes tensors, but of sizes that the file has paid for: free up to this many steps
// (DequantizeLinear, Cast, Transpose) behind a constant, once for each constant.
constexpr int kFreeSteps = 3;
constexpr int64_t kMostDivisors = 4096;
bool unpacks(Op op) { return op == Op::kDequantizeLinear || op == Op::kCast || op == Op::kTranspose; }

int64_t known_bytes(const Value& v) {
  if (!v.shape || v.dtype == DType::kUndefined) return 0;
  const auto count = element_count(*v.shape).constant();
  return count ? bytes_of(v.dtype, *count) : 0;
}

[[noreturn]] void refuse(const Node& node, const std::string& what, int64_t bytes, int64_t limit,
                         const char* name) {
  throw Error(Code::kBadModel, "node " + node.name + ": " + what + " " + std::to_string(bytes) +
                                   " bytes from constants alone; at most " + std::to_string(limit) + " (" +
                                   name + "): the file is a bomb, or must store the tensor");
}

// An integer divided by a zero that is stored or filled in, at whatever place: whoever runs it fails, or goes on with
// whatever comes out.
void check_divisor(const Graph& graph, const Node& node) {
  if ((node.op != Op::kDiv && node.op != Op::kMod) || is_floating(graph.value(node.inputs[1]).dtype)) return;
  ConstantPtr divisor = graph.value(node.inputs[1]).constant;
  const Node* maker = graph.producer(node.inputs[1]);
  while (maker && is_one_of(maker->op, {Op::kReshape, Op::kTranspose, Op::kExpand, Op::kTile, Op::kSlice}))
    maker = graph.producer(maker->inputs[0]);
  if (maker && maker->op == Op::kConstantOfShape)
    divisor = make_constant(maker->attributes.get(key::kValue), maker->name);
  if (!divisor || divisor->size() > kMostDivisors) return;
  const Tensor t = materialise(*divisor);
  for (int64_t i = 0; i < t.size(); ++i)
    if (t.integer(i) == 0) throw Error(Code::kBadModel, "node " + node.name + ": divides integers by zero");
}

}  // namespace

void check_generated(const Graph& graph, const Limits& limits) {
  std::vector<bool> from_constants(graph.values.size());
  std::vector<int> free_steps(graph.values.size());
  for (std::size_t i = 0; i < graph.values.size(); ++i)
    if (graph.values[i].constant) from_constants[i] = true, free_steps[i] = kFreeSteps;
  int64_t total = 0;
  for (const Node& node : graph.nodes) {
    if (node.removed) continue;
    check_divisor(graph, node);
    for (const auto& subgraph : node.subgraphs) check_generated(*subgraph, limits);
    if (!node.subgraphs.empty()) continue;
    const bool all = std::all_of(node.inputs.begin(), node.inputs.end(),
                                 [&](ValueId id) { return id == kNoValue || from_constants[id]; });
    if (!all) continue;
    if (unpacks(node.op) && node.outputs.size() == 1 && node.outputs[0] != kNoValue) {
      int& left = free_steps[node.inputs[0]];
      if (left > 0) {
        from_constants[node.outputs[0]] = true;
        free_steps[node.outputs[0]] = std::exchange(left, 0) - 1;
        continue;
      }
    }
    for (const ValueId id : node.outputs) {
      if (id == kNoValue) continue;
      from_constants[id] = true;
      const int64_t bytes = known_bytes(graph.value(id));
      if (bytes > limits.max_generated_bytes)
        refuse(node, "makes", bytes, limits.max_generated_bytes, "max_generated_bytes");
      total += bytes;
      if (total > limits.max_generated_total)
        refuse(node, "and others make", total, limits.max_generated_total, "max_generated_total");
    }
  }
}

}  // namespace ark
