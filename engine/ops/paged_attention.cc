// PagedAttention: by query heads; a rank keeps the key/value heads that its query heads read.
#include "base/ir/keys.h"
#include "engine/lower/lowering.h"
#include "engine/partition/op_rule.h"

namespace ark {
namespace {

std::vector<Loop> paged_attention_loops(const Graph& graph, const Node& node) {
  Loop heads = empty_loop(node);
  const Shape& q = shape_of(graph, node.inputs[0]);
  const Shape& k = shape_of(graph, node.inputs[1]);
  heads.inputs[0] = heads.outputs[0] = 1;
  if (!k[1].is_constant(1) || q[1].is_constant(1)) {  // a single shared head stays whole
    heads.inputs[1] = heads.inputs[2] = 1;
    if (!(k[1] == q[1])) heads.shared = 0b110;
  }
  for (std::size_t i = 3; i < node.inputs.size(); ++i) heads.inputs[i] = 0;
  return {heads};
}

// Local key/value head of each local query head.
std::vector<int64_t> head_map(Lowering& l, const Node& node) {
  const int64_t heads = *shape_of(l.graph(), node.inputs[0])[1].constant();
  const int64_t kv_heads = *shape_of(l.graph(), node.inputs[1])[1].constant();
  const Range q = l.part(node.inputs[0], 1, l.rank()), kv = l.part(node.inputs[1], 1, l.rank());
  std::vector<int64_t> map;
  for (int64_t h = q.begin; h < q.end; ++h) map.push_back(h / (heads / kv_heads) - kv.begin);
  return map;
}

void lower_paged_attention(Lowering& l, const Node& node) {
  const int64_t cache = node.attributes.get(key::kCache);
  const Shape k = l.local_shape(node.inputs[1]);
  const int64_t kv_heads = *k[1].constant();
  const Operand keys = l.pages(cache, false, kv_heads), values = l.pages(cache, true, kv_heads);
  if (l.cluster().rotary_q == kNoNode) {
    l.emit(node.name + " append", {.code = OpCode::kKvAppend},
           {l.read(node.inputs[1]), l.read(node.inputs[2]), keys, values});
  } else {
    const Node &rotary_q = l.graph().node(l.cluster().rotary_q),
               &rotary_k = l.graph().node(l.cluster().rotary_k);
    l.emit(node.name + " append", {.code = OpCode::kRotaryAppend, .attributes = rotary_attributes(rotary_q)},
           {l.read(rotary_q.inputs[0]), l.read(rotary_q.inputs[1]), l.read(rotary_q.inputs[2]),
            l.read(rotary_q.inputs[3]), l.read(rotary_k.inputs[0]), l.read(node.inputs[2]),
            l.write(rotary_q.outputs[0]), keys, values});
  }
  Variant variant{.code = OpCode::kAttention, .precision = l.options().attention};
  variant.attributes.set(key::kScale, node.attributes.get(key::kScale));
  variant.attributes.set(key::kWindow, node.attributes.get_or(key::kWindow, 0));
  variant.attributes.set(key::kSoftcap, node.attributes.get_or(key::kSoftcap, 0));
  variant.attributes.set(key::kHeadMap, head_map(l, node));
  l.emit(node.name, variant,
         {l.read(node.inputs[0]), keys, values, l.read(node.input(3)), l.read(node.input(4)),
          l.write(node.outputs[0])});
}

}  // namespace

std::vector<OpRule> paged_attention_rules() {
  return {{Op::kPagedAttention, paged_attention_loops, false, lower_paged_attention}};
}

}  // namespace ark
