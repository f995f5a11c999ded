// MatMul(a, Transpose(b)) -> MatMul(a, b) {trans_b}: no copy of K^T, and tied embeddings stay one payload in
// one orientation.
#include "base/ir/keys.h"
#include "importer/passes/match.h"
#include "importer/passes/passes.h"

namespace ark::passes {
namespace {

// A permutation that brings the innermost axis to the last place but one: swapping its last two entries
// leaves rows whole.
bool turns_rows(const std::vector<int64_t>& perm) {
  return perm.size() >= 2 && perm[perm.size() - 2] == static_cast<int64_t>(perm.size()) - 1;
}

std::vector<int64_t> swapped(std::vector<int64_t> perm) {
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return perm;
}

// A value that holds the same view of the same payload already, or a new one.
ValueId value_with(Graph& graph, const ConstantPtr& constant) {
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    const ConstantPtr& c = graph.values[i].constant;
    if (c && same_payload(*c, *constant) && c->dims == constant->dims && c->perm == constant->perm &&
        c->begin == constant->begin && c->stored_dims == constant->stored_dims)
      return static_cast<ValueId>(i);
  }
  return graph.add_constant(constant);
}

// b without its last transposition, or kNoValue.
ValueId unturned(Graph& graph, ValueId b) {
  if (const ConstantPtr c = graph.value(b).constant) {
    if (!turns_rows(c->perm)) return kNoValue;
    std::vector<int64_t> last_two(c->perm.size());
    for (std::size_t i = 0; i < last_two.size(); ++i) last_two[i] = static_cast<int64_t>(i);
    const ConstantPtr view = transposed(c, swapped(last_two));
    return view ? value_with(graph, view) : kNoValue;
  }
  const Node* turn = made_by(graph, b, Op::kTranspose);
  if (!turn || !turns_rows(turn->attributes.get(key::kPerm))) return kNoValue;
  const std::vector<int64_t> perm = swapped(turn->attributes.get(key::kPerm));
  return is_identity(perm) ? turn->inputs[0] : kNoValue;
}

// K as [B, S, H, D] -> [B, H, D, S] in one step: heads first, the rest by trans_b.
bool split_turn(Graph& graph, ValueId b, int uses) {
  const NodeId producer = graph.value(b).producer;
  if (producer == kNoNode || graph.node(producer).op != Op::kTranspose || uses != 1) return false;
  Node& turn = graph.node(producer);
  if (!turns_rows(turn.attributes.get(key::kPerm))) return false;
  turn.attributes.set(key::kPerm, swapped(turn.attributes.get(key::kPerm)));
  Shape& shape = *graph.value(b).shape;
  std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
  return true;
}

}  // namespace

bool absorb_transposes(Graph& graph) {
  bool changed = false;
  const auto uses = use_counts(graph);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].removed || graph.nodes[i].op != Op::kMatMul) continue;
    const ValueId b = graph.nodes[i].inputs[1];
    if (const ValueId plain = unturned(graph, b); plain != kNoValue)
      graph.nodes[i].inputs[1] = plain;
    else if (graph.value(b).constant || !graph.value(b).shape || !split_turn(graph, b, uses[b]))
      continue;
    Node& node = graph.nodes[i];
    if (node.attributes.get_or(key::kTransB, 0))
      node.attributes.erase(key::kTransB);
    else
      node.attributes.set(key::kTransB, 1);
    changed = true;
  }
  return changed;
}

}  // namespace ark::passes
