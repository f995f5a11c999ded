#include "server/text/grammar/token_masks.h"

#include <algorithm>

#include "base/error.h"

namespace ark::text::grammar {
namespace {

constexpr std::size_t kStepBytes = std::size_t{64} << 20;
constexpr std::size_t kMaxStateBytes = std::size_t{4} << 20, kMaxMaskBytes = std::size_t{4} << 20;
constexpr std::size_t kLeastLeft = 4;      // bytes for which a mask of another state is worth while
constexpr std::size_t kNodesPerUnit = 32;  // of a trie that is walked

template <typename Function>
auto within(std::size_t& work_left, Function step) {
  struct Taken {  // also by what fails
    std::size_t& left;
    Budget budget;
    ~Taken() { left = budget.work_left(); }
  } taken{work_left, Budget(work_left, kStepBytes)};
  try {
    return step(taken.budget);
  } catch (const BudgetExceeded& error) {
    throw Error(Code::kInvalidArgument,
                std::string("the form that the text must have is too ambiguous: a token ") + error.what() +
                    "; give it fewer ways to read one text");
  }
}

}  // namespace

TokenMasks::TokenMasks(std::shared_ptr<const Pushdown> pushdown, const TokenTrie& trie)
    : trie_(trie), automaton_(std::move(pushdown)), path_(trie.max_depth() + 1) {}

TokenMasks::Position TokenMasks::start(std::size_t& work_left) {
  const std::lock_guard lock(mutex_);
  return within(work_left, [&](Budget& budget) { return position_of(automaton_.start(budget), true); });
}

TokenMasks::Position TokenMasks::after(const Position& position, std::int32_t token, std::size_t& work_left) {
  const std::string_view bytes = position.is_first ? trie_.bytes_of_first(token) : trie_.bytes_of(token);
  if (bytes.empty()) return {};
  const std::lock_guard lock(mutex_);
  return within(work_left, [&](Budget& budget) {
    Automaton::State state = position.state;
    for (const char byte : bytes) state = automaton_.next(state, static_cast<std::uint8_t>(byte), budget);
    return position_of(state, false);
  });
}

void TokenMasks::fill(const Position& position, std::span<std::uint32_t> mask, std::size_t& work_left) {
  const std::lock_guard lock(mutex_);
  const Mask& known = mask_of(position, work_left);
  const std::size_t words = known.is_list ? 0 : std::min(mask.size(), known.words.size());
  std::copy_n(known.words.begin(), words, mask.begin());
  std::fill(mask.begin() + static_cast<std::ptrdiff_t>(words), mask.end(), 0);
  if (!known.is_list) return;
  for (const std::uint32_t token : known.words)
    if (token / 32 < mask.size()) mask[token / 32] |= std::uint32_t{1} << token % 32;
}

TokenMasks::Position TokenMasks::adopt(TokenMasks& other, const Position& position, std::size_t& work_left) {
  const std::scoped_lock lock(mutex_, other.mutex_);
  return within(work_left, [&](Budget& budget) {
    return position_of(automaton_.adopt(other.automaton_, position.state, budget), position.is_first);
  });
}

bool TokenMasks::is_full() {
  const std::lock_guard lock(mutex_);
  return automaton_.bytes() > kMaxStateBytes;
}

std::size_t TokenMasks::bytes() {
  const std::lock_guard lock(mutex_);
  return automaton_.bytes() + mask_bytes_;
}

TokenMasks::Position TokenMasks::position_of(Automaton::State state, bool is_first) {
  return {state, is_first, automaton_.may_end(state), automaton_.must_end(state)};
}

const TokenMasks::Mask& TokenMasks::mask_of(const Position& position, std::size_t& work_left) {
  const std::uint64_t key = std::uint64_t{position.state} << 1 | position.is_first;
  if (const auto found = masks_.find(key); found != masks_.end()) return found->second;
  Mask mask = make_mask(position, work_left);
  if (mask_bytes_ > kMaxMaskBytes) {
    masks_.clear();
    mask_bytes_ = 0;
  }
  mask_bytes_ += sizeof mask + mask.words.size() * sizeof mask.words[0];
  return masks_.emplace(key, std::move(mask)).first->second;
}

TokenMasks::Mask TokenMasks::make_mask(const Position& position, std::size_t& work_left) {
  std::size_t left = 0;
  const Automaton::State simple = within(work_left, [&](Budget& budget) {
    return position.is_first ? position.state : automaton_.simplified(position.state, left, budget);
  });
  if (simple != position.state && left >= kLeastLeft) {
    Mask mask = mask_of({.state = simple, .is_first = false}, work_left);
    if (!mask.is_list) {
      within(work_left, [&](Budget& budget) { return revise(mask, position.state, left, budget); });
      return mask;
    }
  }
  found_.clear();
  const auto nodes = trie_.nodes();
  within(work_left, [&](Budget& budget) {
    budget.charge(nodes.size() / kNodesPerUnit);
    std::size_t space = nodes.size();  // below it are tokens that show less where they are the first
    if (position.is_first && trie_.first_space() != TokenTrie::FirstSpace::kStays)
      for (space = 0; space < nodes.size() && nodes[space].byte < ' ';) space = nodes[space].end;
    const std::size_t behind = space < nodes.size() && nodes[space].byte == ' ' ? nodes[space].end : space;
    walk(0, space, position.state, budget);
    walk(space + 1, behind, position.state, budget);
    std::erase_if(
        found_, [&](std::int32_t token) { return position.is_first && trie_.bytes_of_first(token).empty(); });
    walk(behind, nodes.size(), position.state, budget);
    return 0;
  });
  const std::size_t words = (static_cast<std::size_t>(trie_.size()) + 31) / 32;
  if (found_.size() <= words) return {true, {found_.begin(), found_.end()}};
  Mask mask{false, std::vector<std::uint32_t>(words, 0)};
  for (const std::int32_t token : found_) mask.words[token / 32] |= std::uint32_t{1} << token % 32;
  return mask;
}

// The mask of another state becomes this one's: they differ in tokens of more than `left` bytes only.
bool TokenMasks::revise(Mask& mask, Automaton::State state, std::size_t left, Budget& budget) {
  const auto nodes = trie_.nodes();
  const TokenTrie::Node* const first = nodes.data();
  const std::int32_t* const order = trie_.order().data();
  path_[0] = state;
  for (std::size_t i = 0; i < nodes.size();) {
    const TokenTrie::Node& node = first[i];
    if (node.longest <= left) {
      i = node.end;
      continue;
    }
    path_[node.depth + 1] = automaton_.next(path_[node.depth], node.byte, budget);
    const bool is_dead = path_[node.depth + 1] == Automaton::kDead;
    i = is_dead ? node.end : i + 1;
    for (std::uint32_t t = node.first_token; t < first[i].first_token; ++t) {
      std::uint32_t& word = mask.words[order[t] / 32];
      const std::uint32_t bit = std::uint32_t{1} << order[t] % 32;
      word = is_dead ? word & ~bit : word | bit;
    }
  }
  return true;
}

// The nodes [begin, end) are trees below one node, which `state` is of.
void TokenMasks::walk(std::size_t begin, std::size_t end, Automaton::State state, Budget& budget) {
  if (begin >= end) return;
  const TokenTrie::Node* const nodes = trie_.nodes().data();
  const std::int32_t* const order = trie_.order().data();
  Automaton::State* const path = path_.data();
  path[nodes[begin].depth] = state;
  for (std::size_t i = begin; i < end;) {
    const TokenTrie::Node& node = nodes[i];
    const Automaton::State next = automaton_.next(path[node.depth], node.byte, budget);
    if (next == Automaton::kDead) {
      i = node.end;
      continue;
    }
    path[node.depth + 1] = next;
    ++i;
    for (std::uint32_t t = node.first_token; t < nodes[i].first_token; ++t) found_.push_back(order[t]);
  }
}

}  // namespace ark::text::grammar
