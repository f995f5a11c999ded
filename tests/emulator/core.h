// Inside of the emulator: fibers, warps, blocks, and who runs next.
//
// Everything here belongs to the thread that calls Machine::advance(); `Core::current` is its machine while
// kernels run. A hook runs on the stack of the fiber that called it. A failure leaves all fibers where they
// are.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/emulator/detector.h"
#include "tests/emulator/emulator.h"
#include "tests/emulator/hooks.h"

namespace ark::emulator {

struct Block;
struct Fiber;
struct Grid;

enum class Access { kRead, kWrite, kCopySource };  // a source may hold bytes that nobody wrote

struct AsyncCopy {
  void* to = nullptr;
  const void* from = nullptr;
  uint32_t bytes = 0;
  uint32_t zeros = 0;           // behind them, in `to`
  uint64_t* barrier = nullptr;  // bulk loads: completes bytes there
  int group = 0;                // of the issuing thread
  Site at;
  Place place = 0, from_place = 0;  // of the access to either end
};

struct CopyGroups {
  std::deque<AsyncCopy> copies;  // in flight, in order
  int group = 0;                 // the open one
};

struct Warp {
  Block* block = nullptr;
  std::array<Fiber*, 32> lanes{};
  int count = 0;
  uint32_t ready = 0, polling = 0, exited = 0;
  bool queued = false;
  uint32_t priority = 0;
  // The collective that lanes have come to.
  const char* collective = nullptr;
  Site collective_at;
  uint32_t arrived = 0;
  std::array<void*, 32> arguments{};
  Meeting meeting;
  int registers = 0;  // of a thread; 0: as many as at the launch

  uint32_t full() const { return count == 32 ? ~0u : (1u << count) - 1; }
};

inline constexpr uint64_t kStackBytes = 128 << 10;  // of a fiber

// What a fiber waits for, for the report.
inline constexpr const char* kRunning = "running";
inline constexpr const char* kEnded = "ended";
struct Waiting {
  const char* what = "not started";
  Site at;
  const void* word = nullptr;  // with seen and needed
  uint64_t seen = 0, needed = 0;
};

// A store or addition that its thread has made and no other sees yet.
struct PendingStore {
  WordOperation operation;
  WordScope scope;
  void* word;
  int bytes;
  uint64_t value;
  std::array<Message, 3> messages;  // what it releases, by scope
  uint32_t fences;                  // of the thread, before it
};

struct Fiber {
  ThreadIds ids{};
  const ThreadIds* own_ids = nullptr;  // what the kernel reads
  void* stack_pointer = nullptr;
  std::byte* stack = nullptr;
  std::byte* shared = nullptr;  // of its block
  uint64_t shared_bytes = 0;
  Warp* warp = nullptr;
  Waiting waiting;
  bool vote = false;  // of the barrier that it has left last
  CopyGroups thread_copies, bulk_stores;
  Actor actor;
  // Weak words: stores not yet made, fences so far; changes up to `fresh` must be seen; and of words, which change was.
  std::vector<PendingStore> stores;
  uint32_t fences = 0;
  uint64_t fresh = 0;
  std::unordered_map<const void*, uint64_t> seen;
};

struct BlockBarrier {
  int arrived = 0, expected = 0;
  bool vote = false;  // any of those that have arrived
  Site at;
  std::vector<uint32_t> waiting;  // lanes per warp
  Meeting meeting;
};

struct MbarrierState {
  uint32_t arrivals = 0;  // a phase
  uint32_t pending = 0;
  int64_t bytes = 0;  // still to come; negative if copies land before their expect
  uint32_t phase = 0;
  Message arriving, complete;  // what arrivals of the phase, of all phases before, have released
};

struct Block {
  Grid* grid = nullptr;
  int index = 0;
  int live = 0;
  std::vector<Warp> warps;
  std::vector<Fiber> fibers;
  std::array<BlockBarrier, 16> barriers;
  int free_registers = 0;         // given, and not yet taken
  std::vector<Warp*> short_ones;  // warps that wait for some
  std::byte* shared = nullptr;
  std::vector<AsyncCopy> bulk_loads;
  std::vector<Fiber*> arriving;  // threads whose copies arrive at an mbarrier
  std::unordered_map<const void*, MbarrierState> mbarriers;
  Actor engine;
};

struct Grid {
  Machine::LaunchId id = 0;
  LaunchRequest request;
  std::vector<std::unique_ptr<Block>> blocks;
  int live = 0;
  std::byte* stacks = nullptr;
  uint64_t stack_bytes = 0;
  ActorId first_actor = 0;
  ~Grid();
};

// Releases at a word, by whom an acquire of which scope may see them.
struct WordReleases {
  struct Entry {
    WordScope scope;
    int gpu;
    const Block* block;
    Message message;
  };
  std::vector<Entry> entries;
  uint64_t previous = 0, change = 0;  // weak words: the value before the last store, which was that change
  const Fiber* changed_by = nullptr;
  std::optional<std::pair<ActorId, uint32_t>> told;  // who stored it last, and when: ark_emulator_told()
};

class Core {
 public:
  explicit Core(const Options& options);
  ~Core();

  static constinit thread_local Core* current;

  // ---- fibers (fibers.cc)
  Machine::LaunchId launch(LaunchRequest request);
  Machine::Progress advance(uint64_t switches);
  // The fiber is entered as ready or waiting somewhere; runs others until it is picked again.
  void switch_away();
  // In kRandom and kPct: maybe lets others go first.
  void maybe_yield();
  void wait_for(const char* what, Site at);  // until somebody sets the lane ready
  void poll(const char* what, Site at, const void* word, uint64_t seen, uint64_t needed);
  void make_ready(Warp& warp, uint32_t lanes);
  bool wake_pollers();  // false: none polls
  void made_progress() { progress_++; }
  // For Options::trace.
  void note(const char* what, int64_t a = 0, int64_t b = 0, int64_t c = 0) {
    if (options.trace) [[unlikely]]
      add_to_trace(what, a, b, c);
  }
  [[noreturn]] void fail(Fault fault, const std::string& what, Site at);
  [[noreturn]] void fail(const Race& race);
  std::string who(const Fiber& fiber) const;
  [[noreturn]] static void fiber_main();

  // ---- weak words (words.cc)
  bool is_weak() const { return options.weak_words && is_random(); }
  uint64_t perform(const Fiber& by, const PendingStore& store, uint64_t expected = 0);
  void perform_one(Fiber& owner, size_t index);
  // The running thread's stores come before whatever it does next that others can order themselves by.
  void perform_all(Fiber& owner) {
    while (!owner.stores.empty()) perform_one(owner, 0);
  }
  void perform_next(Fiber& owner);
  // The running thread has learnt of all that others have done.
  void refresh() { fiber->fresh = changes; }

  // ---- the host as a reader (words.cc): Machine::host_acquires, host_reads
  void host_acquires(const void* word);
  void host_reads(const void* p, uint64_t bytes);

  // ---- checks (checks.cc): fail() unless all is well
  // An access of the running fiber. `at.line` 0: only its place is known.
  void check(const void* p, uint64_t bytes, Access access, Place place, Site at) {
    if (!is_plain(p, bytes, access)) check_all(p, bytes, access, place, at);
  }
  // The same, and remembered by the detector.
  void touch(const void* p, uint64_t bytes, Access access, Place place, Site at = {}) {
    check(p, bytes, access, place, at);
    remember(fiber->actor, p, bytes, access, place);
  }
  bool is_own_stack(const void* p) const {
    return static_cast<uint64_t>(static_cast<const std::byte*>(p) - fiber->stack) < kStackBytes;
  }
  bool is_own_shared(const void* p) const {
    return static_cast<uint64_t>(static_cast<const std::byte*>(p) - fiber->shared) < fiber->shared_bytes;
  }
  // What the state of each byte must have, and must not, for an access to be allowed.
  struct Needs {
    uint8_t all, none;
  };
  Needs needs(const void* p, Access access) const {
    const bool is_write = access == Access::kWrite,
               is_used = !is_write && access != Access::kCopySource && options.detector;
    return {static_cast<uint8_t>(Memory::kAllocated | (is_used ? Memory::kInitialised : 0)),
            static_cast<uint8_t>(Memory::kInFlight | (is_own_shared(p) ? 0 : Memory::kShared) |
                                 (is_write ? Memory::kConstant | Memory::kReadConstant : 0))};
  }
  // Whether the access is one of the many that check_all() finds nothing at and changes nothing for.
  bool is_plain(const void* p, uint64_t bytes, Access access) {
    if (!memory.contains(p)) return false;
    const Needs n = needs(p, access);
    const int changed = access == Access::kWrite ? Memory::kInitialised | Memory::kWritten : 0;
    return Memory::match(memory.states(p), bytes, static_cast<uint8_t>(n.all | changed), n.none);
  }
  // Bytes that no kernel has written since the host did, nor may write from now on.
  void check_constant(const void* p, uint64_t bytes, Site at);
  void check_shared(const void* p, uint64_t bytes, uint64_t alignment, Site at);
  void check_aligned(const void* p, uint64_t alignment, Place place, Site at = {});
  // An access by an actor, checked before.
  void remember(const Actor& actor, const void* p, uint64_t bytes, Access access, Place place);

  // ---- copies (copies.cc)
  void issue(const AsyncCopy& copy, const Actor& actor);  // poisons the destination
  void land(const AsyncCopy& copy, const Actor& actor);
  void land_first(Fiber& owner);  // of its cp.async copies
  void land_bulk_load(Block& block, size_t index);
  void land_some(bool all);  // copies that somebody waits for at an mbarrier
  MbarrierState& mbarrier(uint64_t* barrier, Site at);
  void settle(MbarrierState& m);
  bool coin(uint32_t one_in) { return random() % one_in == 0; }
  bool is_random() const { return options.schedule != Schedule::kFixed; }
  uint32_t random();

  Options options;
  Memory memory;
  Detector detector;
  Counts counts;
  Fiber* fiber = nullptr;  // the one that runs
  std::vector<std::unique_ptr<Grid>> grids;
  std::unordered_map<const void*, WordReleases> words;
  std::vector<Fiber*> storing;  // those with pending stores
  uint64_t changes = 0;         // of words
  std::optional<Actor> host;    // once it has read
  uint64_t time_ns = 1;  // the kernels' clock: moves with switches, looks at it, idle time, and when stuck

 private:
  void check_all(const void* p, uint64_t bytes, Access access, Place place, Site at);
  Fiber* pick();
  Fiber* take_lane(Warp& warp);
  Warp* next_warp();
  void enqueue(Warp& warp);
  bool waits_for_host() const;
  void start(Fiber& next);
  void finish_fiber();
  void drop_finished();
  void drop_all();
  std::string describe(Place place) const;
  std::string waiting_report() const;
  void add_to_trace(const char* what, int64_t a, int64_t b, int64_t c) const;

  std::vector<Warp*> queue_;  // ring of ready warps
  size_t queue_head_ = 0, queue_count_ = 0;
  Warp* warp_ = nullptr;
  void* main_stack_pointer_ = nullptr;
  uint64_t progress_ = 0, progress_at_poll_ = ~uint64_t{0};
  uint64_t budget_ = 0;
  bool is_idle_ = false;
  uint64_t random_state_ = 1;
  Machine::LaunchId next_launch_ = 1;
  std::optional<Failure> failure_;
};

// The call that a hook serves, as a place.
#define ARK_EMULATOR_PLACE reinterpret_cast<::ark::emulator::Place>(__builtin_return_address(0))

inline Fiber& running() { return *Core::current->fiber; }

}  // namespace ark::emulator
