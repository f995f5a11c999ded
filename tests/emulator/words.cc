// Words that threads talk through, fences, plain vector accesses, pauses.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/index.h"
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
    case WordOperation::kAddRelaxed:
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
bool is_relaxed(WordOperation o) {
  return o == WordOperation::kStoreRelaxed || o == WordOperation::kAddRelaxed;
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
    } else {  // for the narrowest fence that speaks to it
      int fence = 0;
      while (!includes(static_cast<WordScope>(fence), gpu, block, e.gpu, e.block)) ++fence;
      self.actor.pending[at(fence)].add(e.message);
    }
  }
}

// What the running thread's store, addition or swap hands to those who acquire it, by scope.
std::array<Message, 3> messages_of(WordOperation operation, WordScope scope) {
  Actor& actor = running().actor;
  std::array<Message, 3> all;
  const std::size_t widest = at(static_cast<int>(scope));
  if (!is_relaxed(operation)) {
    all[widest] = release(actor);
  } else {  // no further than the fence before it
    for (std::size_t s = 0; s <= widest; ++s) all[s] = actor.fenced[s];
  }
  return all;
}

void tell(Core& core, const Fiber& by, const PendingStore& store) {
  auto& entries = core.words[store.word].entries;
  if (is_store(store.operation)) entries.clear();  // what was released before is overwritten
  const Block* block = by.warp->block;
  const int gpu = block->grid->request.gpu;
  for (std::size_t s = 0; s < store.messages.size(); ++s) {
    const Message& message = store.messages[s];
    if (!message.known) continue;
    const auto scope = static_cast<WordScope>(s);
    const auto same = std::ranges::find_if(entries, [&](const auto& e) {
      return e.scope == scope && e.gpu == gpu && (scope != WordScope::kBlock || e.block == block);
    });
    if (same != entries.end()) {
      same->message.add(message);
    } else {
      entries.push_back({scope, gpu, block, message});
    }
  }
}

// A line, of which `p` is a byte.
void count_prefetch(Core& core, const void* p, Site at) {
  core.counts.prefetches++;
  if (!core.memory.contains(p) || !(*core.memory.states(p) & Memory::kAllocated))
    core.fail(Fault::kBounds, "a prefetch of " + core.memory.describe(p), at);
}

}  // namespace

uint64_t Core::perform(const Fiber& by, const PendingStore& s, uint64_t expected) {
  const uint64_t old = s.bytes == 4 ? operate(s.operation, static_cast<uint32_t*>(s.word),
                                              static_cast<uint32_t>(s.value), static_cast<uint32_t>(expected))
                                    : operate(s.operation, static_cast<uint64_t*>(s.word), s.value, expected);
  if (s.operation == WordOperation::kCompareSwap && old != expected) return old;
  if (options.detector) tell(*this, by, s);
  if (is_weak()) {
    WordReleases& w = words[s.word];
    w.previous = old, w.change = ++changes, w.changed_by = &by;
  }
  made_progress();
  if (is_random() && coin(2)) wake_pollers();
  return old;
}

void Core::perform_one(Fiber& owner, size_t index) {
  const PendingStore store = std::move(owner.stores[index]);
  owner.stores.erase(owner.stores.begin() + static_cast<ptrdiff_t>(index));
  if (owner.stores.empty()) std::erase(storing, &owner);
  perform(owner, store);
}

// The first of the thread's stores, or a later one that nothing orders behind those before it.
void Core::perform_next(Fiber& owner) {
  const auto& stores = owner.stores;
  const size_t i = random() % stores.size();
  const bool is_free =
      is_relaxed(stores[i].operation) &&
      std::none_of(stores.begin(), stores.begin() + static_cast<ptrdiff_t>(i),
                   [&](const auto& s) { return s.word == stores[i].word || s.fences != stores[i].fences; });
  perform_one(owner, is_free ? i : 0);
}

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
  core.note("word", static_cast<int>(operation), static_cast<int>(scope), bytes);
  core.maybe_yield();
  core.counts.words++;
  core.check_aligned(word, bytes, 0, at);
  check_scope(core, scope, word, at);
  core.touch(word, bytes, is_load(operation) ? Access::kRead : Access::kWrite, ARK_EMULATOR_PLACE | kAtomic,
             at);
  Fiber& self = running();
  if (is_load(operation)) {
    const bool is_own =
        std::any_of(self.stores.begin(), self.stores.end(), [&](const auto& s) { return s.word == word; });
    if (is_own) core.perform_all(self);
    const uint64_t now = bytes == 4 ? operate(operation, static_cast<uint32_t*>(word), 0u, 0u)
                                    : operate<uint64_t>(operation, static_cast<uint64_t*>(word), 0, 0);
    if (operation == WordOperation::kLoadAcquire) core.refresh();
    if (core.is_weak()) {
      const WordReleases& w = core.words[word];
      uint64_t& seen = self.seen[word];
      if (w.change > std::max(self.fresh, seen) && w.changed_by != &self && core.coin(4)) {
        core.made_progress();  // the next look may find it
        return w.previous;
      }
      seen = w.change;
    }
    if (core.options.detector) hear(core, scope, word, operation != WordOperation::kLoadRelaxed);
    return now;
  }
  const bool hears = operation == WordOperation::kAdd || operation == WordOperation::kCompareSwap;
  if (hears) core.perform_all(self);
  if (hears && core.options.detector) hear(core, scope, word, true);
  PendingStore store{operation, scope, word, bytes, value, {}, self.fences};
  // A swap that fails releases nothing, but then its message is not told.
  if (core.options.detector) store.messages = messages_of(operation, scope);
  if (hears || !core.is_weak()) {
    const uint64_t old = core.perform(self, store, expected);
    if (hears) core.refresh();
    return old;
  }
  if (self.stores.empty()) core.storing.push_back(&self);
  self.stores.push_back(std::move(store));
  if (core.coin(4)) core.perform_all(self);
  return 0;
}

void ark_emulator_check_words(const void* p, int bytes, Site at) {
  Core::current->check_aligned(p, bytes, 0, at);
}

void ark_emulator_told(const void* word, unsigned value, Site at) {
  Core& core = *Core::current;
  if (!core.options.detector) return;
  constexpr unsigned kAbsent = ~0u;
  const Actor& self = running().actor;
  auto& last = core.words[word].told;
  if (value != kAbsent && last && self.count(last->first) < last->second)
    core.fail(Fault::kRace, "word " + core.memory.describe(word) + " is stored beside the store before it",
              at);
  last = {self.id, self.own};
}

void ark_emulator_fence(WordScope scope, Site) {
  Core& core = *Core::current;
  core.note("fence", static_cast<int>(scope));
  running().fences++;
  core.refresh();
  if (!core.options.detector) return;
  Actor& actor = running().actor;
  const auto end = at(static_cast<int>(scope)) + 1;
  for (std::size_t s = 0; s < end; ++s) acquire(actor, std::exchange(actor.pending[s], {}));
  std::fill_n(actor.fenced.begin(), end, release(actor));
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
  core.note("read from L2", bytes);
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

void ark_emulator_prefetch(const void* p, Site at) {
  Core& core = *Core::current;
  core.note("prefetch");
  count_prefetch(core, p, at);
}

void ark_emulator_bulk_prefetch(const void* p, unsigned bytes, Site at) {
  Core& core = *Core::current;
  core.note("bulk_prefetch", bytes);
  core.check_aligned(p, 16, 0, at);
  if (bytes % 16) core.fail(Fault::kAlignment, "a prefetch of " + std::to_string(bytes) + " bytes", at);
  for (unsigned line = 0; line < bytes; line += 128)
    count_prefetch(core, static_cast<const std::byte*>(p) + std::min(line + 127, bytes - 1), at);
}

void ark_emulator_pause(const void* word, uint64_t seen, uint64_t needed, Site at) {
  Core::current->note("pause");
  Core::current->poll("waits for", at, word, seen, needed);
}

uint64_t ark_emulator_clock_ns() { return ++Core::current->time_ns; }

void ark_emulator_trap(Site at) { Core::current->fail(Fault::kTrap, "the kernel ended itself", at); }

}  // extern "C"

}  // namespace ark::emulator
