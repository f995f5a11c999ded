#include "tests/emulator/detector.h"

#include <sys/mman.h>

#include <cstring>

#include "base/error.h"

namespace ark::emulator {
namespace {

constexpr uint64_t kBytes = Memory::kSize / 2 * 32;
constexpr uint32_t kMaxActors = 1 << 16;

}  // namespace

Detector::Detector(Memory& memory) : memory_(memory), cells_(static_cast<Cell*>(reserve(kBytes))), sets_(1) {}

Detector::~Detector() { munmap(cells_, kBytes); }

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

void Detector::add_reader(Cell& c, const Actor& actor, Place place) {
  if (!c.readers) {
    if (c.read_count == 0 || c.reader == actor.id || is_ordered(actor, c.reader, c.read_count)) {
      c.read_count = actor.own, c.reader = actor.id, c.read_place = place;
      return;
    }
    if (free_sets_.empty()) {
      c.readers = static_cast<uint32_t>(sets_.size());
      sets_.emplace_back();
    } else {
      c.readers = free_sets_.back();
      free_sets_.pop_back();
    }
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
  const auto* b = static_cast<const std::byte*>(p);
  Cell* c = &cell(b);
  Cell* end = &cell(b + bytes - 1) + 1;
  const Cell* ordered = nullptr;  // whose write is none that this read races with
  for (; c != end; c++) {
    if (c->reader == actor.id && c->read_count == actor.own && !c->readers) continue;
    const bool is_known = ordered && c->write_count == ordered->write_count && c->writer == ordered->writer &&
                          c->write_place == ordered->write_place;
    if (!is_known && c->write_count && c->writer != actor.id &&
        !((c->write_place & kAtomic) && (place & kAtomic)) && !is_ordered(actor, c->writer, c->write_count)) {
      return report("read after write", actor, place, c->writer, c->write_place, p);
    }
    ordered = c;
    add_reader(*c, actor, place);
  }
  return nullptr;
}

const Race* Detector::write(const Actor& actor, const void* p, uint64_t bytes, Place place) {
  const auto* b = static_cast<const std::byte*>(p);
  Cell* c = &cell(b);
  Cell* end = &cell(b + bytes - 1) + 1;
  for (; c != end; c++) {
    if (c->write_count && c->writer != actor.id && !((c->write_place & kAtomic) && (place & kAtomic)) &&
        !is_ordered(actor, c->writer, c->write_count)) {
      return report("write after write", actor, place, c->writer, c->write_place, p);
    }
    if (const Race* race = check_readers(*c, actor, place, p)) return race;
    c->write_count = actor.own, c->writer = actor.id, c->write_place = place;
    c->read_count = 0;
  }
  return nullptr;
}

const Race* Detector::copy_engine(const Actor& issuer, const void* p, uint64_t bytes, Place place) {
  const auto* b = static_cast<const std::byte*>(p);
  for (Cell *c = &cell(b), *end = &cell(b + bytes - 1) + 1; c != end; c++) {
    if (c->write_count > start_ && !engines_[c->writer] &&
        count_of(issuer.proxied, c->writer) < c->write_count) {
      return report("bulk copy after write", issuer, place, c->writer, c->write_place, p);
    }
  }
  return nullptr;
}

void Detector::forget(const void* p, uint64_t bytes) {
  if (!bytes) return;
  const auto* b = static_cast<const std::byte*>(p);
  for (Cell *c = &cell(b), *end = &cell(b + bytes - 1) + 1; c != end; c++) {
    if (c->readers) drop_set(*c);
  }
  std::memset(&cell(b), 0, (&cell(b + bytes - 1) + 1 - &cell(b)) * sizeof(Cell));
}

}  // namespace ark::emulator
