// A pushdown automaton read byte by byte: what it can be in after a text is a state; states and the ways between them
// are found when they are first asked for, and kept.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "server/text/budget.h"
#include "server/text/grammar/pushdown.h"

namespace ark::text::grammar {

// Owned by one thread, or locked by its owner.
class Automaton {
 public:
  using State = std::uint32_t;
  static constexpr State kDead = 0;  // no text of the grammar begins so

  explicit Automaton(std::shared_ptr<const Pushdown> pushdown);

  State start(Budget& budget);
  // Throws BudgetExceeded where what may be meant grows without end.
  State next(State state, std::uint8_t byte, Budget& budget) {
    const State known = next_[state * classes_ + pushdown_->class_of[byte]];
    return known != kUnknown ? known : find_next(state, pushdown_->class_of[byte], budget);
  }
  // A state that acts as this one does for texts of up to `left` bytes, and is the same for many: it has read less of
  // what is repeated. This one itself where there is no such.
  State simplified(State state, std::size_t& left, Budget& budget);
  bool may_end(State state) const { return states_[state].may_end; }
  bool must_end(State state) const {
    return states_[state].may_end && states_[state].begin == states_[state].end;
  }

  std::size_t bytes() const { return bytes_; }
  // The state in here that is `state` in another automaton of the same grammar.
  State adopt(const Automaton& other, State state, Budget& budget);

 private:
  static constexpr State kUnknown = UINT32_MAX;
  using StackId = std::uint32_t;  // what calls are to go on with; 0: none is open
  struct Frame {
    NodeId node;
    StackId below;
  };
  // A node that consumes, and what is open around it.
  struct Thread {
    NodeId node;
    StackId stack;
    auto operator<=>(const Thread&) const = default;
  };
  struct Found {
    std::uint32_t begin, end;  // in threads_
    bool may_end;
  };

  State find_next(State state, unsigned byte_class, Budget& budget);
  void begin_state();
  void follow(Thread thread, Budget& budget);
  bool is_new(Thread thread);
  State intern(Budget& budget);
  NodeId first_of_repeated(NodeId node, std::size_t& left) const;
  StackId push(NodeId node, StackId below);

  std::shared_ptr<const Pushdown> pushdown_;
  unsigned classes_;
  std::vector<Frame> stacks_{{kReturnNode, 0}};
  std::unordered_map<std::uint64_t, StackId> stack_ids_;
  std::vector<Found> states_;
  std::vector<Thread> threads_;
  std::vector<State> next_;  // by state and class of byte
  std::unordered_multimap<std::size_t, State> state_ids_;
  std::size_t bytes_ = 0;

  // Of the state that is being found.
  std::vector<Thread> todo_, reached_;
  bool may_end_ = false;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> seen_;  // open addressing: thread, and in which round
  std::uint32_t round_ = 0;
  std::size_t seen_count_ = 0;
};

}  // namespace ark::text::grammar
