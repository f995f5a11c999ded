#include <algorithm>
#include <map>
#include <utility>

#include "server/text/grammar/assembler.h"

namespace ark::text::grammar {
namespace {

using Kind = Pushdown::Kind;

// Of consuming nodes every other word.
std::vector<NodeId> nodes_behind(const Pushdown& automaton, NodeId node) {
  const auto words = automaton.operands(node);
  if (automaton.nodes[node].kind != Kind::kConsume) return {words.begin(), words.end()};
  std::vector<NodeId> out;
  for (std::size_t i = 1; i < words.size(); i += 2) out.push_back(words[i]);
  return out;
}

// The nodes from which a return can be reached: reading whatever it takes, or nothing.
class Reaching {
 public:
  Reaching(const Pushdown& automaton, bool may_read, Budget& budget)
      : automaton_(automaton), reaches_(automaton.nodes.size(), false) {
    const auto count = static_cast<NodeId>(automaton.nodes.size());
    std::vector<std::uint32_t> begin(count + 1, 0);  // where those in front of each node begin
    for (int pass = 0; pass < 2; ++pass) {
      for (NodeId node = 0; node < count; ++node) {
        budget.charge();
        if (automaton.nodes[node].kind == Kind::kConsume && !may_read) continue;
        for (const NodeId target : nodes_behind(automaton, node))
          if (pass == 0)
            ++begin[target];
          else
            in_front_[--begin[target]] = node;
      }
      if (pass == 1) break;
      for (NodeId node = 0; node < count; ++node) begin[node + 1] += begin[node];
      in_front_.resize(begin[count]);
    }
    spread(begin, budget);
  }

  bool operator[](NodeId node) const { return reaches_[node]; }

 private:
  void spread(const std::vector<std::uint32_t>& begin, Budget& budget) {
    std::vector<NodeId> todo;
    for (NodeId node = 0; node < automaton_.nodes.size(); ++node)
      if (automaton_.nodes[node].kind == Kind::kReturn) reach(node, todo);
    while (!todo.empty()) {
      const NodeId node = todo.back();
      todo.pop_back();
      for (std::uint32_t i = begin[node]; i < begin[node + 1]; ++i) {
        budget.charge();
        const NodeId before = in_front_[i];
        const auto words = automaton_.operands(before);
        if (automaton_.nodes[before].kind != Kind::kCall || (reaches_[words[0]] && reaches_[words[1]]))
          reach(before, todo);
      }
    }
  }
  void reach(NodeId node, std::vector<NodeId>& todo) {
    if (reaches_[node]) return;
    reaches_[node] = true;
    todo.push_back(node);
  }

  const Pushdown& automaton_;
  std::vector<bool> reaches_;
  std::vector<NodeId> in_front_;
};

// Strongly connected components of what can follow without a byte read (Tarjan, without recursion).
class Components {
 public:
  Components(const Pushdown& automaton, Budget& budget)
      : automaton_(automaton), passes_(automaton, false, budget), low_(automaton.nodes.size(), kUnseen) {
    for (NodeId node = 0; node < automaton.nodes.size(); ++node)
      if (low_[node] == kUnseen) visit(node, budget);
  }
  // Calls whose callee leads back to them.
  bool is_recursive(NodeId call) const {
    return component_[call] == component_[automaton_.operands(call)[0]];
  }

 private:
  static constexpr std::uint32_t kUnseen = UINT32_MAX;
  struct Frame {
    NodeId node;
    std::uint32_t order;
    std::vector<NodeId> targets;
  };

  std::vector<NodeId> targets_of(NodeId node) const {
    const Kind kind = automaton_.nodes[node].kind;
    if (kind == Kind::kConsume || kind == Kind::kReturn) return {};
    const auto words = automaton_.operands(node);
    if (kind == Kind::kCall && !passes_[words[0]]) return {words[0]};
    return {words.begin(), words.end()};
  }

  void enter(NodeId node) {
    low_[node] = seen_;
    frames_.push_back({node, seen_++, targets_of(node)});
    open_.push_back(node);
  }

  void visit(NodeId from, Budget& budget) {
    component_.resize(automaton_.nodes.size(), kUnseen);
    enter(from);
    while (!frames_.empty()) {
      budget.charge();
      Frame& frame = frames_.back();
      if (frame.targets.empty()) {
        leave();
        continue;
      }
      const NodeId target = frame.targets.back();
      if (low_[target] == kUnseen) {
        enter(target);  // and looks at it again when it has been left
        continue;
      }
      if (component_[target] == kUnseen) low_[frame.node] = std::min(low_[frame.node], low_[target]);
      frame.targets.pop_back();
    }
  }

  void leave() {
    const auto [node, order, targets] = std::move(frames_.back());
    frames_.pop_back();
    if (low_[node] != order) return;
    for (NodeId member = kUnseen; member != node;) {
      member = open_.back();
      open_.pop_back();
      component_[member] = node;
    }
  }

  const Pushdown& automaton_;
  Reaching passes_;
  std::vector<std::uint32_t> low_, component_;
  std::vector<Frame> frames_;
  std::vector<NodeId> open_;
  std::uint32_t seen_ = 0;
};

// Where a chain of splits with one target each ends; they then all lead there.
NodeId end_of_chain(Pushdown& automaton, NodeId node) {
  const auto next = [&](NodeId from) -> NodeId* {
    const Pushdown::Node& it = automaton.nodes[from];
    return it.kind == Kind::kSplit && it.end - it.begin == 1 ? &automaton.words[it.begin] : nullptr;
  };
  NodeId end = node;
  while (const NodeId* target = next(end)) end = *target;
  while (NodeId* target = next(node)) node = std::exchange(*target, end);
  return end;
}

}  // namespace

bool trim(Pushdown& automaton, Budget& budget) {
  const Reaching ends(automaton, true, budget);
  if (!ends[automaton.start]) return false;
  for (Pushdown::Node& node : automaton.nodes) {
    std::uint32_t* const words = automaton.words.data();
    std::uint32_t to = node.begin;
    const std::uint32_t step = node.kind == Kind::kConsume ? 2 : 1;
    if (node.kind == Kind::kCall && !ends[static_cast<NodeId>(&node - automaton.nodes.data())])
      node = {Kind::kSplit, node.begin, node.begin};
    if (node.kind == Kind::kCall || node.kind == Kind::kReturn) continue;
    for (std::uint32_t from = node.begin; from < node.end; from += step) {
      if (!ends[words[from + step - 1]]) continue;
      std::copy(words + from, words + from + step, words + to);
      to += step;
    }
    node.end = to;
  }
  return true;
}

NodeId find_left_recursion(const Pushdown& automaton, Budget& budget) {
  const Components components(automaton, budget);
  for (NodeId node = 0; node < automaton.nodes.size(); ++node)
    if (automaton.nodes[node].kind == Kind::kCall && components.is_recursive(node)) return node;
  return kReturnNode;
}

void pass_over_splits(Pushdown& automaton) {
  automaton.start = end_of_chain(automaton, automaton.start);
  for (NodeId node = 0; node < automaton.nodes.size(); ++node) {
    const std::uint32_t step = automaton.nodes[node].kind == Kind::kConsume ? 2 : 1;
    for (std::uint32_t i = automaton.nodes[node].begin + step - 1; i < automaton.nodes[node].end; i += step)
      automaton.words[i] = end_of_chain(automaton, automaton.words[i]);
  }
}

void classify_bytes(Pushdown& automaton) {
  automaton.classes = 1;
  for (const ByteSet& set : automaton.sets) {
    std::map<std::pair<unsigned, bool>, unsigned> classes;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const std::pair<unsigned, bool> key{automaton.class_of[byte], set[byte]};
      automaton.class_of[byte] = static_cast<std::uint8_t>(
          classes.try_emplace(key, static_cast<unsigned>(classes.size())).first->second);
    }
    automaton.classes = static_cast<unsigned>(classes.size());
  }
  for (unsigned byte = 0; byte < 256; ++byte)
    automaton.byte_of[automaton.class_of[byte]] = static_cast<std::uint8_t>(byte);
}

}  // namespace ark::text::grammar
