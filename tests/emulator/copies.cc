// Asynchronous copies: cp.async by threads, bulk copies by a block's copy engine, and mbarriers.
#include <cstring>

#include "tests/emulator/core.h"

namespace ark::emulator {
namespace {

// What an initialised mbarrier holds in memory; its state is kept beside it.
uint64_t seal(const uint64_t* barrier) { return reinterpret_cast<uint64_t>(barrier) * 0x9e3779b97f4a7c15u; }

void set_states(Memory& memory, const void* p, uint64_t bytes, uint8_t on, uint8_t off) {
  if (!memory.contains(p)) return;
  uint8_t* s = memory.states(p);
  for (uint64_t i = 0; i < bytes; i++) s[i] = static_cast<uint8_t>((s[i] | on) & ~off);
}

}  // namespace

// Until it lands, the destination holds NaN and may not be touched; the source is read at landing.
void Core::issue(const AsyncCopy& copy, const Actor& actor) {
  counts.copies++;
  const uint64_t all = copy.bytes + copy.zeros;
  remember(actor, copy.to, all, Access::kWrite, copy.place);
  remember(actor, copy.from, copy.bytes, Access::kRead, copy.from_place);
  if (options.landing == Landing::kAtOnce) return;
  std::memset(copy.to, 0xff, all);
  set_states(memory, copy.to, all, Memory::kInFlight, 0);
}

void Core::land(const AsyncCopy& copy, const Actor& actor) {
  const uint64_t all = copy.bytes + copy.zeros;
  remember(actor, copy.from, copy.bytes, Access::kRead, copy.from_place);
  remember(actor, copy.to, all, Access::kWrite, copy.place);
  std::memcpy(copy.to, copy.from, copy.bytes);
  std::memset(static_cast<std::byte*>(copy.to) + copy.bytes, 0, copy.zeros);
  set_states(memory, copy.to, all, Memory::kInitialised, Memory::kInFlight);
  if (memory.contains(copy.from) && memory.contains(copy.to)) {
    const uint8_t* from = memory.states(copy.from);
    uint8_t* to = memory.states(copy.to);
    for (uint32_t i = 0; i < copy.bytes; i++) {
      if (!(from[i] & Memory::kInitialised)) to[i] &= ~Memory::kInitialised;
    }
  }
  made_progress();
}

// ---- cp.async

void Core::land_first(Fiber& owner) {
  const AsyncCopy copy = owner.thread_copies.copies.front();
  owner.thread_copies.copies.pop_front();
  if (!copy.barrier) return land(copy, owner.actor);
  MbarrierState& m = owner.warp->block->mbarriers[copy.barrier];
  if (options.detector) m.arriving.add(release(owner.actor));
  if (!m.pending) fail(Fault::kMbarrier, "more arrivals than the phase expects", copy.at);
  m.pending--;
  settle(m);
  made_progress();
}

void Core::land_some(bool all) {
  for (auto& grid : grids) {
    for (auto& block : grid->blocks) {
      while (!block->bulk_loads.empty()) {
        land_bulk_load(*block, is_random() ? random() % block->bulk_loads.size() : 0);
        if (!all) return;
      }
      while (!block->arriving.empty()) {
        const size_t i = is_random() ? random() % block->arriving.size() : 0;
        Fiber& owner = *block->arriving[i];
        block->arriving.erase(block->arriving.begin() + static_cast<ptrdiff_t>(i));
        // The list holds a thread once per arrival; copies before the arrival land with it.
        for (bool arrived = false; !arrived && !owner.thread_copies.copies.empty();) {
          arrived = owner.thread_copies.copies.front().barrier != nullptr;
          land_first(owner);
        }
        if (!all) return;
      }
    }
  }
}

extern "C" {

void ark_emulator_cp_async(void* shared, const void* global, unsigned bytes, Site at) {
  Core::current->note("cp_async", bytes);
  Core& core = *Core::current;
  if (bytes > 16) core.fail(Fault::kBounds, "cp.async of more than 16 bytes", at);
  core.check_shared(shared, 16, 16, at);
  core.check_aligned(global, 16, 0, at);
  const Place place = ARK_EMULATOR_PLACE;
  core.check(shared, 16, Access::kWrite, place, at);
  if (bytes) core.check(global, bytes, Access::kCopySource, place, at);
  Fiber& self = running();
  // A word that another thread stores meanwhile comes as it was or as it is: PTX asks for no more. Whether somebody
  // looks at what came is not known here; who does not multiplies NaNs. The copy engine is no such thread.
  const AsyncCopy copy{shared, global, bytes,          16 - bytes, nullptr, self.thread_copies.group,
                       at,     place,  place | kAtomic};
  core.issue(copy, self.actor);
  if (core.options.landing == Landing::kAtOnce) return core.land(copy, self.actor);
  self.thread_copies.copies.push_back(copy);
}

void ark_emulator_cp_async_commit(Site) {
  Core::current->note("cp_async_commit");
  running().thread_copies.group++;
}

void ark_emulator_cp_async_wait(int pending, Site) {
  Core::current->note("cp_async_wait", pending);
  CopyGroups& groups = running().thread_copies;
  while (!groups.copies.empty() && groups.copies.front().group < groups.group - pending) {
    Core::current->land_first(running());
  }
}

void ark_emulator_cp_async_arrive(uint64_t* barrier, Site at) {
  Core::current->note("cp_async_arrive");
  Core& core = *Core::current;
  core.mbarrier(barrier, at);
  Fiber& self = running();
  AsyncCopy arrival;
  arrival.barrier = barrier;
  arrival.group = self.thread_copies.group;
  arrival.at = at;
  self.thread_copies.copies.push_back(arrival);
  if (core.options.landing == Landing::kAtOnce) return core.land_first(self);
  self.warp->block->arriving.push_back(&self);
}

}  // extern "C"

// ---- mbarriers

MbarrierState& Core::mbarrier(uint64_t* barrier, Site at) {
  check_shared(barrier, 8, 8, at);
  auto& all = fiber->warp->block->mbarriers;
  auto found = all.find(barrier);
  if (found == all.end() || *barrier != seal(barrier)) {
    fail(Fault::kMbarrier,
         memory.describe(barrier) + (found == all.end() ? " is no mbarrier yet" : " was overwritten"), at);
  }
  return found->second;
}

void Core::settle(MbarrierState& m) {
  if (m.pending || m.bytes) return;
  m.phase++;
  m.pending = m.arrivals;
  m.complete.add(std::exchange(m.arriving, {}));
  made_progress();
}

extern "C" {

void ark_emulator_mbarrier_init(uint64_t* barrier, unsigned arrivals, Site at) {
  Core::current->note("mbarrier_init", arrivals);
  Core& core = *Core::current;
  core.check_shared(barrier, 8, 8, at);
  if (!arrivals) core.fail(Fault::kMbarrier, "an mbarrier for no arrivals", at);
  auto& all = running().warp->block->mbarriers;
  if (all.contains(barrier) && *barrier == seal(barrier))
    core.fail(Fault::kMbarrier, core.memory.describe(barrier) + " is an mbarrier already", at);
  core.touch(barrier, 8, Access::kWrite, ARK_EMULATOR_PLACE, at);
  *barrier = seal(barrier);
  MbarrierState state;
  state.arrivals = state.pending = arrivals;
  all[barrier] = std::move(state);
}

void ark_emulator_mbarrier_inval(uint64_t* barrier, Site at) {
  Core::current->note("mbarrier_inval");
  Core& core = *Core::current;
  const MbarrierState& m = core.mbarrier(barrier, at);
  if (m.pending != m.arrivals || m.bytes)
    core.fail(Fault::kMbarrier, core.memory.describe(barrier) + " ends in the middle of a phase", at);
  core.touch(barrier, 8, Access::kWrite, ARK_EMULATOR_PLACE, at);
  *barrier = 0;
  running().warp->block->mbarriers.erase(barrier);
}

void ark_emulator_mbarrier_init_fence(Site) { Core::current->note("mbarrier_init_fence"); }

void ark_emulator_mbarrier_arrive(uint64_t* barrier, unsigned expected_bytes, Site at) {
  Core::current->note("mbarrier_arrive", expected_bytes);
  Core& core = *Core::current;
  core.maybe_yield();
  core.perform_all(running());
  MbarrierState& m = core.mbarrier(barrier, at);
  core.touch(barrier, 8, Access::kRead, ARK_EMULATOR_PLACE | kAtomic, at);
  if (!m.pending) core.fail(Fault::kMbarrier, "more arrivals than the phase expects", at);
  if (core.options.detector) m.arriving.add(release(running().actor));
  m.pending--;
  m.bytes += expected_bytes;
  core.settle(m);
  core.made_progress();
  core.maybe_yield();
}

bool ark_emulator_mbarrier_try_wait(uint64_t* barrier, unsigned parity, Site at) {
  Core::current->note("mbarrier_try_wait", parity);
  Core& core = *Core::current;
  core.maybe_yield();
  MbarrierState& m = core.mbarrier(barrier, at);
  core.touch(barrier, 8, Access::kRead, ARK_EMULATOR_PLACE | kAtomic, at);
  if (parity > 1) core.fail(Fault::kMbarrier, "parity " + std::to_string(parity), at);
  if ((m.phase & 1) == parity) return false;
  if (core.options.detector) acquire(running().actor, m.complete);
  core.refresh();
  return true;
}

// ---- bulk copies

void ark_emulator_fence_proxy(Site) {
  Core::current->note("fence_proxy");
  Core& core = *Core::current;
  if (!core.options.detector) return;
  Actor& actor = running().actor;
  actor.proxied = joined(actor.proxied, release(actor).known);
}

void ark_emulator_bulk_load(void* shared, const void* global, unsigned bytes, uint64_t* barrier, Site at) {
  Core::current->note("bulk_load", bytes);
  Core& core = *Core::current;
  core.check_shared(shared, bytes, 16, at);
  core.check_aligned(global, 16, 0, at);
  if (bytes % 16) core.fail(Fault::kAlignment, "a bulk copy of " + std::to_string(bytes) + " bytes", at);
  core.mbarrier(barrier, at);
  Fiber& self = running();
  Block& block = *self.warp->block;
  const Place place = ARK_EMULATOR_PLACE;
  core.touch(barrier, 8, Access::kRead, place | kAtomic, at);
  core.check(shared, bytes, Access::kWrite, place, at);
  core.check(global, bytes, Access::kCopySource, place, at);
  if (core.options.detector && bytes) {
    for (const void* end : {static_cast<const void*>(shared), global}) {
      if (!core.memory.contains(end)) continue;
      if (const Race* race = core.detector.copy_engine(self.actor, end, bytes, place)) core.fail(*race);
    }
    acquire(block.engine, release(self.actor));
  }
  const AsyncCopy copy{shared, global, bytes, 0, barrier, 0, at, place, place};
  core.issue(copy, block.engine);
  block.bulk_loads.push_back(copy);
  if (core.options.landing == Landing::kAtOnce) core.land_bulk_load(block, block.bulk_loads.size() - 1);
}

void ark_emulator_bulk_store(void* global, const void* shared, unsigned bytes, Site at) {
  Core::current->note("bulk_store", bytes);
  Core& core = *Core::current;
  core.check_shared(shared, bytes, 16, at);
  core.check_aligned(global, 16, 0, at);
  if (bytes % 16) core.fail(Fault::kAlignment, "a bulk copy of " + std::to_string(bytes) + " bytes", at);
  Fiber& self = running();
  const Place place = ARK_EMULATOR_PLACE;
  core.check(shared, bytes, Access::kCopySource, place, at);
  core.check(global, bytes, Access::kWrite, place, at);
  if (core.options.detector && bytes) {
    if (const Race* race = core.detector.copy_engine(self.actor, shared, bytes, place)) core.fail(*race);
    acquire(self.warp->block->engine, release(self.actor));
  }
  const AsyncCopy copy{global, shared, bytes, 0, nullptr, self.bulk_stores.group, at, place, place};
  core.issue(copy, self.warp->block->engine);
  if (core.options.landing == Landing::kAtOnce) return core.land(copy, self.warp->block->engine);
  self.bulk_stores.copies.push_back(copy);
}

void ark_emulator_bulk_commit(Site) {
  Core::current->note("bulk_commit");
  running().bulk_stores.group++;
}

void ark_emulator_bulk_wait(int pending, Site) {
  Core::current->note("bulk_wait", pending);
  Core& core = *Core::current;
  Fiber& self = running();
  Actor& engine = self.warp->block->engine;
  CopyGroups& groups = self.bulk_stores;
  while (!groups.copies.empty() && groups.copies.front().group < groups.group - pending) {
    core.land(groups.copies.front(), engine);
    groups.copies.pop_front();
  }
  if (core.options.detector) acquire(self.actor, release(engine));
}

}  // extern "C"

void Core::land_bulk_load(Block& block, size_t index) {
  const AsyncCopy copy = block.bulk_loads[index];
  block.bulk_loads.erase(block.bulk_loads.begin() + static_cast<ptrdiff_t>(index));
  land(copy, block.engine);
  MbarrierState& m = block.mbarriers[copy.barrier];
  if (options.detector) m.arriving.add(release(block.engine));
  m.bytes -= copy.bytes;
  settle(m);
}

}  // namespace ark::emulator
