#include "server/text/grammar/assembler.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>

#include "base/error.h"

namespace ark::text::grammar {
namespace {

using Kind = Pushdown::Kind;
using Words = std::vector<std::uint32_t>;

constexpr std::size_t kManyTimes = 8;
constexpr int kLookDepth = 6;
constexpr std::size_t kBytesPerNode = 96, kBytesPerWord = 8;  // with what finds them

// Expressions become nodes from their ends: what follows is known when a part is emitted. Equal nodes are one.
class Assembler {
 public:
  Assembler(const Rules& rules, Budget& budget)
      : rules_(rules), budget_(budget), rule_heads_(rules.size(), kReturnNode) {
    add(Kind::kReturn, {});
  }

  Pushdown run(RuleId root) {
    automaton_.start = head_of(root);
    while (!todo_.empty()) {
      const auto [head, expression] = todo_.back();
      todo_.pop_back();
      patch(head, {emit(*expression, kReturnNode)});
    }
    return std::move(automaton_);
  }

  // The rule whose first node this is.
  std::optional<RuleId> rule_at(NodeId head) const {
    const auto found = std::find(rule_heads_.begin(), rule_heads_.end(), head);
    if (head == kReturnNode || found == rule_heads_.end()) return std::nullopt;
    return static_cast<RuleId>(found - rule_heads_.begin());
  }

 private:
  NodeId emit(const Expression& e, NodeId next) {
    budget_.charge();
    switch (e.kind) {
      case Expression::Kind::kCharacter:
        return emit_character(e.characters, next);
      case Expression::Kind::kTexts:
        return emit_texts(e.texts, next);
      case Expression::Kind::kSequence:
        for (std::size_t i = e.parts.size(); i-- > 0;) next = emit(*e.parts[i], next);
        return next;
      case Expression::Kind::kChoice: {
        Words targets;
        for (const ExpressionPtr& part : e.parts) targets.push_back(emit(*part, next));
        return split(std::move(targets));
      }
      case Expression::Kind::kRepeat:
        return emit_repeat(e, next);
      case Expression::Kind::kRule:
        return call(head_of(e.rule), next);
    }
    return next;
  }

  NodeId emit_repeat(const Expression& e, NodeId next) {
    const Expression& part = *e.parts[0];
    const bool is_unbounded = e.max == kUnbounded;
    const std::uint32_t copies = is_unbounded ? e.min + 1 : e.max;
    const NodeId routine = copies > 1 && !is_small(part) ? routine_of(part) : kReturnNode;
    std::vector<NodeId> times;  // by how many are left
    const auto once = [&](NodeId then) {
      times.push_back(routine == kReturnNode ? emit(part, then) : call(routine, then));
      return times.back();
    };
    if (is_unbounded) {
      const NodeId loop = reserve(2);
      patch(loop, {once(loop), next});
      next = loop;
    } else {
      NodeId rest = next;
      std::vector<NodeId> splits;
      for (std::uint32_t i = e.min; i < e.max; ++i) splits.push_back(rest = split({once(rest), next}));
      note_repeated(part, times);
      note_repeated(part, splits);
      next = rest;
    }
    times.clear();
    for (std::uint32_t i = 0; i < e.min; ++i) next = once(next);
    note_repeated(part, times);
    return next;
  }

  // Nodes of times of a part, by how many are left.
  void note_repeated(const Expression& part, const std::vector<NodeId>& nodes) {
    if (nodes.size() < kManyTimes || !reads_a_byte(part, kLookDepth)) return;
    automaton_.repeated.resize(automaton_.nodes.size(), {kReturnNode, 0});
    for (std::uint32_t i = 0; i + 1 < nodes.size(); ++i)
      if (automaton_.repeated[nodes[i]].left == 0) automaton_.repeated[nodes[i]] = {nodes.back(), i + 1};
  }

  // Whether no text of it is empty; false also where that does not show soon.
  bool reads_a_byte(const Expression& e, int depth) const {
    const auto reads = [&](const ExpressionPtr& part) { return part && reads_a_byte(*part, depth - 1); };
    if (depth == 0) return false;
    switch (e.kind) {
      case Expression::Kind::kCharacter:
        return true;
      case Expression::Kind::kTexts:
        return std::ranges::none_of(e.texts, &std::string::empty);
      case Expression::Kind::kSequence:
        return std::ranges::any_of(e.parts, reads);
      case Expression::Kind::kChoice:
        return std::ranges::all_of(e.parts, reads);
      case Expression::Kind::kRepeat:
        return e.min > 0 && reads(e.parts[0]);
      case Expression::Kind::kRule:
        return reads(rules_.expression(e.rule));
    }
    return false;
  }

  // Whether each copy of it takes about one node.
  static bool is_small(const Expression& e) {
    return e.kind == Expression::Kind::kRule ||
           (e.kind == Expression::Kind::kCharacter && e.characters.is_ascii()) ||
           (e.kind == Expression::Kind::kTexts && e.texts.size() == 1 && e.texts[0].size() <= 2);
  }

  // What is beyond ASCII is most often the same, and takes several nodes: it is called.
  NodeId emit_character(const CodeSet& set, NodeId next) {
    budget_.charge(set.ranges().size());
    const CodeSet ascii = set & CodeSet{{0, 0x7F}}, others = set - ascii;
    Words targets;
    if (!ascii.empty()) targets.push_back(emit_bytes(utf8_sequences(ascii), 0, next));
    if (!others.empty()) {
      const auto [found, is_new] = character_heads_.try_emplace(others, kReturnNode);
      if (is_new) {
        const std::vector<ByteSequence> sequences = utf8_sequences(others);
        budget_.charge(sequences.size());
        found->second = emit_bytes(sequences, 0, kReturnNode);
      }
      targets.push_back(call(found->second, next));
    }
    return split(std::move(targets));
  }

  // Sequences that are equal up to `depth`, as a tree.
  NodeId emit_bytes(std::span<const ByteSequence> sequences, int depth, NodeId next) {
    std::map<NodeId, ByteSet> edges;
    while (!sequences.empty()) {
      const ByteRange range = sequences[0].bytes[depth];
      std::size_t equal = 1;
      while (equal < sequences.size() && sequences[equal].bytes[depth] == range) ++equal;
      const bool is_last = sequences[0].length == depth + 1;
      ByteSet& set = edges[is_last ? next : emit_bytes(sequences.first(equal), depth + 1, next)];
      for (unsigned byte = range.first; byte <= range.last; ++byte) set.set(byte);
      sequences = sequences.subspan(equal);
    }
    return consume(edges);
  }

  // A tree of the texts, whose nodes are emitted behind those that they lead to.
  NodeId emit_texts(const std::vector<std::string>& texts, NodeId next) {
    struct Branch {
      std::map<std::uint8_t, std::uint32_t> children;
      bool ends = false;
    };
    std::vector<Branch> tree(1);
    for (const std::string& text : texts) {
      std::uint32_t at = 0;
      budget_.charge_bytes(text.size() * sizeof(Branch));
      for (const char byte : text) {
        const auto [child, is_new] =
            tree[at].children.try_emplace(static_cast<std::uint8_t>(byte), tree.size());
        at = child->second;
        if (is_new) tree.emplace_back();
      }
      tree[at].ends = true;
    }
    std::vector<NodeId> emitted(tree.size());
    for (std::size_t i = tree.size(); i-- > 0;) {
      std::map<NodeId, ByteSet> edges;
      for (const auto& [byte, child] : tree[i].children) edges[emitted[child]].set(byte);
      emitted[i] = edges.empty()   ? (tree[i].ends ? next : split({}))
                   : !tree[i].ends ? consume(edges)
                                   : split({consume(edges), next});
    }
    return emitted[0];
  }

  NodeId consume(const std::map<NodeId, ByteSet>& edges) {
    Words words;
    for (const auto& [target, set] : edges) words.insert(words.end(), {id_of(set), target});
    return intern(Kind::kConsume, std::move(words));
  }

  NodeId split(Words targets) {
    std::sort(targets.begin(), targets.end());
    targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
    return targets.size() == 1 ? targets[0] : intern(Kind::kSplit, std::move(targets));
  }

  // What ends with a call goes on in what it calls.
  NodeId call(NodeId head, NodeId next) {
    return next == kReturnNode ? head : intern(Kind::kCall, {head, next});
  }

  NodeId head_of(RuleId rule) {
    NodeId& head = rule_heads_[rule];
    if (head == kReturnNode) todo_.emplace_back(head = reserve(1), rules_.expression(rule).get());
    return head;
  }

  // The node of a part that is assembled once and called.
  NodeId routine_of(const Expression& e) {
    const auto [found, is_new] = routines_.try_emplace(&e, kReturnNode);
    if (is_new) todo_.emplace_back(found->second = reserve(1), &e);
    return found->second;
  }

  NodeId reserve(std::size_t targets) { return add(Kind::kSplit, Words(targets, kReturnNode)); }
  void patch(NodeId node, const Words& targets) {
    std::copy(targets.begin(), targets.end(), automaton_.words.begin() + automaton_.nodes[node].begin);
  }

  NodeId intern(Kind kind, Words words) {
    std::size_t hash = static_cast<std::size_t>(kind);
    for (const std::uint32_t word : words) hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    const auto [begin, end] = nodes_by_hash_.equal_range(hash);
    for (auto at = begin; at != end; ++at)
      if (automaton_.nodes[at->second].kind == kind &&
          std::ranges::equal(automaton_.operands(at->second), words))
        return at->second;
    return nodes_by_hash_.emplace(hash, add(kind, words))->second;
  }

  NodeId add(Kind kind, const Words& words) {
    budget_.charge_bytes(kBytesPerNode + words.size() * kBytesPerWord);
    const auto begin = static_cast<std::uint32_t>(automaton_.words.size());
    automaton_.words.insert(automaton_.words.end(), words.begin(), words.end());
    automaton_.nodes.push_back({kind, begin, static_cast<std::uint32_t>(automaton_.words.size())});
    return static_cast<NodeId>(automaton_.nodes.size() - 1);
  }

  std::uint32_t id_of(const ByteSet& set) {
    const auto [found, is_new] = sets_.try_emplace(set, static_cast<std::uint32_t>(automaton_.sets.size()));
    if (is_new) {
      budget_.charge_bytes(2 * sizeof set);
      automaton_.sets.push_back(set);
    }
    return found->second;
  }

  const Rules& rules_;
  Budget& budget_;
  Pushdown automaton_;
  std::vector<NodeId> rule_heads_;  // kReturnNode: not referred to so far
  std::vector<std::pair<NodeId, const Expression*>> todo_;
  std::unordered_map<const Expression*, NodeId> routines_;
  std::map<CodeSet, NodeId> character_heads_;
  std::unordered_map<ByteSet, std::uint32_t> sets_;
  std::unordered_multimap<std::size_t, NodeId> nodes_by_hash_;
};

}  // namespace

Pushdown assemble(const Rules& rules, RuleId root, std::string_view what, Budget& budget) {
  Assembler assembler(rules, budget);
  Pushdown automaton = assembler.run(root);
  if (!trim(automaton, budget))
    throw Error(Code::kInvalidArgument, (rules.obstacle().empty() ? std::string(what) : rules.obstacle()) +
                                            ": no text fits; allow at least one");
  if (const NodeId node = find_left_recursion(automaton, budget); node != kReturnNode) {
    const std::optional<RuleId> rule = assembler.rule_at(automaton.operands(node)[0]);
    const std::string name = rule ? escaped(rules.name(*rule), 80) : "";
    throw Error(Code::kInvalidArgument, std::string(what) + ": rule" +
                                            (name.empty() ? "" : " \"" + name + "\"") +
                                            " begins with itself (left recursion); write it as a repetition");
  }
  pass_over_splits(automaton);
  classify_bytes(automaton);
  return automaton;
}

}  // namespace ark::text::grammar
