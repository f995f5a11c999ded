// AllReduce and AllGather, inserted by the partitioner: one message to each peer, then one phase that reads
// the inboxes.
#include "base/ir/keys.h"
#include "engine/lower/lowering.h"
#include "engine/partition/op_rule.h"

namespace ark {
namespace {

// The own part, then what the peers send, in rank order.
std::vector<Operand> exchange(Lowering& l, const Node& node) {
  const ValueId x = node.inputs[0];
  l.send_to_peers(node.name, x);
  std::vector<Operand> operands = {l.read(x)};
  for (int32_t peer = 0; peer < l.ranks(); ++peer) {
    if (peer != l.rank()) operands.push_back(l.inbox(peer, l.local_shape(x, peer)));
  }
  return operands;
}

void lower_all_reduce(Lowering& l, const Node& node) {
  const Cluster& c = l.cluster();
  std::vector<Operand> operands = exchange(l, node);
  operands.insert(operands.end(), {l.read(c.bias), l.read(c.residual), l.write(c.output)});
  l.emit(node.name, {.code = OpCode::kRecvReduce, .epilogue = c.epilogue}, operands);
}

void lower_all_gather(Lowering& l, const Node& node) {
  const int64_t axis = node.attributes.get(key::kAxis);
  std::vector<Operand> operands = exchange(l, node);
  operands.push_back(l.write(node.outputs[0]));
  l.emit(node.name, {.code = OpCode::kRecvConcat, .attributes = {{key::kAxis, axis}}}, operands);
}

}  // namespace

std::vector<OpRule> collective_rules() {
  return {{Op::kAllReduce, nullptr, false, lower_all_reduce},
          {Op::kAllGather, nullptr, false, lower_all_gather}};
}

}  // namespace ark
