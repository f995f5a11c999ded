#include "server/text/grammar/automaton.h"

#include <algorithm>
#include <array>

namespace ark::text::grammar {
namespace {

using Kind = Pushdown::Kind;

constexpr std::size_t kFirstSeen = 64;
constexpr std::size_t kFramesLookedAt = 8;  // of a stack: what a token can come to
constexpr std::size_t kMapNode = 48;        // bytes that an entry of a map takes

std::uint64_t mixed(std::uint64_t key) {
  key *= 0x9E3779B97F4A7C15u;
  return key ^ key >> 32;
}

}  // namespace

Automaton::Automaton(std::shared_ptr<const Pushdown> pushdown)
    : pushdown_(std::move(pushdown)), classes_(pushdown_->classes), seen_(kFirstSeen) {
  states_.push_back({0, 0, false});
  next_.assign(classes_, kDead);
}

Automaton::State Automaton::start(Budget& budget) {
  begin_state();
  follow({pushdown_->start, 0}, budget);
  return intern(budget);
}

Automaton::State Automaton::find_next(State state, unsigned byte_class, Budget& budget) {
  const std::uint8_t byte = pushdown_->byte_of[byte_class];
  begin_state();
  for (std::uint32_t i = states_[state].begin; i < states_[state].end; ++i) {
    const Thread thread = threads_[i];
    const auto edges = pushdown_->operands(thread.node);
    budget.charge();
    for (std::size_t e = 0; e < edges.size(); e += 2)
      if (pushdown_->sets[edges[e]][byte]) follow({edges[e + 1], thread.stack}, budget);
  }
  const State found = intern(budget);
  return next_[state * classes_ + byte_class] = found;
}

// What an earlier one left behind, which may have been given up, counts no more.
void Automaton::begin_state() {
  reached_.clear();
  may_end_ = false;
  ++round_;
  seen_count_ = 0;
}

// Goes on from a node to all that consume, over splits, calls and returns.
void Automaton::follow(Thread from, Budget& budget) {
  todo_.assign(1, from);
  while (!todo_.empty()) {
    const Thread at = todo_.back();
    todo_.pop_back();
    budget.charge();
    if (!is_new(at)) continue;
    const auto operands = pushdown_->operands(at.node);
    switch (pushdown_->nodes[at.node].kind) {
      case Kind::kConsume:
        reached_.push_back(at);
        break;
      case Kind::kCall:
        todo_.push_back({operands[0], push(operands[1], at.stack)});
        break;
      case Kind::kSplit:
        for (const NodeId target : operands) todo_.push_back({target, at.stack});
        break;
      case Kind::kReturn:
        if (at.stack == 0)
          may_end_ = true;
        else
          todo_.push_back({stacks_[at.stack].node, stacks_[at.stack].below});
    }
  }
}

// Each thread is followed once for a state.
bool Automaton::is_new(Thread thread) {
  if (2 * (seen_count_ + 1) > seen_.size()) {
    std::vector<std::pair<std::uint64_t, std::uint32_t>> before(4 * seen_.size());
    std::swap(before, seen_);
    seen_count_ = 0;
    for (const auto& [key, round] : before)
      if (round == round_) is_new({static_cast<NodeId>(key >> 32), static_cast<StackId>(key)});
  }
  const std::uint64_t key = std::uint64_t{thread.node} << 32 | thread.stack;
  std::size_t at = mixed(key) & (seen_.size() - 1);
  while (seen_[at].second == round_) {
    if (seen_[at].first == key) return false;
    at = (at + 1) & (seen_.size() - 1);
  }
  seen_[at] = {key, round_};
  ++seen_count_;
  return true;
}

// The state of the threads that were reached.
Automaton::State Automaton::intern(Budget& budget) {
  std::vector<Thread>& threads = reached_;
  if (threads.empty() && !may_end_) return kDead;
  budget.charge(threads.size());
  std::sort(threads.begin(), threads.end());
  threads.erase(std::unique(threads.begin(), threads.end()), threads.end());
  std::size_t hash = may_end_;
  for (const Thread& thread : threads) hash = mixed(hash ^ (std::uint64_t{thread.node} << 32 | thread.stack));
  const auto [first, last] = state_ids_.equal_range(hash);
  for (auto at = first; at != last; ++at) {
    const Found& known = states_[at->second];
    if (known.may_end == may_end_ && std::equal(threads.begin(), threads.end(),
                                                threads_.begin() + known.begin, threads_.begin() + known.end))
      return at->second;
  }
  const auto begin = static_cast<std::uint32_t>(threads_.size());
  threads_.insert(threads_.end(), threads.begin(), threads.end());
  const auto state = static_cast<State>(states_.size());
  states_.push_back({begin, static_cast<std::uint32_t>(threads_.size()), may_end_});
  next_.resize(next_.size() + classes_, kUnknown);
  state_ids_.emplace(hash, state);
  const std::size_t bytes =
      sizeof(Found) + threads.size() * sizeof(Thread) + classes_ * sizeof(State) + kMapNode;
  bytes_ += bytes;
  budget.charge_bytes(bytes);
  return state;
}

Automaton::StackId Automaton::push(NodeId node, StackId below) {
  const auto [found, is_new] =
      stack_ids_.try_emplace(std::uint64_t{node} << 32 | below, static_cast<StackId>(stacks_.size()));
  if (is_new) {
    stacks_.push_back({node, below});
    bytes_ += sizeof(Frame) + kMapNode;
  }
  return found->second;
}

Automaton::State Automaton::simplified(State state, std::size_t& left, Budget& budget) {
  begin_state();
  left = SIZE_MAX;
  may_end_ = states_[state].may_end;
  for (std::uint32_t i = states_[state].begin; i < states_[state].end; ++i) {
    Thread thread = threads_[i];
    budget.charge(kFramesLookedAt);
    thread.node = first_of_repeated(thread.node, left);
    std::array<NodeId, kFramesLookedAt> frames;
    std::size_t count = 0;
    for (; count < kFramesLookedAt && thread.stack != 0; ++count) {
      frames[count] = first_of_repeated(stacks_[thread.stack].node, left);
      thread.stack = stacks_[thread.stack].below;
    }
    while (count > 0) thread.stack = push(frames[--count], thread.stack);
    reached_.push_back(thread);
  }
  return left == SIZE_MAX ? state : intern(budget);
}

NodeId Automaton::first_of_repeated(NodeId node, std::size_t& left) const {
  if (node >= pushdown_->repeated.size() || pushdown_->repeated[node].left == 0) return node;
  left = std::min<std::size_t>(left, pushdown_->repeated[node].left);
  return pushdown_->repeated[node].first;
}

Automaton::State Automaton::adopt(const Automaton& other, State state, Budget& budget) {
  std::vector<StackId> stacks;
  std::vector<Thread> threads(other.threads_.begin() + other.states_[state].begin,
                              other.threads_.begin() + other.states_[state].end);
  std::unordered_map<StackId, StackId> own{{0, 0}};
  for (const Thread& thread : threads)
    for (StackId at = thread.stack; own.try_emplace(at, 0).second; at = other.stacks_[at].below) {
      budget.charge();
      stacks.push_back(at);
    }
  std::sort(stacks.begin(), stacks.end());  // what is below was there before
  for (const StackId stack : stacks)
    own[stack] = push(other.stacks_[stack].node, own[other.stacks_[stack].below]);
  begin_state();
  for (const Thread& thread : threads) reached_.push_back({thread.node, own[thread.stack]});
  may_end_ = other.states_[state].may_end;
  return intern(budget);
}

}  // namespace ark::text::grammar
