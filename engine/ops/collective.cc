// AllReduce and AllGather, inserted by the partitioner: one message to each peer, then one phase that reads
// the inboxes.
#include "base/ir/keys.h"
#include "engine/lower/lowering.h"
#include "engine/partition/op_rule.h"

namespace ark {
namespace {

// The own part, then what the peers send, in rank order. `send` has the own part as its first operand.
std::vector<Operand> exchange(Lowering& l, const Node& node, const Variant& send = {.code = OpCode::kSend},
                              const std::vector<Operand>& more = {}) {
  const ValueId x = node.inputs[0];
  std::vector<Operand> operands = {l.read(x)};
  std::vector<Operand> sent = operands;
  sent.insert(sent.end(), more.begin(), more.end());
  l.send_to_peers(node.name, send, sent, l.local_shape(x));
  for (int32_t peer = 0; peer < l.ranks(); ++peer) {
    if (peer != l.rank()) operands.push_back(l.inbox(peer, l.local_shape(x, peer)));
  }
  return operands;
}

// Where the tokens' rows of a table are added up that is split by rows: the first row of each rank's part, and the end.
// Else empty.
std::vector<int64_t> borders_of_rows(Lowering& l, ValueId x) {
  const Node* look_up = l.graph().producer(x);
  if (l.options().send_zeros || !l.is_decoder() || !look_up || !is_embedding(l.graph(), *look_up) ||
      look_up->inputs[1] != l.graph().inputs[0] || rank_of(l.graph(), x) != 2)
    return {};
  std::vector<int64_t> borders = {l.part(look_up->inputs[0], 0, 0).begin};
  for (int32_t r = 0; r < l.ranks(); ++r) {
    const Range rows = l.part(look_up->inputs[0], 0, r);
    if (rows.begin != borders.back()) return {};
    borders.push_back(rows.end);
  }
  return borders;
}

void lower_all_reduce(Lowering& l, const Node& node) {
  const Cluster& c = l.cluster();
  const std::vector<int64_t> borders = borders_of_rows(l, node.inputs[0]);
  const bool by_rows = !borders.empty();
  Variant send{.code = OpCode::kSend}, receive{.code = OpCode::kRecvReduce, .epilogue = c.epilogue};
  std::vector<Operand> ids;
  if (by_rows) {
    send = {.code = OpCode::kSendRows, .attributes = {{key::kBorders, borders}}};
    receive.code = OpCode::kRecvRows;
    receive.attributes = send.attributes;
    ids = {l.read(l.graph().inputs[0])};
  }
  std::vector<Operand> operands = exchange(l, node, send, ids);
  operands.insert(operands.end(), ids.begin(), ids.end());
  operands.insert(operands.end(), {l.read(c.bias), l.read(c.residual), l.write(c.output)});
  l.emit(node.name, receive, operands);
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
