// Two steps of all ranks, unrolled: what happens before what, by waits and program order alone.
#include <algorithm>

#include "engine/validate/rank.h"

namespace ark::validation {
namespace {

class Schedule {
 public:
  Schedule(std::span<const Program> programs, std::span<const Binding> bindings,
           std::vector<std::string>& errors)
      : errors_(errors) {
    for (std::size_t r = 0; r < programs.size(); ++r) ranks_.emplace_back(programs[r], bindings[r], errors);
  }

  void run() {
    check_both_ends();
    if (!errors_.empty()) return;
    for (bool moves = true; moves && errors_.empty();) {
      moves = false;
      for (RankRun& rank : ranks_) {
        Clock start(ranks_.size(), -1);
        while (!rank.is_done() && errors_.empty() && is_ready(rank, start)) {
          rank.execute(start);
          moves = true;
        }
      }
    }
    for (RankRun& rank : ranks_) {
      if (errors_.empty() && !rank.is_done())
        rank.report.add(rank.place(rank.next()), "is waited for for ever: deadlock");
    }
  }

 private:
  // The channel's other end.
  std::pair<const RankRun*, int32_t> other_end(const RankRun& rank, int32_t channel) const {
    const Channel& c = rank.p.channels[channel];
    const RankRun& peer = ranks_[c.peer];
    for (std::size_t i = 0; i < peer.p.channels.size(); ++i) {
      const Channel& o = peer.p.channels[i];
      if (o.peer == rank.p.rank && o.outgoing != c.outgoing) return {&peer, static_cast<int32_t>(i)};
    }
    return {nullptr, kNone};
  }

  void check_both_ends() {
    for (RankRun& rank : ranks_) {
      for (std::size_t c = 0; c < rank.p.channels.size(); ++c) {
        const auto channel = static_cast<int32_t>(c);
        const std::string place = "channel ~" + std::to_string(c);
        const auto& mine = rank.messages[c];
        const auto [peer, end] = other_end(rank, channel);
        const auto& theirs = peer->messages[end];
        if (!rank.report.check(mine.size() == theirs.size(), place,
                               "its ends count different numbers of messages"))
          continue;
        int64_t most = 0;
        for (std::size_t m = 0; m < mine.size(); ++m) {
          rank.report.check(mine[m].elements == theirs[m].elements, place,
                            "its ends disagree on the size of message " + std::to_string(m));
          rank.report.check(mine[m].borders == theirs[m].borders, place,
                            "its ends disagree on the rows of message " + std::to_string(m));
          most = std::max(most, max_bytes(rank.p, mine[m].buffer));
        }
        rank.report.check(most == rank.p.channels[c].bytes, place,
                          "its size is not that of its largest message");
        if (rank.p.channels[c].outgoing) check_exchange(rank, channel);
      }
    }
  }

  // Every exchange is mutual: message m to a peer carries the own part of the phase that reads message m from it.
  void check_exchange(RankRun& rank, int32_t outgoing) {
    const Channel& c = rank.p.channels[outgoing];
    for (std::size_t i = 0; i < rank.p.channels.size(); ++i) {
      if (rank.p.channels[i].outgoing || rank.p.channels[i].peer != c.peer) continue;
      const auto &sent = rank.messages[outgoing], &received = rank.messages[i];
      const std::string place = "channel ~" + std::to_string(outgoing);
      if (!rank.report.check(sent.size() == received.size(), place, "sends more or less than comes back"))
        return;
      for (std::size_t m = 0; m < sent.size(); ++m) {
        const Phase& reader = rank.phase(received[m].instance);
        const BufferId own =
            resolve(rank.p, reader, reader.operands[0], rank.instance(received[m].instance).trip);
        rank.report.check(root(rank.p, own) == sent[m].buffer && sent[m].instance < received[m].instance,
                          place, "message " + std::to_string(m) + " is not the own part of what is received");
      }
    }
  }

  // Whether all waits of the rank's next instance are over; `start`: what they tell.
  bool is_ready(RankRun& rank, Clock& start) {
    const int64_t number = rank.next();
    std::fill(start.begin(), start.end(), -1);
    for (const Wait& wait : rank.phase(number).waits) {
      if (wait.kind == WaitKind::kPhase) {
        const int64_t target = rank.target(wait, number);
        if (target == -2 || target >= number) {
          rank.report.add(rank.place(number), "waits for itself or what comes later");
          return false;
        }
        if (target >= 0) note(start, rank, target);
        continue;
      }
      int64_t message = rank.message_number(wait.channel, number);
      if (message < 0) continue;  // refused when executed
      if (wait.kind == WaitKind::kCredit && (message -= 2) < 0) continue;
      const auto [peer, end] = other_end(rank, wait.channel);
      const int64_t needed = peer->messages[end][message].instance;
      if (peer->next() <= needed) return false;
      note(start, *peer, needed);
    }
    return true;
  }

  // `instance` of `rank` is complete, and all that was complete when it started.
  static void note(Clock& clock, const RankRun& rank, int64_t instance) {
    join(clock, rank.clocks[instance]);
    int64_t& known = clock[rank.p.rank];
    known = std::max(known, instance);
  }

  std::vector<std::string>& errors_;
  std::vector<RankRun> ranks_;
};

}  // namespace

void check_schedule(std::span<const Program> programs, std::span<const Binding> bindings,
                    std::vector<std::string>& errors) {
  Schedule(programs, bindings, errors).run();
}

}  // namespace ark::validation
