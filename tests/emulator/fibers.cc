// Fibers and schedules: who runs next.
#include <sys/mman.h>

#include <bit>

#include "base/error.h"
#include "tests/emulator/core.h"

// Saves the callee-saved registers on the running stack, leaves its pointer in *save, goes on at `to`.
extern "C" void ark_emulator_switch(void** save, void* to);
#if !defined(__x86_64__)
#error "the emulator's context switch is written for x86-64 only"
#endif
asm(R"(
.text
.globl ark_emulator_switch
.type ark_emulator_switch,@function
ark_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size ark_emulator_switch, .-ark_emulator_switch
)");

namespace ark::emulator {
namespace {

constexpr uint64_t kGuard = 4096;
constexpr int kSavedRegisters = 6;
constexpr uint64_t kSwitchNs = 20;  // of the kernels' clock
constexpr uint32_t kPctChange = 8;  // one change of priority in so many turns, and up to 128 times as many
constexpr uint64_t kStuckNs = 1'000'000;

}  // namespace

constinit thread_local Core* Core::current = nullptr;

Grid::~Grid() {
  if (stacks) munmap(stacks, stack_bytes);
}

Core::Core(const Options& options) : options(options), detector(memory) {}
Core::~Core() { drop_all(); }

uint32_t Core::random() {
  random_state_ ^= random_state_ << 13;
  random_state_ ^= random_state_ >> 7;
  random_state_ ^= random_state_ << 17;
  return static_cast<uint32_t>(random_state_ >> 16);
}

Machine::LaunchId Core::launch(LaunchRequest request) {
  ARK_CHECK(request.blocks > 0 && request.threads > 0 && request.threads <= 1024,
            "emulator: shape of a launch");
  if (grids.empty()) {
    detector.restart();
    words.clear();
    host.reset();
    random_state_ = options.seed * 0x9e3779b97f4a7c15u + 0x1234567u;
    for (int i = 0; i < 8; i++) random();
  }
  auto grid = std::make_unique<Grid>();
  grid->id = next_launch_++;
  grid->request = std::move(request);
  const LaunchRequest& r = grid->request;
  const int warps = (r.threads + 31) / 32;
  const int fibers = r.blocks * r.threads;
  grid->live = fibers;
  grid->stack_bytes = fibers * (kStackBytes + kGuard);
  grid->stacks = static_cast<std::byte*>(reserve(grid->stack_bytes));
  for (int b = 0; b < r.blocks; b++) {
    auto block = std::make_unique<Block>();
    block->grid = grid.get();
    block->index = b;
    block->live = r.threads;
    const ActorId first_actor = detector.add_actors(warps * 32 + 1, warps * 32);
    block->engine = detector.make_actor(static_cast<ActorId>(first_actor + warps * 32));
    block->shared = memory.allocate(std::max<uint64_t>(r.shared_bytes, 1), r.gpu,
                                    "shared memory of block " + std::to_string(b), Memory::kShared);
    if (options.detector && !grids.empty()) detector.forget(block->shared, r.shared_bytes);
    block->warps.resize(warps);
    block->fibers.resize(r.threads);
    for (BlockBarrier& barrier : block->barriers) barrier.waiting.assign(warps, 0);
    for (Warp& warp : block->warps) {
      warp.block = block.get();
      warp.priority = random();
    }
    for (int t = 0; t < r.threads; t++) {
      Fiber& f = block->fibers[t];
      Warp& warp = block->warps[t / 32];
      warp.lanes[warp.count] = &f;
      warp.ready |= 1u << warp.count++;
      f.warp = &warp;
      f.shared = block->shared;
      f.shared_bytes = r.shared_bytes;
      f.actor = detector.make_actor(static_cast<ActorId>(first_actor + t));
      f.fresh = changes;
      f.ids = {t, t % 32, t / 32, b, r.threads, r.blocks, reinterpret_cast<unsigned char*>(block->shared)};
      const int number = b * r.threads + t;
      std::byte* low = grid->stacks + number * (kStackBytes + kGuard);
      mprotect(low, kGuard, PROT_NONE);
      f.stack = low + kGuard;
      // A copy on top of the stack, where instrumented code may look.
      f.own_ids = new (f.stack + kStackBytes - sizeof(ThreadIds)) ThreadIds(f.ids);
      // Staggered, so that the tops of all stacks do not share one set of the cache.
      auto** top = reinterpret_cast<void**>(f.stack + kStackBytes - 64 - number % 64 * 192);
      *--top = nullptr;
      *--top = reinterpret_cast<void*>(&Core::fiber_main);
      top -= kSavedRegisters;
      f.stack_pointer = top;
    }
    grid->blocks.push_back(std::move(block));
  }
  grids.push_back(std::move(grid));
  size_t all = 1;
  for (auto& g : grids) all += g->blocks.size() * g->blocks[0]->warps.size();
  std::vector<Warp*> old;
  for (; queue_count_; queue_count_--, queue_head_++) old.push_back(queue_[queue_head_ % queue_.size()]);
  queue_.assign(all, nullptr);
  queue_head_ = 0;
  for (Warp* warp : old) queue_[queue_count_++] = warp;
  for (auto& block : grids.back()->blocks) {
    for (Warp& warp : block->warps) enqueue(warp);
  }
  progress_++;
  return grids.back()->id;
}

void Core::enqueue(Warp& warp) {
  if (warp.queued || !warp.ready || &warp == warp_) return;
  warp.queued = true;
  queue_[(queue_head_ + queue_count_++) % queue_.size()] = &warp;
}

void Core::make_ready(Warp& warp, uint32_t lanes) {
  warp.ready |= lanes;
  enqueue(warp);
}

Warp* Core::next_warp() {
  if (options.schedule == Schedule::kPct) {
    if (warp_ && coin(kPctChange << options.seed % 8)) {
      const uint32_t priority = random();
      for (Warp& w : warp_->block->warps) w.priority = priority ^ random() % 256;
    }
    Warp* best = nullptr;
    for (auto& grid : grids) {
      for (auto& block : grid->blocks) {
        for (Warp& w : block->warps) {
          if (w.ready && (!best || w.priority > best->priority)) best = &w;
        }
      }
    }
    return best;
  }
  if (options.schedule == Schedule::kRandom) {
    if (warp_ && warp_->ready && queue_count_ && coin(4)) {
      Warp* left = std::exchange(warp_, nullptr);
      enqueue(*left);
    }
    if (queue_count_ && !(warp_ && warp_->ready)) {
      std::swap(queue_[queue_head_ % queue_.size()],
                queue_[(queue_head_ + random() % queue_count_) % queue_.size()]);
    }
  }
  if (warp_ && warp_->ready) return warp_;
  while (queue_count_) {
    Warp* next = queue_[queue_head_ % queue_.size()];
    queue_head_ = (queue_head_ + 1) % queue_.size();
    queue_count_--;
    next->queued = false;
    if (next->ready) return next;
  }
  return nullptr;
}

Fiber* Core::take_lane(Warp& warp) {
  warp_ = &warp;
  uint32_t lanes = warp.ready;
  if (is_random()) {
    for (uint32_t skip = random() % std::popcount(lanes); skip; skip--) lanes &= lanes - 1;
  }
  const int lane = std::countr_zero(lanes);
  warp.ready &= ~(1u << lane);
  return warp.lanes[lane];
}

bool Core::wake_pollers() {
  bool any = false;
  for (auto& grid : grids) {
    for (auto& block : grid->blocks) {
      for (Warp& warp : block->warps) {
        if (!warp.polling) continue;
        any = true;
        make_ready(warp, std::exchange(warp.polling, 0));
      }
    }
  }
  return any;
}

bool Core::waits_for_host() const {
  for (auto& grid : grids) {
    for (auto& block : grid->blocks) {
      for (const Fiber& f : block->fibers) {
        if (f.waiting.word && memory.is_written_outside(f.waiting.word)) return true;
      }
    }
  }
  return false;
}

Fiber* Core::pick() {
  for (;;) {
    if (budget_ == 0) return nullptr;
    if (options.landing == Landing::kRandom && coin(16)) land_some(false);
    if (!storing.empty() && coin(16)) perform_next(*storing[random() % storing.size()]);
    if (Warp* warp = next_warp()) {
      budget_--;
      return take_lane(*warp);
    }
    if (grids.empty()) return nullptr;
    land_some(true);
    if (!storing.empty()) {
      while (!storing.empty()) perform_next(*storing[random() % storing.size()]);
      wake_pollers();
      continue;
    }
    const bool news = progress_ != progress_at_poll_;
    if (!news) {
      if (waits_for_host()) {
        is_idle_ = true;
        return nullptr;
      }
      if (!options.stuck_passes_time) fail(Fault::kDeadlock, "no thread can go on", {});
      time_ns += kStuckNs;
    }
    progress_at_poll_ = progress_;
    counts.polls++;
    if (!wake_pollers()) fail(Fault::kDeadlock, "no thread can go on, and none polls", {});
  }
}

void Core::start(Fiber& next) {
  counts.switches++;
  time_ns += kSwitchNs;
  fiber = &next;
}

void Core::switch_away() {
  Fiber* self = fiber;
  Fiber* next = pick();
  if (next == self) return;
  if (next) {
    start(*next);
    ark_emulator_switch(&self->stack_pointer, next->stack_pointer);
  } else {
    fiber = nullptr;
    ark_emulator_switch(&self->stack_pointer, main_stack_pointer_);
  }
}

void Core::wait_for(const char* what, Site at) {
  Fiber& self = *fiber;
  self.waiting = {what, at};
  switch_away();
  self.waiting.what = kRunning;
}

void Core::poll(const char* what, Site at, const void* word, uint64_t seen, uint64_t needed) {
  Fiber& self = *fiber;
  self.waiting = {what, at, word, seen, needed};
  self.warp->polling |= 1u << self.ids.lane;
  switch_away();
  self.waiting = {kRunning, at};
}

void Core::maybe_yield() {
  if (!is_random() || (options.schedule == Schedule::kRandom && coin(2))) return;
  fiber->warp->ready |= 1u << fiber->ids.lane;
  switch_away();
}

void Core::fiber_main() {
  Core& core = *current;
  core.fiber->waiting = {kRunning, {}};
  Grid& grid = *core.fiber->warp->block->grid;
  grid.request.kernel(grid.request.parameter.data());
  core.finish_fiber();
  __builtin_unreachable();
}

void Core::finish_fiber() {
  Fiber& self = *fiber;
  Block& block = *self.warp->block;
  while (!self.stores.empty()) {  // pick() makes them
    self.warp->ready |= 1u << self.ids.lane;
    switch_away();
  }
  for (const CopyGroups* groups : {&self.thread_copies, &self.bulk_stores}) {
    if (!groups->copies.empty()) fail(Fault::kCopy, "a thread ends before its copy", groups->copies[0].at);
  }
  if (--block.live == 0 && !block.bulk_loads.empty()) {
    fail(Fault::kCopy, "a block ends before its bulk copy", block.bulk_loads[0].at);
  }
  self.warp->exited |= 1u << self.ids.lane;
  self.waiting = {kEnded, {}};
  detector.retire(self.actor);
  detector.retire(block.engine);
  made_progress();
  Fiber* next = --block.grid->live == 0 ? nullptr : pick();
  void* nowhere;
  if (next) {
    start(*next);
    ark_emulator_switch(&nowhere, next->stack_pointer);
  } else {
    fiber = nullptr;
    ark_emulator_switch(&nowhere, main_stack_pointer_);
  }
}

void Core::drop_finished() {
  for (size_t i = 0; i < grids.size();) {
    if (grids[i]->live) {
      i++;
      continue;
    }
    for (auto& block : grids[i]->blocks) memory.release(block->shared);
    if (warp_ && warp_->block->grid == grids[i].get()) warp_ = nullptr;
    for (size_t k = 0, n = std::exchange(queue_count_, 0); k < n; k++) {
      Warp* warp = queue_[(queue_head_ + k) % queue_.size()];
      if (warp->block->grid != grids[i].get()) queue_[(queue_head_ + queue_count_++) % queue_.size()] = warp;
    }
    grids.erase(grids.begin() + static_cast<ptrdiff_t>(i));
  }
}

void Core::drop_all() {
  for (auto& grid : grids) {
    for (auto& block : grid->blocks) {
      memory.release(block->shared);
      for (Fiber& f : block->fibers) detector.retire(f.actor);
      detector.retire(block->engine);
    }
  }
  grids.clear();
  words.clear();
  storing.clear();
  queue_count_ = queue_head_ = 0;
  warp_ = nullptr;
  fiber = nullptr;
  failure_.reset();
}

Machine::Progress Core::advance(uint64_t switches) {
  struct Scope {
    Core* before = std::exchange(current, nullptr);
    ~Scope() { current = before; }
  } scope;
  current = this;
  budget_ = switches;
  is_idle_ = false;
  wake_pollers();
  // Who was stopped in the middle of a look, at several words, has missed what came since: all look once more.
  progress_at_poll_ = ~uint64_t{0};
  try {
    while (!grids.empty()) {
      if (budget_ == 0) return Machine::Progress::kStopped;
      if (Fiber* next = pick()) {
        start(*next);
        ark_emulator_switch(&main_stack_pointer_, next->stack_pointer);
        fiber = nullptr;
      }
      if (failure_) throw Failure(*failure_);
      drop_finished();
      if (is_idle_) return Machine::Progress::kIdle;
    }
  } catch (const Failure&) {
    drop_all();
    throw;
  }
  return Machine::Progress::kDone;
}

void Core::fail(Fault fault, const std::string& what, Site at) {
  std::string report = "emulator: " + std::string(name_of(fault)) + ": " + what;
  if (at.line) report += " at " + std::string(at.file) + ":" + std::to_string(at.line);
  if (fiber && fault != Fault::kDeadlock) report += " [" + who(*fiber) + "]";
  report += "\n" + waiting_report();
  if (!fiber) throw Failure(fault, report);
  failure_.emplace(fault, report);
  void* nowhere;
  ark_emulator_switch(&nowhere, main_stack_pointer_);
  __builtin_unreachable();
}

}  // namespace ark::emulator
