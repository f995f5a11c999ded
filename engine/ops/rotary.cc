// Rotary: by heads.
#include "base/ir/keys.h"
#include "engine/lower/lowering.h"
#include "engine/partition/op_rule.h"

namespace ark {
namespace {

std::vector<Loop> rotary_loops(const Graph&, const Node& node) {
  Loop heads = empty_loop(node);
  heads.inputs[0] = heads.outputs[0] = static_cast<int>(node.attributes.get(key::kHeadAxis));
  return {heads};
}

void lower_rotary(Lowering& l, const Node& node) {
  if (!l.is_decoder() || !is_token_rotary(l.graph(), node)) return l.emit_generic(node);
  l.emit(node.name, {.code = OpCode::kRotary, .attributes = rotary_attributes(node)},
         {l.read(node.inputs[0]), l.read(node.inputs[1]), l.read(node.inputs[2]), l.read(node.inputs[3]),
          l.write(node.outputs[0])});
}

}  // namespace

std::vector<OpRule> rotary_rules() { return {{Op::kRotary, rotary_loops, false, lower_rotary}}; }

}  // namespace ark
