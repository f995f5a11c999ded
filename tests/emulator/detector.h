// Happens-before race detector: remembers, per four bytes, and per two where accesses part them, the last write
// and the reads since that no later read covers, and compares them with what the accessing actor knows. Finds a
// race in any schedule in which both accesses happen, however far apart. Sources: FastTrack (Flanagan and Freund,
// 2009) for the epochs.
//
// Reads by lanes of one warp that are not ordered share one entry, which keeps either: a race with such lanes
// is found in most runs, not all. Of atomic accesses the last ones are known. Everything else is exact.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/emulator/clock.h"
#include "tests/emulator/memory.h"

namespace ark::emulator {

// Of an access: return address of the code that made it; the top bit marks atomic ones.
using Place = uint64_t;
inline constexpr Place kAtomic = Place{1} << 63;

struct Race {
  const char* kind = "";
  const void* address = nullptr;
  Place now = 0, earlier = 0;
  ActorId now_actor = 0, earlier_actor = 0;
};

class Detector {
 public:
  explicit Detector(Memory& memory);
  ~Detector();
  Detector(const Detector&) = delete;
  Detector& operator=(const Detector&) = delete;

  // Ids of `count` new actors in a row, the first a multiple of 32. `engine`: index of a copy engine among
  // them.
  ActorId add_actors(int count, int engine);
  // No actor is alive: all that was, happened before all that comes.
  void restart();
  Actor make_actor(ActorId id) const;
  // `actor` ends; later restarts stand behind its accesses.
  void retire(const Actor& actor) { latest_ = std::max(latest_, actor.own); }

  // Null if the access races with nothing. Addresses must lie in the memory's region.
  const Race* read(const Actor& actor, const void* p, uint64_t bytes, Place place);
  const Race* write(const Actor& actor, const void* p, uint64_t bytes, Place place);
  // Whether the copy engine may touch what threads wrote there: `issuer` knows a proxy fence behind each
  // write.
  const Race* copy_engine(const Actor& issuer, const void* p, uint64_t bytes, Place place);
  // New memory at an old address.
  void forget(const void* p, uint64_t bytes);

 private:
  struct Cell {
    uint32_t write_count, read_count;  // 0: none
    Place write_place, read_place;
    ActorId writer, reader;
    uint32_t readers;  // index into sets_, 0: at most one reader, which the cell itself holds; kInHalves
  };
  static_assert(sizeof(Cell) == 32);
  struct Reader {
    ActorId actor;
    uint32_t count;
    Place place;
  };
  static constexpr uint64_t kGrain = 4;
  static constexpr uint32_t kInHalves = ~0u;  // cells of halves_ hold what is known

  // check(cell) of all cells of [p, p + bytes) until one returns a race.
  template <class Check>
  const Race* each_cell(const void* p, uint64_t bytes, Check check);
  // Gives each half of a cell one of its own.
  void part(Cell& c);
  Cell* halves(const Cell& c) { return halves_ + (&c - cells_) * 2; }
  uint32_t new_set();

  bool is_ordered(const Actor& actor, ActorId other, uint32_t count) const {
    return count <= start_ || actor.count(other) >= count;
  }
  // Whether the cell knows of a read by the actor as it is now of which no less was checked.
  bool has_read(const Cell& c, const Actor& actor, Place place) const {
    const auto covers = [&](ActorId reader, uint32_t count, Place earlier) {
      return reader == actor.id && count == actor.own && !(earlier & ~place & kAtomic);
    };
    if (!c.readers) return covers(c.reader, c.read_count, c.read_place);
    const std::vector<Reader>& set = sets_[c.readers];
    const uint32_t at = entries_[actor.id / 32];
    return at < set.size() && covers(set[at].actor, set[at].count, set[at].place);
  }
  const Race* report(const char* kind, const Actor& now, Place place, ActorId earlier, Place earlier_place,
                     const void* p);
  void add_reader(Cell& c, const Actor& actor, Place place);
  const Race* check_readers(Cell& c, const Actor& actor, Place place, const void* p);
  void drop_set(Cell& c);

  Memory& memory_;
  Cell *cells_ = nullptr, *halves_ = nullptr;
  uint32_t start_ = 0, latest_ = 0;  // counts up to start_ are over
  uint32_t next_actor_ = 0;
  uint32_t turn_ = 0;  // which lane of a warp an entry keeps
  std::vector<bool> engines_;
  std::vector<uint32_t> entries_;  // of each warp: where its entry was in the set that it met last
  std::vector<std::vector<Reader>> sets_;
  std::vector<uint32_t> free_sets_;
  Race race_;
};

}  // namespace ark::emulator
