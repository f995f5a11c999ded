// Barriers of a block, and the collectives of a warp that move registers.
#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/emulator/collective.h"

namespace ark::emulator {

void collective(const char* name, void* argument, Site at, void (*all_here)(Warp&)) {
  Core& core = *Core::current;
  Fiber& self = running();
  Warp& warp = *self.warp;
  if (!warp.arrived) {
    warp.collective = name;
    warp.collective_at = at;
  } else if (warp.collective != name || warp.collective_at.line != at.line ||
             (warp.collective_at.file != at.file && std::strcmp(warp.collective_at.file, at.file) != 0)) {
    core.fail(Fault::kDivergence,
              std::string("other lanes of the warp are in ") + warp.collective + " at " +
                  warp.collective_at.file + ":" + std::to_string(warp.collective_at.line) +
                  ", this one comes to " + name,
              at);
  }
  warp.arguments[self.ids.lane] = argument;
  warp.arrived |= 1u << self.ids.lane;
  if (warp.arrived != warp.full()) {
    core.wait_for(name, at);
    return;
  }
  core.counts.collectives++;
  all_here(warp);
  warp.arrived = 0;
  core.made_progress();
  core.make_ready(warp, warp.full() & ~(1u << self.ids.lane));
  core.maybe_yield();
}

namespace {

struct ShuffleArgument {
  void* value;
  int bytes;
  Shuffle kind;
  int argument;
};

void shuffle(Warp& warp) {
  uint64_t values[32] = {};
  for (int lane = 0; lane < warp.count; lane++) {
    const auto& a = *static_cast<ShuffleArgument*>(warp.arguments[lane]);
    std::memcpy(&values[lane], a.value, a.bytes);
  }
  for (int lane = 0; lane < warp.count; lane++) {
    const auto& a = *static_cast<ShuffleArgument*>(warp.arguments[lane]);
    int source = lane;
    if (a.kind == Shuffle::kIndex) source = a.argument & 31;
    if (a.kind == Shuffle::kXor) source = lane ^ a.argument;
    if (a.kind == Shuffle::kDown) source = lane + a.argument;
    if (a.kind == Shuffle::kUp) source = lane - a.argument;
    if (source >= 0 && source < warp.count) std::memcpy(a.value, &values[source], a.bytes);
  }
}

void ballot(Warp& warp) {
  unsigned votes = 0;
  for (int lane = 0; lane < warp.count; lane++) {
    if (*static_cast<unsigned*>(warp.arguments[lane])) votes |= 1u << lane;
  }
  for (int lane = 0; lane < warp.count; lane++) *static_cast<unsigned*>(warp.arguments[lane]) = votes;
}

void sync_lanes(Warp& warp) {
  const Message message = warp.meeting.close();
  for (int lane = 0; lane < warp.count; lane++) leave(warp.lanes[lane]->actor, message);
}

void meet(int id, int threads, bool waits, bool vote, Site at) {
  Core& core = *Core::current;
  core.note("barrier", id, threads, waits);
  Fiber& self = running();
  Block& block = *self.warp->block;
  if (id < 0 || id >= 16)
    core.fail(Fault::kBarrier, "barrier " + std::to_string(id) + ", known are 0..15", at);
  if (threads < 0) threads = block.grid->request.threads;
  BlockBarrier& barrier = block.barriers[id];
  if (!barrier.arrived) {
    barrier.expected = threads;
    barrier.at = at;
  } else if (barrier.expected != threads) {
    core.fail(Fault::kBarrier,
              "barrier " + std::to_string(id) + " for " + std::to_string(threads) + " threads, for " +
                  std::to_string(barrier.expected) + " at " + barrier.at.file + ":" +
                  std::to_string(barrier.at.line),
              at);
  }
  core.perform_all(self);
  const bool detects = core.options.detector;
  if (detects) barrier.meeting.arrive(self.actor);
  barrier.vote |= vote;
  if (++barrier.arrived < threads) {
    if (!waits) return core.maybe_yield();
    barrier.waiting[self.ids.warp] |= 1u << self.ids.lane;
    return core.wait_for(id == 0 ? "sync" : "named barrier", at);
  }
  core.counts.barriers++;
  core.made_progress();
  barrier.arrived = 0;
  self.vote = std::exchange(barrier.vote, false);
  const Message message = detects ? barrier.meeting.close() : Message();
  if (detects && waits) leave(self.actor, message);
  for (size_t w = 0; w < block.warps.size(); w++) {
    const uint32_t lanes = std::exchange(barrier.waiting[w], 0);
    if (!lanes) continue;
    for (int lane = 0; lane < 32; lane++) {
      if ((lanes >> lane & 1) == 0) continue;
      block.warps[w].lanes[lane]->vote = self.vote;
      if (detects) leave(block.warps[w].lanes[lane]->actor, message);
    }
    core.make_ready(block.warps[w], lanes);
  }
  core.maybe_yield();
}

}  // namespace

extern "C" {

const ThreadIds* ark_emulator_ids() { return running().own_ids; }
unsigned ark_emulator_bug() { return Core::current->options.bug; }

void ark_emulator_shuffle(void* value, int bytes, Shuffle kind, int argument, Site at) {
  ShuffleArgument a{value, bytes, kind, argument};
  constexpr const char* kNames[] = {"shfl", "shfl_xor", "shfl_down", "shfl_up"};
  collective(kNames[static_cast<int>(kind)], &a, at, shuffle);
}

unsigned ark_emulator_ballot(bool vote, Site at) {
  unsigned value = vote;
  collective("ballot", &value, at, ballot);
  return value;
}

void ark_emulator_sync_warp(Site at) {
  Fiber& self = running();
  Core::current->note("sync_warp");
  Core::current->perform_all(self);
  const bool detects = Core::current->options.detector;
  if (detects) self.warp->meeting.arrive(self.actor);
  collective(
      "sync_warp", nullptr, at, detects ? sync_lanes : +[](Warp&) {});
  Core::current->refresh();
}

// A block has what its launch gave its warps, as many each; of 65,536 on an SM, in eights.
void ark_emulator_move_registers(int count, bool takes, Site at) {
  Core& core = *Core::current;
  core.note("registers", count, takes);
  collective(
      "registers", nullptr, at, +[](Warp&) {});
  Fiber& self = running();
  if (self.ids.lane != 0) return;
  Warp& warp = *self.warp;
  Block& block = *warp.block;
  const int threads = block.grid->request.threads;
  if (warp.registers == 0) warp.registers = std::min(255, 65536 / threads) / 8 * 8;
  const int more = (count - warp.registers) * warp.count;
  if (takes ? more < 0 : more > 0)
    core.fail(Fault::kBarrier,
              std::to_string(count) + " registers instead of " + std::to_string(warp.registers) +
                  (takes ? " are fewer" : " are more"),
              at);
  while (block.free_registers < more) {
    block.short_ones.push_back(&warp);
    core.wait_for("registers", at);
  }
  block.free_registers -= more;
  warp.registers = count;
  core.made_progress();
  for (Warp* other : std::exchange(block.short_ones, {})) core.make_ready(*other, 1);
}

void ark_emulator_barrier(int id, int threads, bool waits, Site at) {
  meet(id, threads, waits, false, at);
  if (waits) Core::current->refresh();
}

bool ark_emulator_barrier_or(int id, int threads, bool vote, Site at) {
  meet(id, threads, true, vote, at);
  Core::current->refresh();
  return running().vote;
}

}  // extern "C"

}  // namespace ark::emulator
