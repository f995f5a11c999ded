#include "tests/emulator/detector.h"

#include <sys/mman.h>

#include "base/error.h"

namespace ark::emulator {
namespace {

constexpr uint64_t kBytes = Memory::kSize / 4 * 32;
constexpr uint32_t kMaxActors = 1 << 16;

}  // namespace

Detector::Detector(Memory& memory)
    : memory_(memory),
      cells_(static_cast<Cell*>(reserve(kBytes))),
      halves_(static_cast<Cell*>(reserve(2 * kBytes))),
      sets_(1) {}

Detector::~Detector() {
  munmap(cells_, kBytes);
  munmap(halves_, 2 * kBytes);
}

ActorId Detector::add_actors(int count, int engine) {
  const uint32_t first = next_actor_;
  next_actor_ = (first + count + 31) / 32 * 32;
  if (next_actor_ > kMaxActors) {
    throw Error(Code::kExhausted, "emulator: more than 65536 threads between two pauses of all kernels");
  }
  engines_.resize(next_actor_);
  entries_.resize(next_actor_ / 32);
  for (int i = 0; i < count; i++) engines_[first + i] = i == engine;
  return static_cast<ActorId>(first);
}

void Detector::restart() {
  start_ = std::max(start_, latest_);
  next_actor_ = 0;
}

Actor Detector::make_actor(ActorId id) const {
  Actor actor;
  actor.id = id;
  actor.own = start_ + 1;
  return actor;
}

const Race* Detector::report(const char* kind, const Actor& now, Place place, ActorId earlier,
                             Place earlier_place, const void* p) {
  race_ = {kind, p, place, earlier_place, now.id, earlier};
  return &race_;
}

void Detector::drop_set(Cell& c) {
  sets_[c.readers].clear();
  free_sets_.push_back(c.readers);
  c.readers = 0;
}

uint32_t Detector::new_set() {
  if (free_sets_.empty()) {
    sets_.emplace_back();
    return static_cast<uint32_t>(sets_.size() - 1);
  }
  const uint32_t set = free_sets_.back();
  free_sets_.pop_back();
  return set;
}

void Detector::part(Cell& c) {
  Cell* half = halves(c);
  half[0] = half[1] = c;
  if (c.readers) {
    half[1].readers = new_set();
    sets_[half[1].readers] = sets_[c.readers];
  }
  c.readers = kInHalves;
}

template <class Check>
const Race* Detector::each_cell(const void* p, uint64_t bytes, Check check) {
  uint64_t at = memory_.offset(p);
  const uint64_t end = at + bytes;
  while (at < end) {
    Cell& c = cells_[at / kGrain];
    const uint64_t next = std::min(end, (at / kGrain + 1) * kGrain);
    const bool is_whole = next - at == kGrain;
    if (is_whole && c.readers != kInHalves) [[likely]] {
      if (const Race* race = check(c)) return race;
    } else {
      if (c.readers != kInHalves) part(c);
      for (uint64_t half = at / 2; half <= (next - 1) / 2; half++) {
        if (const Race* race = check(halves_[half])) return race;
      }
    }
    at = next;
  }
  return nullptr;
}

void Detector::add_reader(Cell& c, const Actor& actor, Place place) {
  if (!c.readers) {
    if (c.read_count == 0 || c.reader == actor.id || is_ordered(actor, c.reader, c.read_count)) {
      c.read_count = actor.own, c.reader = actor.id, c.read_place = place;
      return;
    }
    c.readers = new_set();
    sets_[c.readers].push_back({c.reader, c.read_count, c.read_place});
  }
  std::vector<Reader>& set = sets_[c.readers];
  const uint32_t warp = actor.id / 32;
  uint32_t& at = entries_[warp];
  if (at >= set.size() || set[at].actor / 32 != warp) {
    for (at = 0; at < set.size(); at++) {
      if (set[at].actor / 32 == warp || is_ordered(actor, set[at].actor, set[at].count)) break;
    }
    if (at == set.size()) return set.push_back({actor.id, actor.own, place});
  }
  Reader& r = set[at];
  if (r.actor == actor.id || is_ordered(actor, r.actor, r.count) || turn_++ % 4 == 0) {
    r = {actor.id, actor.own, place};
  }
}

const Race* Detector::check_readers(Cell& c, const Actor& actor, Place place, const void* p) {
  const bool atomic = place & kAtomic;
  if (c.readers) {
    for (const Reader& r : sets_[c.readers]) {
      if (r.actor != actor.id && !(atomic && (r.place & kAtomic)) && !is_ordered(actor, r.actor, r.count)) {
        return report("write after read", actor, place, r.actor, r.place, p);
      }
    }
    drop_set(c);
  } else if (c.read_count && c.reader != actor.id && !(atomic && (c.read_place & kAtomic)) &&
             !is_ordered(actor, c.reader, c.read_count)) {
    return report("write after read", actor, place, c.reader, c.read_place, p);
  }
  return nullptr;
}

const Race* Detector::read(const Actor& actor, const void* p, uint64_t bytes, Place place) {
  const Cell* ordered = nullptr;  // whose write is none that this read races with
  return each_cell(p, bytes, [&](Cell& c) -> const Race* {
    if (has_read(c, actor, place)) return nullptr;
    const bool is_known = ordered && c.write_count == ordered->write_count && c.writer == ordered->writer &&
                          c.write_place == ordered->write_place;
    if (!is_known && c.write_count && c.writer != actor.id &&
        !((c.write_place & kAtomic) && (place & kAtomic)) && !is_ordered(actor, c.writer, c.write_count)) {
      return report("read after write", actor, place, c.writer, c.write_place, p);
    }
    ordered = &c;
    add_reader(c, actor, place);
    return nullptr;
  });
}

const Race* Detector::write(const Actor& actor, const void* p, uint64_t bytes, Place place) {
  const Race* race = each_cell(p, bytes, [&](Cell& c) -> const Race* {
    if (c.write_count && c.writer != actor.id && !((c.write_place & kAtomic) && (place & kAtomic)) &&
        !is_ordered(actor, c.writer, c.write_count)) {
      return report("write after write", actor, place, c.writer, c.write_place, p);
    }
    if (const Race* earlier = check_readers(c, actor, place, p)) return earlier;
    c.write_count = actor.own, c.writer = actor.id, c.write_place = place;
    c.read_count = 0;
    return nullptr;
  });
  if (race) return race;
  // Halves of which both have this write are one again.
  const uint64_t begin = memory_.offset(p);
  for (uint64_t i = (begin + kGrain - 1) / kGrain; i < (begin + bytes) / kGrain; i++) {
    if (cells_[i].readers == kInHalves) cells_[i] = halves(cells_[i])[0];
  }
  return nullptr;
}

const Race* Detector::copy_engine(const Actor& issuer, const void* p, uint64_t bytes, Place place) {
  return each_cell(p, bytes, [&](Cell& c) -> const Race* {
    if (c.write_count > start_ && !engines_[c.writer] && count_of(issuer.proxied, c.writer) < c.write_count) {
      return report("bulk copy after write", issuer, place, c.writer, c.write_place, p);
    }
    return nullptr;
  });
}

void Detector::forget(const void* p, uint64_t bytes) {
  if (!bytes) return;
  const auto drop = [&](Cell& c) -> const Race* {
    if (c.readers) drop_set(c);
    c = {};
    return nullptr;
  };
  each_cell(p, bytes, drop);
}

}  // namespace ark::emulator
