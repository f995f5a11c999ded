// Longer than most: one machine, whose blocks, waits, rings of weights and joins move each other's clocks.
#include "engine/cuda/cost/replay.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <queue>

#include "base/error.h"
#include "base/index.h"
#include "engine/program/opcodes.h"

namespace ark::cuda::cost {
namespace {

// Who takes part in an instance, and how far that is.
struct InstanceState {
  Lineup line = 0;
  std::unique_ptr<const ProductWork> product;  // null: another body
  // Of a product, by output: groups that are there, when the last one can be seen, and who waits for them.
  std::vector<int32_t> arrivals;
  std::vector<double> arrived;
  std::vector<int32_t> gatherers;
  std::vector<int32_t> waiting, listening;  // processors: for all to be complete; for all to have stored
  int32_t missing = 0, untold = 0;          // raises
  double complete = 0, told = 0;
  int32_t last = 0;                     // the processor that was through last
  std::map<int32_t, int32_t> gathered;  // of a product, by processor: outputs that it was the last of
};

// A place in a processor's weights of a step: the next piece's product; its tile, and the piece in it.
struct Place {
  int32_t instance = -1;
  i64 tile = 0, end = 0;
  i32 piece = 0;
};

// The ring of weights, and where its filling is; and which pieces memory is asked for, as many ahead of it as may wait
// in L2.
struct Ring {
  Place next, asked;
  std::vector<double> in_l2;  // by piece
  int64_t issued = 0, taken = 0;
  std::vector<double> landed;  // by stage
  std::vector<bool> busy;
  bool waits = false;  // for its next stage to be free
};

struct Processor {
  Ring ring;
  int32_t next = 0;     // instance
  int32_t missing = 0;  // of what it waits for
  double start = 0;     // when what it waits for lets it go on, as far as is known
  // Of the product that it runs.
  Tiles own{};
  i64 tile = 0;
  i32 first = 0;                              // piece of the tile: a batch's
  int32_t batch = 0, taken = 0, through = 0;  // pieces
  int32_t handed = 0, gathered = 0;
  std::array<double, kConsumerWarps> free{};  // by warp, or by pairs of them
  double x_there = 0, x_behind = 0;           // of the next batch, and the one behind it, copied ahead
  double stored = 0;                          // what it has stored on other GPUs is there
};

enum class What : uint8_t { kArrive, kIssue, kRelease, kJoin, kTell, kRaise };

struct Event {
  double at;
  What what;
  int32_t processor;
  int64_t number;  // of an instance, or of a stage over all rounds
  uint64_t order;  // of equal times
  bool operator>(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
};

class Replay {
 public:
  Replay(const StepTables& tables, const Rates& rates)
      : t_(tables),
        rates_(rates),
        processors_(tables.machine().processors),
        ranks_(tables.machine().ranks),
        blocks_(at(processors_)) {
    for (const Instance& i : t_.instances()) {
      InstanceState& s = states_.emplace_back();
      s.line = grid_of(t_, i);
      s.missing = s.untold = processors_;
      if (!t_.multiplies(i)) continue;
      s.product = std::make_unique<ProductWork>(t_, i);
      const StreamTiles& tiles = s.product->tiles();
      s.arrivals.resize(at(int64_t{tiles.panels} * tiles.blocks));
      s.arrived.resize(s.arrivals.size());
      s.gatherers.assign(s.arrivals.size(), kNone);
    }
    for (Processor& p : blocks_) {
      p.ring.landed.resize(at(t_.stages()));
      p.ring.busy.resize(at(t_.stages()));
    }
    cost_.timeline.blocks.resize(at(processors_));
  }

  StepCost run() {
    for (int32_t p = 0; p < processors_; ++p) {
      Ring& r = block(p).ring;
      next_tile(p, r.next), next_tile(p, r.asked);
      // Those that the step before has asked for.
      for (int32_t i = 0; i < t_.machine().ahead; ++i) ask(p, std::nullopt);
      push(rates_.open.value, What::kIssue, p);
      const double cleared = static_cast<double>(t_.cleared_bytes()) / l2_rate(processors_);
      advance(p, rates_.open.value + cleared + (t_.tells_any_ranks() ? rates_.release.value : 0));
    }
    while (!events_.empty()) {
      const Event e = events_.top();
      events_.pop();
      handle(e);
    }
    finish();
    return std::move(cost_);
  }

 private:
  // ---- time

  void push(double when, What what, int32_t processor, int64_t number = 0) {
    events_.push({when, what, processor, number, order_++});
  }
  // Of work on instance `n`.
  double time_of(const Work& w, int32_t n) const {
    const double rate = l2_rate(readers(n));
    return std::max((w.loads - w.far - w.covered) * rates_.l2.value, static_cast<double>(w.shared) / rate) +
           std::max(w.beside / rates_.clock.value, static_cast<double>(w.streamed) / rate) +
           w.far * rates_.memory.value + w.barriers * rates_.barrier.value +
           w.atomics * (rates_.release.value + rates_.hop.value) + w.cold * rates_.cold.value +
           w.cycles / rates_.clock.value;
  }
  // Processors that take part in an instance, or in those that run side by side with it.
  int32_t readers(int32_t n) const {
    const InstanceState& s = states_[at(n)];
    const i64 beside = s.product ? s.product->tiles_beside() : 0;
    return static_cast<int32_t>(std::clamp<i64>(std::max(s.line.grid, beside), 1, processors_));
  }
  // What a processor gets of the memory, and of L2, where so many of each rank read at once.
  double memory_rate(int32_t readers) const {
    return std::min(rates_.link.value, rates_.stream.value / (readers * ranks_));
  }
  double l2_rate(int32_t readers) const {
    return std::min(rates_.link.value, rates_.share.value * rates_.processors / (readers * ranks_));
  }
  void trace(int32_t p, double when, TraceKind kind) {
    cost_.timeline.blocks[at(p)].push_back(
        {static_cast<uint64_t>(when) + 1, instance(block(p).next).phase, kind});
  }

  Processor& block(int32_t p) { return blocks_[at(p)]; }
  const Instance& instance(int32_t n) const { return t_.instances()[at(n)]; }
  InstanceState& state(int32_t n) { return states_[at(n)]; }
  Share part(int32_t p, int32_t n) { return share_of(t_, instance(n), state(n).line, p); }
  int32_t count() const { return static_cast<int32_t>(states_.size()); }

  void handle(const Event& e) {
    switch (e.what) {
      case What::kArrive:
        return arrive(e.processor, e.at);
      case What::kIssue:
        return issue(e.processor, e.at);
      case What::kRelease:
        return release(e.processor, e.number, e.at);
      case What::kJoin:
        return join(e.processor, e.at);
      case What::kTell:
        return tell(e.processor, static_cast<int32_t>(e.number), e.at);
      case What::kRaise:
        return raise(e.processor, static_cast<int32_t>(e.number), e.at);
    }
  }

  // ---- instances in order

  void advance(int32_t p, double now) {
    Processor& b = block(p);
    for (; b.next < count(); ++b.next) {
      if (const Share own = part(p, b.next); own.raises != 0) {
        // Products have been part of what `enter` was fitted to.
        const bool is_product = state(b.next).product != nullptr;
        const double before = is_product ? 0 : time_of(prepare_work(t_, instance(b.next), own.tiles), b.next);
        return push(now + rates_.enter.value + before, What::kArrive, p);
      }
      now += rates_.skip.value;
    }
  }

  void arrive(int32_t p, double now) {
    Processor& b = block(p);
    trace(p, now, TraceKind::kWait);
    b.start = now, b.missing = 0;
    for (const int32_t n : t_.needs()[at(b.next)]) {
      if (state(n).missing == 0) b.start = std::max(b.start, state(n).complete + seen_behind(p, n));
      if (state(n).missing == 0) continue;
      ++b.missing;
      state(n).waiting.push_back(p);
    }
    for (const int32_t n : t_.told()[at(b.next)]) {
      if (state(n).untold == 0) b.start = std::max(b.start, state(n).told + heard(p));
      if (state(n).untold == 0) continue;
      ++b.missing;
      state(n).listening.push_back(p);
    }
    if (b.missing == 0) start(p, b.start);
  }

  // From a store until a look that begins then finds it: a hop without the look, which is a load of the body's. Of
  // parts of a sum over ranks: a trip, if some have GPUs of their own.
  double heard() const { return rates_.hop.value - rates_.l2.value; }
  double heard(int32_t p) const {
    const Instance& i = instance(blocks_[at(p)].next);
    const int64_t peers = t_.program().ranks - t_.machine().ranks;
    if (!t_.adds_parts(i) || peers == 0) return heard();
    const int64_t elements = t_.is_by_norm(i) ? int64_t{t_.size(i.grid)} * t_.size(i.norm.width)
                                              : t_.product(i.reduce.elements),
                  bytes = elements * 4;
    return rates_.trip.value - rates_.l2.value +
           static_cast<double>(bytes * peers * ranks_) / rates_.sent.value;
  }

  // From when instance `n` is complete until who waits for it goes on. Of a message to another GPU the last processor
  // stores that it is there, once it has counted the others.
  double seen_behind(int32_t p, int32_t n) const {
    const Instance &sender = instance(n), &receiver = instance(blocks_[at(p)].next);
    if (receiver.readers_period == 0 || sender.readers_period > 0 || !t_.leaves_gpu(sender))
      return rates_.hop.value;
    return rates_.hop.value + rates_.release.value + rates_.trip.value;
  }

  template <class Behind>
  void go_on(std::vector<int32_t>& waiting, double now, const Behind& behind) {
    for (const int32_t p : waiting) {
      Processor& b = block(p);
      b.start = std::max(b.start, now + behind(p));
      if (--b.missing == 0) start(p, b.start);
    }
    waiting.clear();
  }

  // What it has stored in instance `n` is on its way.
  void tell(int32_t p, int32_t n, double now) {
    InstanceState& s = state(n);
    s.untold -= part(p, n).raises;
    s.told = std::max(s.told, now);
    if (s.untold == 0) go_on(s.listening, s.told, [&](int32_t q) { return heard(q); });
  }

  void raise(int32_t p, int32_t n, double now) {
    InstanceState& s = state(n);
    s.missing -= part(p, n).raises;
    s.last = p;
    s.complete = std::max(s.complete, now) + rates_.raise.value;
    if (s.missing == 0) go_on(s.waiting, s.complete, [&](int32_t q) { return seen_behind(q, n); });
  }

  void start(int32_t p, double now) {
    Processor& b = block(p);
    now += rates_.barrier.value;
    trace(p, now, TraceKind::kRun);
    now += rates_.cold.value;
    b.own = part(p, b.next).tiles;
    b.tile = b.own.first, b.first = 0, b.handed = b.gathered = 0;
    if (b.own.first >= b.own.last) return end(p, now);
    if (state(b.next).product) return begin_batch(p, now);
    if (t_.shares(instance(b.next)) && instance(b.next).readers_period > 0) return add_share(p, now);
    const Work work = body_work(t_, instance(b.next), b.own);
    bytes_[b.next] += work.bytes;
    const double read = static_cast<double>(work.bytes) / memory_rate(readers(b.next));
    end(p, now + std::max({time_of(work, b.next), read, sent_time(work, b.next)}));
  }
  // Of what is sent in instance `n`, where all processors send as much.
  double sent_time(const Work& work, int32_t n) const {
    return static_cast<double>(work.sent) * readers(n) * ranks_ / rates_.sent.value;
  }
  // Ranks are alike: what their same processors have added up is there a trip behind what this one has.
  void add_share(int32_t p, double now) {
    Processor& b = block(p);
    const Instance& i = instance(b.next);
    const Work own = share_work(t_, i, b.own);
    now += std::max(time_of(own, b.next), sent_time(own, b.next));
    now += rates_.release.value + (t_.leaves_gpu(i) ? rates_.trip.value : rates_.hop.value);
    end(p, now + time_of(gathered_work(t_, i, b.own), b.next));
  }

  void end(int32_t p, double now) {
    Processor& b = block(p);
    trace(p, now, TraceKind::kPublish);
    push(now, What::kTell, p, b.next);
    now += rates_.barrier.value;
    trace(p, now, TraceKind::kDone);
    push(std::max(now + rates_.release.value, b.stored), What::kRaise, p, b.next);
    if (!t_.is_quiet(instance(b.next))) now += rates_.hold.value;
    if (b.gathered > 0) state(b.next).gathered[p] = b.gathered;
    ++b.next;
    advance(p, now);
  }

  // ---- a matrix product: tiles, batches of pieces

  StreamTile tile(int32_t p) { return {product(p).tiles(), static_cast<i32>(block(p).tile)}; }
  const ProductWork& product(int32_t p) { return *state(block(p).next).product; }

  void begin_batch(int32_t p, double now) {
    Processor& b = block(p);
    if (product(p).copies_ahead() && b.first > 0) now = std::max(now, b.x_there);
    now += time_of(product(p).before_pieces(tile(p), b.first, b.tile - b.own.first), b.next);
    const double copied =
        static_cast<double>(product(p).x_bytes(tile(p), b.first)) / l2_rate(readers(b.next));
    if (product(p).copies_one_ahead()) {
      b.x_there = now + rates_.l2.value + copied;
    } else {  // that of the next batch has been on its way since the one before, or since the tile began
      b.x_there = b.first > 0 ? b.x_behind : now + copied;
      b.x_behind = std::max(now + rates_.l2.value, b.x_there) + copied;
    }
    b.batch = product(p).pieces_at_once(tile(p), b.first);
    b.taken = b.through = 0;
    b.free.fill(now);
    take(p);
  }

  // Pieces whose stages are on their way.
  void take(int32_t p) {
    Processor& b = block(p);
    for (; b.taken < b.batch && b.ring.taken < b.ring.issued; ++b.taken, ++b.ring.taken) {
      const StreamTile own = tile(p);
      double& free = b.free[at(b.taken % product(p).pieces_in_hand(own))];
      const i32 piece = product(p).piece_of(own, b.first + b.taken);
      free = std::max(free, b.ring.landed[at(b.ring.taken % t_.stages())]) +
             product(p).piece_cycles(own, piece) / rates_.clock.value;
      push(free, What::kRelease, p, b.ring.taken);
    }
  }

  void release(int32_t p, int64_t stage, double now) {
    Processor& b = block(p);
    b.ring.busy[at(stage % t_.stages())] = false;
    if (b.ring.waits) b.ring.waits = false, issue(p, now);
    if (++b.through < b.batch) return;
    now += time_of(product(p).after_pieces(tile(p), b.first), b.next);
    b.first += b.batch;
    b.batch = b.taken = 0;
    if (b.first < product(p).tile_pieces(tile(p))) return begin_batch(p, now);
    end_tile(p, now);
  }

  void end_tile(int32_t p, double now) {
    Processor& b = block(p);
    const StreamTiles& tiles = product(p).tiles();
    if (!product(p).hands_in()) return write(p, now, product(p).write_work(tile(p)));
    now += time_of(product(p).hand_in_work(tile(p)), b.next);
    if (!product(p).joins()) return next_own_tile(p, now);
    if (product(p).waits_for_sums()) return tell_sums(p, now);
    ++b.handed;
    if (tile(p).group + 1 < tiles.groups && b.tile + 1 < b.own.last) return next_own_tile(p, now);
    push(now + time_of(product(p).join_work(), b.next), What::kJoin, p);
  }

  // Who has an output's last group waits for the others', and adds up.
  void tell_sums(int32_t p, double now) {
    Processor& b = block(p);
    InstanceState& s = state(b.next);
    const StreamTiles& tiles = product(p).tiles();
    const std::size_t output = at(int64_t{tile(p).panel} * tiles.blocks + tile(p).block);
    const bool is_gatherer = tile(p).group + 1 == tiles.groups;
    s.arrived[output] = std::max(s.arrived[output], now + (is_gatherer ? 0 : heard()));
    if (is_gatherer) s.gatherers[output] = p;
    const bool are_there = ++s.arrivals[output] == tiles.groups;
    const int32_t gatherer = s.gatherers[output];
    if (gatherer != p) next_own_tile(p, now);
    if (are_there) gather(gatherer, s.arrived[output]);
  }
  void gather(int32_t p, double now) {
    Work work = product(p).join_work();
    work += product(p).gather_work(tile(p));
    write(p, now, work);
  }

  void join(int32_t p, double now) {
    Processor& b = block(p);
    const StreamTiles& tiles = product(p).tiles();
    int32_t& arrived = state(b.next).arrivals[at(int64_t{tile(p).panel} * tiles.blocks + tile(p).block)];
    arrived += b.handed;
    b.handed = 0;
    if (arrived != tiles.groups) return next_own_tile(p, now);
    ++b.gathered;
    write(p, now, product(p).gather_work(tile(p)));
  }

  // The tile's outputs; the link takes those of other GPUs while its processor goes on.
  void write(int32_t p, double now, const Work& work) {
    Processor& b = block(p);
    now += time_of(work, b.next);
    if (work.sent > 0) {
      const double taken = static_cast<double>(work.sent) * ranks_ / rates_.sent.value;
      b.stored = link_free_ = std::max(now, link_free_) + taken;
    }
    next_own_tile(p, now);
  }

  void next_own_tile(int32_t p, double now) {
    Processor& b = block(p);
    b.first = 0;
    if (++b.tile < b.own.last) return begin_batch(p, now);
    end(p, now);
  }

  // ---- the ring of weights

  // Of the next product in which the processor has one, if this one has no more.
  void next_tile(int32_t p, Place& at_piece) {
    at_piece.piece = 0;
    if (at_piece.instance >= 0 && ++at_piece.tile < at_piece.end) return;
    while (++at_piece.instance < count()) {
      if (!state(at_piece.instance).product) continue;
      const Tiles own = part(p, at_piece.instance).tiles;
      at_piece.tile = own.first, at_piece.end = own.last;
      if (at_piece.tile < at_piece.end) return;
    }
  }

  // For one more piece; none: the step before has asked for it, and memory has brought it since.
  void ask(int32_t p, std::optional<double> now) {
    Ring& r = block(p).ring;
    if (r.asked.instance >= count()) return;
    const ProductWork& work = *state(r.asked.instance).product;
    const StreamTile own(work.tiles(), static_cast<i32>(r.asked.tile));
    const int64_t bytes = work.piece_bytes(work.piece_of(own, r.asked.piece));
    double landed = 0;
    if (own.block == 0) {  // further blocks of rows find it in L2
      bytes_[r.asked.instance] += bytes;
      if (now) {
        memory_free_ =
            std::max(*now, memory_free_) + static_cast<double>(bytes) * ranks_ / rates_.stream.value;
        landed = memory_free_ + rates_.memory.value;
      }
    }
    r.in_l2.push_back(landed);
    if (++r.asked.piece == work.tile_pieces(own)) next_tile(p, r.asked);
  }

  void issue(int32_t p, double now) {
    Ring& r = block(p).ring;
    if (r.next.instance >= count()) return;
    const std::size_t stage = at(r.issued % t_.stages());
    if (r.busy[stage]) {
      r.waits = true;
      return;
    }
    const ProductWork& work = *state(r.next.instance).product;
    const StreamTile own(work.tiles(), static_cast<i32>(r.next.tile));
    // Copies of all blocks that have tiles come from L2 at once, by what they have asked for.
    const double copied = static_cast<double>(work.piece_bytes(work.piece_of(own, r.next.piece))) /
                          (t_.machine().ahead > 0 ? l2_rate(readers(r.next.instance)) : rates_.link.value);
    ask(p, now);
    r.landed[stage] = std::max(now + rates_.l2.value + copied, r.in_l2[at(r.issued)]), r.busy[stage] = true;
    ++r.issued;
    if (++r.next.piece == work.tile_pieces(own)) next_tile(p, r.next);
    push(now + copied, What::kIssue, p);
    take(p);
  }

  // ---- what came out

  void finish() {
    const Program& program = t_.program();
    double last = 0;
    std::vector<PhaseCost> by_phase(program.phases.size());
    for (int32_t n = 0; n < count(); ++n) {
      PhaseCost& phase = by_phase[at(instance(n).phase)];
      phase.phase = instance(n).phase;
      ++phase.times;
      phase.bytes += bytes_[n];
      phase.critical_block = state(n).last;
      const InstanceState& s = state(n);
      ARK_CHECK(s.missing == 0, "a replay in which an instance is never complete");
      const auto gathered = s.gathered.find(s.last);
      const int32_t times = instance(n).readers_period > 0 ? 1
                            : gathered == s.gathered.end() ? 0
                                                           : gathered->second;
      phase.counts = instance_work(t_, instance(n), s.last, times);
      last = std::max(last, state(n).complete);
    }
    cost_.timeline.phases = {phase_names(program)};
    for (const PhaseTimes& times : phase_times(cost_.timeline)) by_phase[at(times.phase)].us = times.span_us;
    for (PhaseCost& phase : by_phase) {
      if (phase.times == 0) continue;
      phase.floor_us = static_cast<double>(phase.bytes) * ranks_ / rates_.peak.value / 1000;
      cost_.floor_us += phase.floor_us;
      cost_.phases.push_back(phase);
    }
    cost_.us = (last + rates_.close.value + (t_.tells_any_ranks() ? rates_.release.value : 0)) / 1000;
  }

  const StepTables& t_;
  const Rates& rates_;
  const int32_t processors_, ranks_;
  std::vector<InstanceState> states_;
  std::vector<Processor> blocks_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t order_ = 0;
  double memory_free_ = 0, link_free_ = 0;
  std::map<int32_t, int64_t> bytes_;  // from memory, by instance
  StepCost cost_;
};

}  // namespace

Counts StepCost::most() const {
  Counts all;
  for (const PhaseCost& p : phases) {
    all.loads += p.times * p.counts.loads, all.fences += p.times * p.counts.fences;
    all.atomics += p.times * p.counts.atomics, all.barriers += p.times * p.counts.barriers;
  }
  return all;
}

StepCost replay(const StepTables& tables, const Rates& rates) { return Replay(tables, rates).run(); }

}  // namespace ark::cuda::cost
