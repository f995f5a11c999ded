#include "importer/decoder/quantized_weights.h"

#include <algorithm>

#include "base/ir/keys.h"
#include "base/ir/quantized.h"
#include "importer/fold.h"
#include "importer/passes/match.h"

namespace ark::decoder {
namespace {

ConstantPtr input(const Graph& graph, const Node& node, std::size_t i) {
  return i < node.inputs.size() && node.inputs[i] != kNoValue ? graph.value(node.inputs[i]).constant
                                                              : nullptr;
}
bool has_input(const Node& node, std::size_t i) {
  return i < node.inputs.size() && node.inputs[i] != kNoValue;
}

// A matrix of codes or zeros, and how far apart its rows are: one whose last rows or columns are cut off is
// the payload as it was.
struct Fields {
  ConstantPtr payload;
  int64_t stride;
};
Fields fields_of(const ConstantPtr& c) {
  const bool cut = c->dims.size() == 2 && c->perm.empty() && !c->begin.empty() &&
                   std::all_of(c->begin.begin(), c->begin.end(), [](int64_t b) { return b == 0; });
  if (!cut) return {c, c->dims.back()};
  auto whole = std::make_shared<Constant>(*c);
  whole->dims = whole->stored_dims;
  whole->begin.clear();
  return {whole, whole->dims.back()};
}

// Scales may be quantized themselves, once; there are few of them.
ConstantPtr scales_of(const Graph& graph, const Node& node) {
  if (ConstantPtr scales = input(graph, node, 1)) return scales;
  const Node* maker = graph.producer(node.inputs[1]);
  if (!maker || maker->op != Op::kDequantizeLinear) return nullptr;
  constexpr int64_t kMostScales = 4'000'000;
  std::vector<Tensor> inputs;
  for (std::size_t i = 0; i < maker->inputs.size(); ++i) {
    const ConstantPtr c = input(graph, *maker, i);
    if (has_input(*maker, i) && (!c || c->size() > kMostScales)) return nullptr;
    inputs.push_back(c ? materialise(*c) : Tensor{});
  }
  auto results = evaluate(*maker, inputs, {graph.value(node.inputs[1]).dtype});
  return results ? make_constant(std::move(results->front()), graph.value(node.inputs[1]).name) : nullptr;
}

constexpr int64_t kMost = int64_t{1} << 40;  // of sizes that are added and multiplied here
const std::vector<int64_t> kTurned{1, 0};

ConstantPtr turned(const ConstantPtr& c) { return c && c->dims.size() == 2 ? transposed(c, kTurned) : c; }

// One scale for all, for each row or column (of `axis`), or for each block along the axis.
ConstantPtr dequantized(const Graph& graph, const Node& node) {
  ConstantPtr x = input(graph, node, 0), scales = scales_of(graph, node), zeros = input(graph, node, 2);
  if (!x || !scales || (has_input(node, 2) && !zeros) || x->dims.size() != 2 || bits_of(x->dtype) > 8 ||
      !(is_integer(x->dtype) || is_floating(x->dtype)) || scales->dims.size() > 2)
    return nullptr;
  if (zeros && ((zeros->size() != 1 || scales->size() != 1) && zeros->dims != scales->dims)) return nullptr;
  if (zeros && zeros->dtype != x->dtype) return nullptr;
  if (zeros && is_floating(x->dtype)) {  // the standard has no others
    if (!passes::is_all(*zeros, 0)) return nullptr;
    zeros = nullptr;
  }
  int64_t axis = node.attributes.get(key::kAxis);
  const int64_t block = node.attributes.get_or(key::kBlockSize, 0);
  const bool turn = x->perm == kTurned;  // read as it is stored
  if (turn) x = turned(x), axis = 1 - axis, scales = turned(scales), zeros = turned(zeros);
  const Fields codes = fields_of(x);
  const bool by_block = block > 0 && scales->size() > 1;
  if (block < 0 || block > kMost || x->size() > kMost) return nullptr;
  // Scales for each row are one block a row.
  Quantized q{.rows = x->dims[0],
              .columns = x->dims[1],
              .bits = bits_of(x->dtype),
              .is_signed = is_signed(x->dtype),
              .floating = is_floating(x->dtype) ? x->dtype : DType::kUndefined,
              .axis = static_cast<int>(by_block ? axis : 1 - axis),
              .codes = codes.payload,
              .code_stride = codes.stride,
              .scales = scales,
              .default_zero = static_cast<int32_t>(node.attributes.get_or(key::kZeroPoint, 0))};
  q.block = by_block ? block : q.axis == 0 ? q.rows : q.columns;
  const int64_t one_each = x->dims[axis == 0 ? 0 : 1];
  if (by_block ? scales->dims != (axis == 0 ? Dims{q.blocks(), q.columns} : Dims{q.rows, q.blocks()})
               : scales->size() != 1 && scales->size() != one_each)
    return nullptr;
  if (zeros) {
    const Fields fields = zeros->dims.size() == 2 ? fields_of(zeros) : Fields{zeros, zeros->size()};
    q.zeros = fields.payload;
    q.zero_stride = !by_block && q.axis == 1 ? 1 : fields.stride;
  }
  ConstantPtr w = make_quantized(std::move(q), x->name);
  return turn ? turned(w) : w;
}

// g_idx: the block of each row of K; only the one that follows from its place is no permutation.
bool in_order(const Constant& blocks, int64_t k, int64_t block) {
  if (blocks.size() != k || !is_integer(blocks.dtype)) return false;
  const Tensor t = materialise(blocks);
  for (int64_t i = 0; i < k; ++i)
    if (t.integer(i) != i / block) return false;
  return true;
}

ConstantPtr nbits(const Graph& graph, const Node& node) {
  const ConstantPtr codes = input(graph, node, 1), scales = input(graph, node, 2),
                    zeros = input(graph, node, 3), places = input(graph, node, 4);
  const int64_t k = node.attributes.get(key::kK), block = node.attributes.get(key::kBlockSize),
                bits = node.attributes.get(key::kBits), n = node.attributes.get(key::kN);
  if (k > kMost || block > kMost) return nullptr;
  const int64_t blocks = (k + block - 1) / block, per_byte = 8 / bits;
  if (!codes || !scales || codes->dtype != DType::kU8 || scales->size() % blocks != 0 ||
      scales->size() / blocks != n || (has_input(node, 3) && (!zeros || zeros->dtype != DType::kU8)) ||
      (has_input(node, 4) && (!places || !in_order(*places, k, block))))
    return nullptr;
  return make_quantized({.rows = n,
                         .columns = k,
                         .bits = static_cast<int32_t>(bits),
                         .axis = 1,
                         .block = block,
                         .codes = codes,
                         .code_stride = blocks * block,  // whole bytes: blocks are powers of two
                         .scales = scales,
                         .zeros = zeros,
                         .zero_stride = (blocks + per_byte - 1) / per_byte * per_byte,
                         .default_zero = 1 << (bits - 1)},
                        codes->name);
}

// The look-up that makes the codes which `node` dequantizes by scales that are the same for all rows.
const Node* look_up_behind(const Graph& graph, const Node& node) {
  if (node.removed || node.op != Op::kDequantizeLinear) return nullptr;
  const Node* gather = graph.producer(node.inputs[0]);
  const ConstantPtr scales = input(graph, node, 1);
  if (!gather || gather->op != Op::kGather || gather->attributes.get(key::kAxis) != 0 || !scales)
    return nullptr;
  const ConstantPtr table = graph.value(gather->inputs[0]).constant;
  const auto& shape = graph.value(node.outputs[0]).shape;
  if (!table || table->dims.size() != 2 || !shape || node.attributes.get_or(key::kBlockSize, 0) != 0)
    return nullptr;
  const bool by_feature = scales->dims.size() == 1 && scales->size() == table->dims[1] &&
                          node.attributes.get(key::kAxis) == static_cast<int64_t>(shape->size()) - 1;
  return scales->size() == 1 || by_feature ? gather : nullptr;
}

}  // namespace

void dequantize_before_look_ups(Graph& graph) {
  const std::size_t count = graph.nodes.size();
  for (std::size_t i = 0; i < count; ++i) {
    const Node* gather = look_up_behind(graph, graph.nodes[i]);
    if (!gather) continue;
    const ValueId codes = gather->inputs[0], ids = gather->inputs[1];
    const Value& rows = graph.value(graph.nodes[i].outputs[0]);
    const Dims dims = graph.value(codes).constant->dims;
    const ValueId table =
        graph.add_value(std::string(rows.name), rows.dtype, Shape(dims.begin(), dims.end()));
    std::vector<ValueId> inputs = graph.nodes[i].inputs;
    inputs[0] = codes;
    Attributes attributes = graph.nodes[i].attributes;
    attributes.set(key::kAxis, 1);
    graph.add_node(Op::kDequantizeLinear, std::string(graph.nodes[i].name), inputs, {table}, attributes);
    graph.nodes[i].op = Op::kGather;
    graph.nodes[i].inputs = {table, ids};
    graph.nodes[i].attributes = {{key::kAxis, 0}};
  }
  if (graph.nodes.size() == count) return;
  graph.remove_dead();
  graph.sort();
}

ConstantPtr quantized_weight(const Graph& graph, const Node& node) {
  if (node.op == Op::kDequantizeLinear) return dequantized(graph, node);
  if (node.op == Op::kMatMulNBits) return nbits(graph, node);
  return nullptr;
}

}  // namespace ark::decoder
