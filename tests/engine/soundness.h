// An argument about programs that shares nothing with the validator: runs them with processors that stall.
//
// Two processors a rank follow the contract of program.h to the letter: waits compare counters with sums. For
// every instance of every rank, one processor stalls inside it while all others run as far as they can:
// whatever they start must not touch what the stalled one reads or writes.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/program/opcodes.h"
#include "engine/program/text.h"
#include "engine/program/unroll.h"

namespace ark::test {

class StallRun {
 public:
  static constexpr int kActive = 2, kSteps = 2;

  StallRun(const std::vector<Program>& programs, const std::vector<Binding>& bindings)
      : programs_(programs), bindings_(bindings) {
    for (const Program& p : programs) steps_.push_back(unroll(p));
    count_messages();
  }

  // Empty, or what can go wrong.
  std::string problem() {
    if (!run(-1, -1)) return "deadlock";
    for (std::size_t r = 0; r < programs_.size(); ++r) {
      for (int64_t n = 0; n < total(r); ++n) {
        run(static_cast<int64_t>(r), n);
        if (std::string found = conflict(r, n); !found.empty()) return found;
      }
    }
    return "";
  }

 private:
  int64_t total(std::size_t r) const { return kSteps * static_cast<int64_t>(steps_[r].size()); }
  const Instance& instance(std::size_t r, int64_t n) const {
    return steps_[r][static_cast<std::size_t>(n) % steps_[r].size()];
  }
  const Phase& phase(std::size_t r, int64_t n) const { return programs_[r].phases[instance(r, n).phase]; }

  // All processors run until nobody moves; processor 0 of `rank` stops inside instance `stalled`. True if all
  // end.
  bool run(int64_t rank, int64_t stalled) {
    position_.assign(programs_.size(), std::vector<int64_t>(kActive, 0));
    finished_.clear();
    for (const Program& p : programs_) finished_.emplace_back(p.phases.size(), 0);
    commits_.clear();
    releases_.clear();
    bool all = true;
    for (bool moves = true; moves;) {
      moves = false;
      all = true;
      for (std::size_t r = 0; r < programs_.size(); ++r) {
        for (int a = 0; a < kActive; ++a) {
          int64_t& n = position_[r][a];
          while (n < total(r) && may_start(r, n)) {
            if (static_cast<int64_t>(r) == rank && a == 0 && n == stalled) break;
            finish(r, n++);
            moves = true;
          }
          all &= n == total(r);
        }
      }
    }
    return all;
  }

  std::vector<int32_t> inbox_channels(std::size_t r, int64_t n) const {
    std::vector<int32_t> channels;
    for (const Operand& o : phase(r, n).operands) {
      const BufferId b = resolve(programs_[r], phase(r, n), o, instance(r, n).trip);
      if (b == kNone) continue;
      const Buffer& buffer = programs_[r].buffers[b];
      if (buffer.kind == BufferKind::kInbox) channels.push_back(buffer.channel);
    }
    return channels;
  }
  using Pair = std::pair<int32_t, int32_t>;  // from, to
  Pair ends(std::size_t r, int32_t channel) const {
    const Channel& c = programs_[r].channels[channel];
    return c.outgoing ? Pair{static_cast<int32_t>(r), c.peer} : Pair{c.peer, static_cast<int32_t>(r)};
  }
  // How many messages instances before `n` put on (take from) `channel`.
  int64_t messages_before(std::size_t r, int64_t n, int32_t channel) const { return before_[r][channel][n]; }
  void count_messages() {
    for (std::size_t r = 0; r < programs_.size(); ++r) {
      before_.emplace_back(programs_[r].channels.size(), std::vector<int64_t>{0});
      for (int64_t n = 0; n < total(r); ++n) {
        const std::vector<int32_t> inboxes = inbox_channels(r, n);
        for (std::size_t c = 0; c < before_[r].size(); ++c) {
          const auto channel = static_cast<int32_t>(c);
          const bool uses =
              phase(r, n).channel == channel || std::count(inboxes.begin(), inboxes.end(), channel) > 0;
          before_[r][c].push_back(before_[r][c].back() + uses);
        }
      }
    }
  }

  void finish(std::size_t r, int64_t n) {
    ++finished_[r][instance(r, n).phase];
    if (phase(r, n).channel != kNone) ++commits_[ends(r, phase(r, n).channel)];
    for (const int32_t c : inbox_channels(r, n)) ++releases_[ends(r, c)];
  }

  bool may_start(std::size_t r, int64_t n) {
    for (const Wait& w : phase(r, n).waits) {
      if (w.kind == WaitKind::kPhase) {
        if (finished_[r][w.phase] < kActive * awaited(r, n, w)) return false;
      } else if (w.kind == WaitKind::kArrived) {
        if (commits_[ends(r, w.channel)] < kActive * (messages_before(r, n, w.channel) + 1)) return false;
      } else if (releases_[ends(r, w.channel)] < kActive * (messages_before(r, n, w.channel) - 1)) {
        return false;
      }
    }
    return true;
  }

  // How many instances of the awaited phase must be complete: program.h's text, counted out.
  int64_t awaited(std::size_t r, int64_t n, const Wait& w) const {
    const Program& p = programs_[r];
    const Phase& other = p.phases[w.phase];
    const int64_t step = n / static_cast<int64_t>(steps_[r].size());
    const bool same =
        w.phase == instance(r, n).phase || (other.repeat != kNone && other.repeat == phase(r, n).repeat);
    const int64_t trips = other.repeat == kNone ? 1 : p.repeats[other.repeat].trips;
    if (same) return step * trips + instance(r, n).trip + w.trip_offset + 1;
    return (w.phase < instance(r, n).phase ? step + 1 : step) * trips;
  }

  struct Touch {
    int64_t space, begin, end;  // space 0: activations; else buffer + 1
    bool writes;
  };
  std::vector<Touch> touches(std::size_t r, int64_t n) const {
    std::vector<Touch> result;
    for (const Access& a : accesses(programs_[r], instance(r, n))) {
      const Buffer& b = programs_[r].buffers[a.buffer];
      if (b.kind == BufferKind::kInbox) continue;
      const int64_t offset = bindings_[r].offsets[a.buffer];
      if (b.kind == BufferKind::kAct)
        result.push_back({0, offset, offset + max_bytes(programs_[r], a.buffer), a.writes});
      else
        result.push_back({a.buffer + 1, 0, 1, a.writes});
    }
    return result;
  }

  std::string conflict(std::size_t r, int64_t stalled) {
    const std::string at = "rank " + std::to_string(r) + " instance " + std::to_string(stalled);
    const int64_t reached = position_[r][1];  // instances that processor 1 has finished
    for (int64_t n = stalled + 1; n < reached; ++n) {
      for (const Touch& a : touches(r, stalled)) {
        for (const Touch& b : touches(r, n)) {
          const bool overlap = a.space == b.space && a.begin < b.end && b.begin < a.end;
          if (overlap && (a.writes || b.writes)) return at + " races with instance " + std::to_string(n);
        }
      }
      if (instance(r, n).phase == instance(r, stalled).phase) return at + " is not over when it starts again";
    }
    return message_conflict(r, stalled, at);
  }

  std::string message_conflict(std::size_t r, int64_t stalled, const std::string& at) {
    if (position_[r][0] != stalled) return "";
    const auto passed = [&](std::size_t peer,
                            int32_t channel) {  // messages that anybody at the peer has dealt with
      const int64_t most = *std::max_element(position_[peer].begin(), position_[peer].end());
      return messages_before(peer, most, channel);
    };
    const auto check = [&](int32_t channel, int64_t slack, const char* what) -> std::string {
      const Channel& c = programs_[r].channels[channel];
      const auto peer = static_cast<std::size_t>(c.peer);
      const int64_t mine = messages_before(r, stalled, channel);
      for (std::size_t i = 0; i < programs_[peer].channels.size(); ++i) {
        const Channel& o = programs_[peer].channels[i];
        if (o.peer != static_cast<int32_t>(r) || o.outgoing == c.outgoing) continue;
        if (passed(peer, static_cast<int32_t>(i)) > mine + slack) return at + what;
      }
      return "";
    };
    if (phase(r, stalled).channel != kNone) {
      if (auto e = check(phase(r, stalled).channel, 0, " is read before it is sent"); !e.empty()) return e;
    }
    for (const int32_t c : inbox_channels(r, stalled)) {
      if (auto e = check(c, 2, " is overwritten in its inbox"); !e.empty()) return e;
    }
    return "";
  }

  const std::vector<Program>& programs_;
  const std::vector<Binding>& bindings_;
  std::vector<std::vector<Instance>> steps_;
  std::vector<std::vector<std::vector<int64_t>>> before_;  // per rank, channel, instance
  std::vector<std::vector<int64_t>> position_, finished_;
  std::map<Pair, int64_t> commits_, releases_;
};

// What a program computes when it runs in order: every instance with what it reads, by what was computed into
// those bytes last. Equal texts: equal results, in whatever order independent instances stand.
inline std::string meaning(const Program& p, const Binding& binding) {
  std::vector<std::string> lines;
  const std::vector<Instance> step = unroll(p);
  std::map<int64_t, std::string> bytes;  // per 4 bytes of the arena: what is there
  std::map<BufferId, std::string> others;
  std::map<int32_t, int> messages;
  const auto next_message = [&](int32_t channel) {
    const Channel& c = p.channels[channel];
    return std::string(c.outgoing ? " to " : " from ") + std::to_string(c.peer) + " message " +
           std::to_string(messages[channel]++);
  };
  for (const Instance& instance : step) {
    const Phase& phase = p.phases[instance.phase];
    const Variant& variant = p.variants[phase.variant];
    std::string line = variant_text(variant);
    if (phase.grid != kNone) line += " " + p.vals[phase.grid].e.str();
    if (phase.channel != kNone) line += next_message(phase.channel);
    for (std::size_t i = 0; i < phase.operands.size(); ++i) {
      const BufferId b = resolve(p, phase, phase.operands[i], instance.trip);
      line += " (";
      if (b == kNone) {
        line += ")";
        continue;
      }
      const Buffer& buffer = p.buffers[b];
      for (const ValId v : buffer.dims) line += p.vals[v].e.str() + ",";
      line += std::string(name_of(buffer.dtype)) + " " + std::string(name_of(buffer.kind));
      const std::string me = std::to_string(std::hash<std::string>{}(line));
      const int64_t begin = binding.offsets[b], end = begin + max_bytes(p, b);
      const bool written = is_written(variant, i, phase.operands.size());
      if (buffer.kind == BufferKind::kWeight) {
        const WeightUse& w = p.weights[buffer.weight];
        line += " c" + std::to_string(w.constant) + (w.transposed ? "T" : "") +
                std::to_string(static_cast<int>(w.layout));
        for (const Range& r : w.ranges) line += " " + std::to_string(r.begin) + ":" + std::to_string(r.end);
      } else if (buffer.kind == BufferKind::kInbox) {
        line += next_message(buffer.channel);
      } else if (buffer.kind != BufferKind::kAct) {
        line += " cache " + std::to_string(buffer.cache) +
                (b == p.token_ids   ? "ids"
                 : b == p.positions ? "positions"
                                    : "");
        if (written)
          others[b] = me;
        else
          line += others[b];
      } else if (written) {
        for (int64_t at = begin; at < end; at += 4) bytes[at] = me;
      } else {
        std::string last;
        for (int64_t at = begin; at < end; at += 4) {
          if (bytes[at] != last) line += " " + (last = bytes[at]) + "@" + std::to_string(at - begin);
        }
      }
      line += ")";
    }
    lines.push_back(line + "\n");
  }
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const std::string& line : lines) text += line;
  return text;
}

}  // namespace ark::test
