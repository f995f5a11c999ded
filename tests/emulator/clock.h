// Vector clocks for the race detector.
//
// An actor (a CUDA thread, or a block's copy engine) counts its releases: `own`. A clock says per actor up to
// which count its accesses happened before. What an actor knows of the others is an immutable table that the
// threads of a block share after a barrier, so a barrier costs one table and not one a thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace ark::emulator {

using ActorId = uint16_t;

// Counts per actor. Actors beyond the end, and absent tables, stand at the detector's start of time.
using Table = std::vector<uint32_t>;
using Clock = std::shared_ptr<const Table>;

inline uint32_t count_of(const Clock& clock, ActorId actor) {
  return clock && actor < clock->size() ? (*clock)[actor] : 0;
}

// Whether b adds nothing to a.
inline bool covers(const Clock& a, const Clock& b) {
  if (a == b || !b) return true;
  if (!a || a->size() < b->size()) return false;
  const uint32_t *x = a->data(), *y = b->data();
  constexpr size_t kAtOnce = 64;  // in vectors
  for (size_t i = 0, n = b->size(); i < n; i += kAtOnce) {
    uint32_t less = 0;
    for (size_t j = i, end = std::min(n, i + kAtOnce); j < end; j++) less |= x[j] < y[j];
    if (less) return false;
  }
  return true;
}

inline void raise_to(Table& table, const Clock& clock) {
  if (!clock) return;
  if (table.size() < clock->size()) table.resize(clock->size());
  uint32_t* to = table.data();
  const uint32_t* from = clock->data();
  for (size_t i = 0, n = clock->size(); i < n; i++) to[i] = std::max(to[i], from[i]);
}

inline Clock joined(const Clock& a, const Clock& b) {
  if (covers(a, b)) return a;
  if (covers(b, a)) return b;  // shared, not copied
  Table table = *a;
  raise_to(table, b);
  return std::make_shared<const Table>(std::move(table));
}

// What a release hands to an acquire.
struct Message {
  Clock known;
  Clock proxied;

  void add(const Message& other) {
    known = joined(known, other.known);
    proxied = joined(proxied, other.proxied);
  }
};

struct Actor {
  ActorId id = 0;
  uint32_t own = 1;
  Clock known;    // of the others
  Clock proxied;  // writes that the copy engine sees: a proxy fence stands behind them
  // By scope: what relaxed stores publish behind a fence of it; what relaxed loads brought that becomes known behind
  // such a fence.
  std::array<Message, 3> fenced, pending;

  uint32_t count(ActorId other) const { return other == id ? own : count_of(known, other); }
  // Everything up to now, the actor's own accesses included.
  Clock snapshot() const {
    Table table = known ? *known : Table();
    if (table.size() <= id) table.resize(id + 1);
    table[id] = own;
    return std::make_shared<const Table>(std::move(table));
  }
};

inline Message release(Actor& actor) {
  Message m{actor.snapshot(), actor.proxied};
  actor.own++;
  return m;
}

// After a meeting in which the actor took part.
inline void leave(Actor& actor, const Message& meeting) {
  actor.known = meeting.known;
  actor.proxied = meeting.proxied;
}

inline void acquire(Actor& actor, const Message& message) {
  actor.known = joined(actor.known, message.known);
  actor.proxied = joined(actor.proxied, message.proxied);
}

// Threads that come together: everyone who acquires knows what all who arrived did before.
class Meeting {
 public:
  void arrive(Actor& actor) {
    own_.emplace_back(actor.id, actor.own++);
    if (known_.empty() || known_.back() != actor.known) known_.push_back(actor.known);
    if (proxied_.empty() || proxied_.back() != actor.proxied) proxied_.push_back(actor.proxied);
  }
  // All are here: makes the message and forgets the arrivals.
  Message close() {
    Message m;
    Table table;
    for (size_t i = 0; i < known_.size(); i++) {
      if (i == 0 || known_[i] != known_[i - 1]) raise_to(table, known_[i]);
    }
    for (auto [id, own] : own_) {
      if (table.size() <= id) table.resize(id + 1);
      table[id] = std::max(table[id], own);
    }
    m.known = std::make_shared<const Table>(std::move(table));
    for (const Clock& c : proxied_) m.proxied = joined(m.proxied, c);
    own_.clear();
    known_.clear();
    proxied_.clear();
    return m;
  }
  bool is_empty() const { return own_.empty(); }

 private:
  std::vector<std::pair<ActorId, uint32_t>> own_;
  std::vector<Clock> known_, proxied_;
};

}  // namespace ark::emulator
