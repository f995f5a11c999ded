// Rotary: by heads.
#include "base/ir/keys.h"
#include "engine/lower/lowering.h"
#include "engine/partition/op_rule.h"

namespace ark {
namespace {

std::vector<Loop> loops(const Graph&, const Node& node) {
  Loop heads = empty_loop(node);
  heads.inputs[0] = heads.outputs[0] = static_cast<int>(node.attributes.get(key::kHeadAxis));
  return {heads};
}

void lower(Lowering& l, const Node& node) {
  if (!l.is_decoder() || rank_of(l.graph(), node.inputs[0]) != 3 || rank_of(l.graph(), node.inputs[3]) != 1) {
    return l.emit_generic(node);
  }
  const Attributes& a = node.attributes;
  const Variant variant{.code = OpCode::kRotary,
                        .attributes = {{key::kInterleaved, a.get_or(key::kInterleaved, 0)},
                                       {key::kRotaryDim, a.get(key::kRotaryDim)},
                                       {key::kHeadAxis, a.get(key::kHeadAxis)}}};
  l.emit(node.name, variant,
         {l.read(node.inputs[0]), l.read(node.inputs[1]), l.read(node.inputs[2]), l.read(node.inputs[3]),
          l.write(node.outputs[0])});
}

}  // namespace

std::vector<OpRule> rotary_rules() { return {{Op::kRotary, loops, false, lower}}; }

}  // namespace ark
