// Two steps of all ranks, unrolled: what happens before what, by waits and program order alone.
#include <algorithm>
#include <map>
#include <set>

#include "engine/unroll.h"
#include "engine/validate.h"

namespace ark::validation {
namespace {

constexpr int64_t kSteps = 2;

std::size_t at(int64_t i) { return static_cast<std::size_t>(i); }

// Per rank: all its instances up to this number are complete. Numbers run over steps.
using Clock = std::vector<int64_t>;

void join(Clock& into, const Clock& from) {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], from[i]);
}

bool is_receiver(OpCode code) { return code == OpCode::kRecvReduce || code == OpCode::kRecvConcat; }

// A message as one of its ends sees it.
struct Message {
  int64_t instance = -1;  // that sends or receives it
  Expr elements;
  BufferId buffer = kNone;  // sender: what is sent
};

// A piece of the activation arena, or a buffer with memory of its own.
struct Piece {
  BufferId owner = kNone;            // whose content it holds
  int64_t writer = -1, reader = -1;  // the last instances
};

// One rank's unrolled run.
class RankRun {
 public:
  RankRun(const Program& p, const Binding& binding, std::vector<std::string>& errors)
      : p(p),
        step_(unroll(p)),
        report(errors, p.rank),
        last_of_(p.phases.size(), -1),
        knows(at(p.ranks), -1) {
    cut_memory(binding);
    number_instances();
    collect_messages();
  }

  const Program& p;
  std::vector<Clock> clocks;                   // per executed instance: what was known when its tiles ran
  std::vector<std::vector<Message>> messages;  // per channel, all steps

 private:
  const std::vector<Instance> step_;

 public:
  Report report;

  int64_t next() const { return static_cast<int64_t>(clocks.size()); }
  bool is_done() const { return next() == kSteps * count(); }
  int64_t count() const { return static_cast<int64_t>(step_.size()); }
  const Instance& instance(int64_t number) const { return step_[at(number % count())]; }
  const Phase& phase(int64_t number) const { return p.phases[at(instance(number).phase)]; }
  std::string place(int64_t number) const {
    return "phase " + std::to_string(instance(number).phase) + " '" + phase(number).name + "' trip " +
           std::to_string(instance(number).trip) + " of step " + std::to_string(number / count());
  }

  // The number of the message that instance `number` sends or receives on `channel`.
  int64_t message_number(int32_t channel, int64_t number) const {
    const auto& list = messages[at(channel)];
    const auto it =
        std::find_if(list.begin(), list.end(), [&](const Message& m) { return m.instance == number; });
    return it == list.end() ? -1 : it - list.begin();
  }

  // The instance that a kPhase wait means; -1: none, -2: malformed.
  int64_t target(const Wait& wait, int64_t number) const {
    const Phase& waiter = phase(number);
    const PhaseId from = instance(number).phase;
    const int32_t repeat = p.phases[at(wait.phase)].repeat;
    const bool is_same = wait.phase == from || (repeat != kNone && repeat == waiter.repeat);
    const auto& times = numbers_[at(wait.phase)];
    const auto trips = static_cast<int64_t>(times.size());
    int64_t i;
    if (is_same) {
      if (wait.trip_offset == 0 && wait.phase >= from) return -2;
      i = number / count() * trips + instance(number).trip + wait.trip_offset;
    } else {
      if (wait.trip_offset != 0) return -2;
      i = (wait.phase < from ? number / count() + 1 : number / count()) * trips - 1;
    }
    return i < 0 ? -1 : i / trips * count() + times[at(i % trips)];
  }

  void execute(const Clock& at_start);
  void finish();

 private:
  void cut_memory(const Binding& binding);
  void number_instances();
  void collect_messages();
  void check_order(int64_t number);
  void check_message_waits(int64_t number);
  void read(BufferId buffer, int64_t number);
  void write(BufferId buffer, int64_t number);

  std::vector<std::vector<int64_t>> numbers_;  // per phase and trip: place in the step
  std::vector<Range> pieces_of_;               // per buffer
  std::vector<Piece> pieces_;
  std::vector<int64_t> last_of_;             // per phase: last instance
  std::map<int32_t, int64_t> last_message_;  // per channel: last instance that used it
  std::set<BufferId> read_, written_;

 public:
  Clock knows;
};

void RankRun::cut_memory(const Binding& binding) {
  std::set<int64_t> borders;
  const auto end = [&](std::size_t b) { return binding.offsets[b] + max_bytes(p, static_cast<BufferId>(b)); };
  for (std::size_t b = 0; b < p.buffers.size(); ++b) {
    if (p.buffers[b].kind == BufferKind::kAct) borders.insert({binding.offsets[b], end(b)});
  }
  const auto index = [&](int64_t offset) { return std::distance(borders.begin(), borders.find(offset)); };
  auto own = static_cast<int64_t>(borders.size());
  for (std::size_t b = 0; b < p.buffers.size(); ++b) {
    if (p.buffers[b].kind == BufferKind::kAct) {
      pieces_of_.push_back({index(binding.offsets[b]), index(end(b))});
    } else {
      pieces_of_.push_back({own, own + 1});
      ++own;
    }
  }
  pieces_.resize(at(own));
}

void RankRun::number_instances() {
  numbers_.resize(p.phases.size());
  for (std::size_t i = 0; i < step_.size(); ++i)
    numbers_[at(step_[i].phase)].push_back(static_cast<int64_t>(i));
}

void RankRun::collect_messages() {
  messages.resize(p.channels.size());
  for (int64_t n = 0; n < kSteps * count(); ++n) {
    const OpCode code = p.variants[at(phase(n).variant)].code;
    for (const Operand& o : phase(n).operands) {
      const BufferId b = resolve(p, phase(n), o, instance(n).trip);
      if (b == kNone) continue;
      const bool is_inbox = p.buffers[at(b)].kind == BufferKind::kInbox;
      if (code == OpCode::kSend)
        messages[at(phase(n).channel)].push_back({n, element_count(sizes(p, b)), root(p, b)});
      else if (is_receiver(code) && is_inbox)
        messages[at(p.buffers[at(b)].channel)].push_back({n, element_count(sizes(p, b)), b});
    }
  }
}

// Counters add up over processors: what they count must come one after another.
void RankRun::check_order(int64_t number) {
  int64_t& last = last_of_[at(instance(number).phase)];
  report.check(last <= knows[at(p.rank)], place(number),
               "may start before its previous instance is complete");
  last = number;
  for (std::size_t c = 0; c < messages.size(); ++c) {
    const auto channel = static_cast<int32_t>(c);
    if (message_number(channel, number) < 0) continue;
    const auto [it, is_new] = last_message_.try_emplace(channel, -1);
    report.check(it->second <= knows[at(p.rank)], place(number),
                 "may use channel ~" + std::to_string(c) + " before its previous message is done");
    it->second = number;
  }
}

// A message is waited for where it is read, a credit where it is sent; nowhere else.
void RankRun::check_message_waits(int64_t number) {
  std::multiset<int32_t> arrivals, credits, inboxes, sends;
  for (const Wait& w : phase(number).waits) {
    if (w.kind == WaitKind::kArrived) arrivals.insert(w.channel);
    if (w.kind == WaitKind::kCredit) credits.insert(w.channel);
  }
  for (std::size_t c = 0; c < messages.size(); ++c) {
    if (message_number(static_cast<int32_t>(c), number) < 0) continue;
    (p.channels[c].outgoing ? sends : inboxes).insert(static_cast<int32_t>(c));
  }
  report.check(arrivals == inboxes, place(number), "its waits for messages are not those of its inboxes");
  report.check(credits == sends, place(number), "its waits for credits are not those of its channel");
}

void RankRun::read(BufferId buffer, int64_t number) {
  const BufferKind kind = p.buffers[at(buffer)].kind;
  if (kind == BufferKind::kInbox) return;  // by messages
  const std::string name = "%" + std::to_string(buffer);
  const bool is_given = kind == BufferKind::kInput || buffer == p.token_ids || buffer == p.positions;
  read_.insert(buffer);
  for (int64_t i = pieces_of_[at(buffer)].begin; i < pieces_of_[at(buffer)].end; ++i) {
    Piece& piece = pieces_[at(i)];
    if (!is_given) {
      if (!report.check(piece.owner == buffer, place(number),
                        "reads " + name + ", whose memory holds something else"))
        return;
      if (!report.check(piece.writer / count() == number / count() && piece.writer < number, place(number),
                        "reads " + name + " of an earlier step"))
        return;
    }
    if (!report.check(piece.writer <= knows[at(p.rank)], place(number),
                      "may read " + name + " before it is written"))
      return;
    piece.reader = number;
  }
}

void RankRun::write(BufferId buffer, int64_t number) {
  const BufferKind kind = p.buffers[at(buffer)].kind;
  const std::string name = "%" + std::to_string(buffer);
  const bool is_sampled =
      buffer == p.token_ids && p.variants[at(phase(number).variant)].code == OpCode::kSample;
  const bool may = kind == BufferKind::kAct || kind == BufferKind::kKvPage || kind == BufferKind::kOutput ||
                   buffer == p.logits;
  if (!report.check(may || is_sampled, place(number), "writes " + name + ", which is not its own to write"))
    return;
  if (!report.check(written_.insert(buffer).second, place(number),
                    "writes " + name + " a second time in a step"))
    return;
  for (int64_t i = pieces_of_[at(buffer)].begin; i < pieces_of_[at(buffer)].end; ++i) {
    Piece& piece = pieces_[at(i)];
    const bool is_over = std::max(piece.writer, piece.reader) <= knows[at(p.rank)];
    if (!report.check(is_over, place(number),
                      "may overwrite memory of %" + std::to_string(piece.owner) + " (by " + name +
                          ") before it is read"))
      return;
    piece = {buffer, number, piece.reader};
  }
}

void RankRun::execute(const Clock& at_start) {
  const int64_t number = next();
  join(knows, at_start);
  clocks.push_back(knows);
  check_order(number);
  check_message_waits(number);
  const std::vector<Access> touched = accesses(p, instance(number));
  for (const Access& access : touched) {
    if (!access.writes) read(access.buffer, number);
  }
  for (const Access& access : touched) {
    if (access.writes) write(access.buffer, number);
  }
  if (number + 1 == count()) finish();
  if ((number + 1) % count() == 0) written_.clear();
}

// After one step: nothing is computed for nobody, nothing promised is left out.
void RankRun::finish() {
  std::set<BufferId> used = {p.token_ids, p.positions, p.logits};
  for (const Instance& i : step_) {
    for (const Operand& o : p.phases[at(i.phase)].operands)
      used.insert(resolve(p, p.phases[at(i.phase)], o, i.trip));
  }
  for (std::size_t i = 0; i < p.buffers.size(); ++i) {
    const auto b = static_cast<BufferId>(i);
    const Buffer& buffer = p.buffers[i];
    const bool is_value = buffer.kind == BufferKind::kAct && buffer.alias == kNone;
    const bool must_be_used = buffer.kind != BufferKind::kAct && buffer.kind != BufferKind::kInput;
    report.check(!must_be_used || used.contains(b), "buffer %" + std::to_string(i), "is never used");
    if (is_value || buffer.kind == BufferKind::kOutput) {
      report.check(written_.contains(b), "buffer %" + std::to_string(i), "is never written");
    }
    if (is_value && p.token_ids != kNone)
      report.check(read_.contains(b), "buffer %" + std::to_string(i), "is never read");
  }
}

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
    const Channel& c = rank.p.channels[at(channel)];
    const RankRun& peer = ranks_[at(c.peer)];
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
        const auto& theirs = peer->messages[at(end)];
        if (!rank.report.check(mine.size() == theirs.size(), place,
                               "its ends count different numbers of messages"))
          continue;
        int64_t most = 0;
        for (std::size_t m = 0; m < mine.size(); ++m) {
          rank.report.check(mine[m].elements == theirs[m].elements, place,
                            "its ends disagree on the size of message " + std::to_string(m));
          most = std::max(most, max_bytes(rank.p, mine[m].buffer));
        }
        rank.report.check(most == rank.p.channels[c].bytes, place,
                          "its size is not that of its largest message");
        if (rank.p.channels[c].outgoing) check_exchange(rank, channel);
      }
    }
  }

  // Every exchange is mutual: message m to a peer carries the own part of the phase that reads message m from
  // it.
  void check_exchange(RankRun& rank, int32_t outgoing) {
    const Channel& c = rank.p.channels[at(outgoing)];
    for (std::size_t i = 0; i < rank.p.channels.size(); ++i) {
      if (rank.p.channels[i].outgoing || rank.p.channels[i].peer != c.peer) continue;
      const auto &sent = rank.messages[at(outgoing)], &received = rank.messages[i];
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
      const int64_t needed = peer->messages[at(end)][at(message)].instance;
      if (peer->next() <= needed) return false;
      note(start, *peer, needed);
    }
    return true;
  }

  // `instance` of `rank` is complete, and all that was complete when it started.
  static void note(Clock& clock, const RankRun& rank, int64_t instance) {
    join(clock, rank.clocks[at(instance)]);
    int64_t& known = clock[at(rank.p.rank)];
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
