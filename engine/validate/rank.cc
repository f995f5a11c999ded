#include "engine/validate/rank.h"

#include <algorithm>

#include "base/ir/keys.h"
#include "engine/program/opcodes.h"

namespace ark::validation {
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
  for (std::size_t i = 0; i < step_.size(); ++i) numbers_[step_[i].phase].push_back(static_cast<int64_t>(i));
}

// Of rows that ranks do not send, as they are zeros; empty: all are sent.
std::vector<int64_t> RankRun::borders_of(const Variant& variant) {
  return variant.attributes.has(key::kBorders) ? variant.attributes.get(key::kBorders)
                                               : std::vector<int64_t>();
}

void RankRun::collect_messages() {
  messages.resize(p.channels.size());
  for (int64_t n = 0; n < kSteps * count(); ++n) {
    const Variant& variant = p.variants[phase(n).variant];
    for (const Operand& o : phase(n).operands) {
      const BufferId b = resolve(p, phase(n), o, instance(n).trip);
      if (b == kNone) continue;
      const bool is_sent = is_send(variant.code) && &o == phase(n).operands.data();
      const bool is_read = is_receive(variant.code) && p.buffers[b].kind == BufferKind::kInbox;
      if (!is_sent && !is_read) continue;
      messages[is_sent ? phase(n).channel : p.buffers[b].channel].push_back(
          {n, element_count(sizes(p, p.buffers[b])), is_sent ? root(p, b) : b, borders_of(variant)});
    }
  }
}

int64_t RankRun::message_number(int32_t channel, int64_t number) const {
  const auto& list = messages[channel];
  const auto it =
      std::find_if(list.begin(), list.end(), [&](const Message& m) { return m.instance == number; });
  return it == list.end() ? -1 : it - list.begin();
}

int64_t RankRun::target(const Wait& wait, int64_t number) const {
  const Phase& waiter = phase(number);
  const PhaseId from = instance(number).phase;
  const int32_t repeat = p.phases[wait.phase].repeat;
  const bool is_same = wait.phase == from || (repeat != kNone && repeat == waiter.repeat);
  const auto& times = numbers_[wait.phase];
  const auto trips = static_cast<int64_t>(times.size());
  int64_t i;
  if (is_same) {
    if (wait.trip_offset == 0 && wait.phase >= from) return -2;
    i = number / count() * trips + instance(number).trip + wait.trip_offset;
  } else {
    if (wait.trip_offset != 0) return -2;
    i = (wait.phase < from ? number / count() + 1 : number / count()) * trips - 1;
  }
  return i < 0 ? -1 : i / trips * count() + times[i % trips];
}

// Counters add up over processors: what they count must come one after another.
void RankRun::check_order(int64_t number) {
  int64_t& last = last_of_[instance(number).phase];
  report.check(last <= knows_[p.rank], place(number), "may start before its previous instance is complete");
  last = number;
  for (std::size_t c = 0; c < messages.size(); ++c) {
    const auto channel = static_cast<int32_t>(c);
    if (message_number(channel, number) < 0) continue;
    const auto [it, is_new] = last_message_.try_emplace(channel, -1);
    report.check(it->second <= knows_[p.rank], place(number),
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
  const BufferKind kind = p.buffers[buffer].kind;
  if (kind == BufferKind::kInbox) return;  // by messages
  const std::string name = "%" + std::to_string(buffer);
  const bool is_given = kind == BufferKind::kInput || buffer == p.token_ids || buffer == p.positions;
  read_.insert(buffer);
  for (int64_t i = pieces_of_[buffer].begin; i < pieces_of_[buffer].end; ++i) {
    Piece& piece = pieces_[i];
    if (!is_given) {
      if (!report.check(piece.owner == buffer, place(number),
                        "reads " + name + ", whose memory holds something else"))
        return;
      if (!report.check(piece.writer / count() == number / count() && piece.writer < number, place(number),
                        "reads " + name + " of an earlier step"))
        return;
    }
    if (!report.check(piece.writer <= knows_[p.rank], place(number),
                      "may read " + name + " before it is written"))
      return;
    piece.reader = number;
  }
}

void RankRun::write(BufferId buffer, int64_t number) {
  const BufferKind kind = p.buffers[buffer].kind;
  const std::string name = "%" + std::to_string(buffer);
  const bool is_sampled = buffer == p.token_ids && p.variants[phase(number).variant].code == OpCode::kSample;
  const bool may = kind == BufferKind::kAct || kind == BufferKind::kKvPage || kind == BufferKind::kOutput ||
                   buffer == p.logits;
  if (!report.check(may || is_sampled, place(number), "writes " + name + ", which is not its own to write"))
    return;
  if (!report.check(written_.insert(buffer).second, place(number),
                    "writes " + name + " a second time in a step"))
    return;
  for (int64_t i = pieces_of_[buffer].begin; i < pieces_of_[buffer].end; ++i) {
    Piece& piece = pieces_[i];
    const bool is_over = std::max(piece.writer, piece.reader) <= knows_[p.rank];
    if (!report.check(is_over, place(number),
                      "may overwrite memory of %" + std::to_string(piece.owner) + " (by " + name +
                          ") before it is read"))
      return;
    piece = {buffer, number, piece.reader};
  }
}

void RankRun::execute(const Clock& at_start) {
  const int64_t number = next();
  join(knows_, at_start);
  clocks.push_back(knows_);
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
  std::set<BufferId> spare;  // one of several outputs: nobody need want it
  for (const Instance& i : step_) {
    const Phase& phase = p.phases[i.phase];
    const auto outputs = static_cast<std::size_t>(p.variants[phase.variant].outputs);
    for (std::size_t o = 0; o < phase.operands.size(); ++o) {
      const BufferId b = resolve(p, phase, phase.operands[o], i.trip);
      used.insert(b);
      if (b != kNone && outputs > 1 && o + outputs >= phase.operands.size()) spare.insert(root(p, b));
    }
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
    if (is_value && p.token_ids != kNone && !spare.contains(b))
      report.check(read_.contains(b), "buffer %" + std::to_string(i), "is never read");
  }
}

}  // namespace ark::validation
