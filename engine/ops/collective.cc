// AllReduce and AllGather, inserted by the partitioner: one message to each peer, then one phase that reads
// the inboxes.
#include "base/ir/keys.h"
#include "engine/lower/lowering.h"
#include "engine/partition/op_rule.h"

namespace ark {
namespace {

// The ranks first, first + step, ... but the own one.
std::vector<int32_t> others(const Lowering& l, int32_t first, int32_t end, int32_t step = 1) {
  std::vector<int32_t> ranks;
  for (int32_t r = first; r < end; r += step)
    if (r != l.rank()) ranks.push_back(r);
  return ranks;
}

// The own part of `x`, then what `peers` send, in rank order: each gets the own part, by phases of `send`, whose
// further operands are `more`.
std::vector<Operand> exchange(Lowering& l, const std::string& name, Operand own, ValueId x,
                              const std::vector<int32_t>& peers,
                              const Variant& send = {.code = OpCode::kSend},
                              const std::vector<Operand>& more = {}) {
  std::vector<Operand> sent = {own};
  sent.insert(sent.end(), more.begin(), more.end());
  l.send_to_peers(name, send, sent, l.local_shape(x), peers);
  std::vector<Operand> operands = {own};
  for (const int32_t peer : peers) operands.push_back(l.inbox(peer, l.local_shape(x, peer)));
  return operands;
}

// The sum of the parts of the own machine's ranks.
Operand sum_on_machine(Lowering& l, const Node& node, int32_t machine_ranks) {
  const ValueId x = node.inputs[0];
  const int32_t first = l.rank() / machine_ranks * machine_ranks;
  const std::string name = node.name + " on a machine";
  std::vector<Operand> operands = exchange(l, name, l.read(x), x, others(l, first, first + machine_ranks));
  const Operand sum = l.temporary(name, l.local_shape(x));
  operands.insert(operands.end(), {Operand{}, Operand{}, sum});
  l.emit(name, {.code = OpCode::kRecvReduce}, operands);
  return sum;
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
  const ValueId x = node.inputs[0];
  const std::vector<int64_t> borders = borders_of_rows(l, x);
  const bool by_rows = !borders.empty();
  Variant send{.code = OpCode::kSend}, receive{.code = OpCode::kRecvReduce, .epilogue = c.epilogue};
  std::vector<Operand> ids;
  if (by_rows) {
    send = {.code = OpCode::kSendRows, .attributes = {{key::kBorders, borders}}};
    receive.code = OpCode::kRecvRows;
    receive.attributes = send.attributes;
    ids = {l.read(l.graph().inputs[0])};
  }
  Operand own = l.read(x);
  std::vector<int32_t> peers = others(l, 0, l.ranks());
  if (const int32_t near = l.options().machine_ranks; !by_rows && near > 1 && near < l.ranks()) {
    // Each rank with those of its place on other machines: a sum goes to each rank once, where the parts of all ranks
    // of a machine would.
    own = sum_on_machine(l, node, near);
    peers = others(l, l.rank() % near, l.ranks(), near);
  }
  std::vector<Operand> operands = exchange(l, node.name, own, x, peers, send, ids);
  operands.insert(operands.end(), ids.begin(), ids.end());
  operands.insert(operands.end(), {l.read(c.bias), l.read(c.residual), l.write(c.output)});
  l.emit(node.name, receive, operands);
}

void lower_all_gather(Lowering& l, const Node& node) {
  const int64_t axis = node.attributes.get(key::kAxis);
  const ValueId x = node.inputs[0];
  std::vector<Operand> operands = exchange(l, node.name, l.read(x), x, others(l, 0, l.ranks()));
  operands.push_back(l.write(node.outputs[0]));
  l.emit(node.name, {.code = OpCode::kRecvConcat, .attributes = {{key::kAxis, axis}}}, operands);
}

}  // namespace

std::vector<OpRule> collective_rules() {
  return {{Op::kAllReduce, nullptr, false, lower_all_reduce},
          {Op::kAllGather, nullptr, false, lower_all_gather}};
}

}  // namespace ark
