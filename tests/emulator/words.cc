// Words that threads talk through, fences, plain vector accesses, pauses.
#include <cstring>

#include "tests/emulator/core.h"

namespace ark::emulator {
namespace {

template <class T>
uint64_t operate(WordOperation operation, T* p, T value, T expected) {
  switch (operation) {
    case WordOperation::kLoadRelaxed:
    case WordOperation::kLoadAcquire:
      return __atomic_load_n(p, __ATOMIC_SEQ_CST);
    case WordOperation::kStoreRelaxed:
    case WordOperation::kStoreRelease:
      return __atomic_exchange_n(p, value, __ATOMIC_SEQ_CST);
    case WordOperation::kAddRelease:
    case WordOperation::kAdd:
      return __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST);
    case WordOperation::kCompareSwap:
      __atomic_compare_exchange_n(p, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
      return expected;
  }
  return 0;
}

bool is_store(WordOperation o) {
  return o == WordOperation::kStoreRelaxed || o == WordOperation::kStoreRelease;
}
bool is_load(WordOperation o) { return o == WordOperation::kLoadRelaxed || o == WordOperation::kLoadAcquire; }

// Whether a thread of this GPU and block is one that an access of `scope`, made at (gpu, block), speaks to.
bool includes(WordScope scope, int gpu, const Block* block, int other_gpu, const Block* other_block) {
  if (scope == WordScope::kSystem) return true;
  return scope == WordScope::kGpu ? gpu == other_gpu : block == other_block;
}

void check_scope(Core& core, WordScope scope, const void* word, Site at) {
  const auto owner = core.memory.owner(word);
  const int gpu = running().warp->block->grid->request.gpu;
  if (!owner) core.fail(Fault::kBounds, "a word in no allocation: " + core.memory.describe(word), at);
  if (scope != WordScope::kSystem && *owner != gpu) {
    core.fail(Fault::kScope, "word " + core.memory.describe(word) + " is not this GPU's: needs sys", at);
  }
}

void hear(Core& core, WordScope scope, const void* word, bool acquires) {
  auto found = core.words.find(word);
  if (found == core.words.end()) return;
  Fiber& self = running();
  const Block* block = self.warp->block;
  const int gpu = block->grid->request.gpu;
  for (const auto& e : found->second.entries) {
    if (!includes(e.scope, e.gpu, e.block, gpu, block) || !includes(scope, gpu, block, e.gpu, e.block))
      continue;
    if (acquires) {
      acquire(self.actor, e.message);
    } else {
      self.actor.pending = joined(self.actor.pending, e.message.known);
      self.actor.pending_seen = joined(self.actor.pending_seen, e.message.proxied);
    }
  }
}

void tell(Core& core, WordScope scope, const void* word, WordOperation operation) {
  Fiber& self = running();
  auto& entries = core.words[word].entries;
  if (is_store(operation)) entries.clear();  // what was released before is overwritten
  const bool releases = operation != WordOperation::kStoreRelaxed;
  if (!releases && !self.actor.fenced) return;
  const Message message = releases ? release(self.actor) : Message{self.actor.fenced, self.actor.fenced_seen};
  const Block* block = self.warp->block;
  const int gpu = block->grid->request.gpu;
  for (auto& e : entries) {
    const bool same = e.scope == scope && e.gpu == gpu && (scope != WordScope::kBlock || e.block == block);
    if (same) return e.message.add(message);
  }
  entries.push_back({scope, gpu, block, message});
}

}  // namespace

void Core::host_acquires(const void* word) {
  if (!options.detector) return;
  if (!host) host = detector.make_actor(detector.add_actors(1, -1));
  const auto found = words.find(word);
  if (found == words.end()) return;
  for (const auto& e : found->second.entries) {
    if (e.scope == WordScope::kSystem) acquire(*host, e.message);
  }
}

void Core::host_reads(const void* p, uint64_t bytes) {
  if (!options.detector) return;
  if (!host) host = detector.make_actor(detector.add_actors(1, -1));
  remember(*host, p, bytes, Access::kRead, 0);
}

extern "C" {

uint64_t ark_emulator_word(WordOperation operation, WordScope scope, void* word, int bytes, uint64_t value,
                           uint64_t expected, Site at) {
  Core& core = *Core::current;
  core.maybe_yield();
  core.counts.words++;
  core.check_aligned(word, bytes, 0, at);
  check_scope(core, scope, word, at);
  core.touch(word, bytes, is_load(operation) ? Access::kRead : Access::kWrite, ARK_EMULATOR_PLACE | kAtomic,
             at);
  const bool detects = core.options.detector;
  const uint64_t old = bytes == 4 ? operate(operation, static_cast<uint32_t*>(word),
                                            static_cast<uint32_t>(value), static_cast<uint32_t>(expected))
                                  : operate(operation, static_cast<uint64_t*>(word), value, expected);
  const bool swapped = operation != WordOperation::kCompareSwap || old == expected;
  if (detects) {
    const bool hears = !is_store(operation) && operation != WordOperation::kAddRelease;
    if (hears) hear(core, scope, word, operation != WordOperation::kLoadRelaxed);
    if (!is_load(operation) && swapped) tell(core, scope, word, operation);
  }
  if (!is_load(operation) && swapped) {
    core.made_progress();
    if (core.is_random() && core.coin(2)) core.wake_pollers();
  }
  return old;
}

void ark_emulator_fence(WordScope, Site) {
  Core& core = *Core::current;
  if (!core.options.detector) return;
  Actor& actor = running().actor;
  actor.known = joined(actor.known, std::exchange(actor.pending, nullptr));
  actor.proxied = joined(actor.proxied, std::exchange(actor.pending_seen, nullptr));
  const Message message = release(actor);
  actor.fenced = message.known;
  actor.fenced_seen = message.proxied;
}

void ark_emulator_read_constant(void* to, const void* from, int bytes, Site at) {
  Core& core = *Core::current;
  core.check_aligned(from, bytes, 0, at);
  core.touch(from, bytes, Access::kRead, ARK_EMULATOR_PLACE, at);
  core.check_constant(from, bytes, at);
  std::memcpy(to, from, bytes);
}

void ark_emulator_read(void* to, const void* from, int bytes, Site at) {
  Core& core = *Core::current;
  core.check_aligned(from, bytes, 0, at);
  core.touch(from, bytes, Access::kRead, ARK_EMULATOR_PLACE, at);
  std::memcpy(to, from, bytes);
}

void ark_emulator_write(void* to, const void* from, int bytes, Site at) {
  Core& core = *Core::current;
  core.check_aligned(to, bytes, 0, at);
  core.touch(to, bytes, Access::kWrite, ARK_EMULATOR_PLACE, at);
  std::memcpy(to, from, bytes);
}

void ark_emulator_pause(const void* word, uint64_t seen, uint64_t needed, Site at) {
  Core::current->poll("waits for", at, word, seen, needed);
}

uint64_t ark_emulator_clock_ns() { return ++Core::current->time_ns; }

void ark_emulator_trap(Site at) { Core::current->fail(Fault::kTrap, "the kernel ended itself", at); }

}  // extern "C"

}  // namespace ark::emulator
