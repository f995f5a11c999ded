// What emulated device code calls: the border between kernels (any translation unit, also a shared object
// loaded at run time) and the emulator's runtime in the program. Plain functions of C linkage, plain types.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ark::emulator {

// Where device code called a primitive.
struct Site {
  const char* file = "";
  int line = 0;
};

// One CUDA thread's place; constant while it lives.
struct ThreadIds {
  int thread, lane, warp, block, block_threads, grid_blocks;
  unsigned char* shared;
};

enum class Shuffle : int { kIndex, kXor, kDown, kUp };
enum class WordScope : int { kBlock, kGpu, kSystem };
enum class WordOperation : int {
  kLoadRelaxed,
  kLoadAcquire,
  kStoreRelaxed,
  kStoreRelease,
  kAddRelaxed,
  kAddRelease,
  kAdd,  // acquire and release, as is kCompareSwap
  kCompareSwap
};

// Of one lane; arrays of [rows][4], [columns][2], [rows][columns][4].
struct MmaOperands {
  float* d;
  const unsigned* a;
  const unsigned* b;
  int rows, columns;
  bool is_f16;
};

// Names seeded bugs (FNV-1a); 0 is none.
consteval unsigned bug_hash(const char* name) {
  unsigned hash = 2166136261u;
  for (; *name; name++) hash = (hash ^ static_cast<unsigned char>(*name)) * 16777619u;
  return hash;
}

extern "C" {
unsigned ark_emulator_bug() __attribute__((const));  // of the running launch

// The value is the same wherever a thread asks, so compilers may ask once.
const ThreadIds* ark_emulator_ids() __attribute__((const));

void ark_emulator_barrier(int id, int threads, bool waits, Site at);    // threads -1: all of the block
bool ark_emulator_barrier_or(int id, int threads, bool vote, Site at);  // any of the votes
void ark_emulator_sync_warp(Site at);
// Those that a thread of the warp has from here on: `takes`, no fewer than before, or no more.
void ark_emulator_move_registers(int count, bool takes, Site at);
void ark_emulator_shuffle(void* value, int bytes, Shuffle kind, int argument, Site at);
unsigned ark_emulator_ballot(bool vote, Site at);
void ark_emulator_mma(const MmaOperands* operands, Site at);
void ark_emulator_ldmatrix(unsigned* r, const void* row, bool transposed, Site at);

// Loads of `bytes` from memory that no kernel writes while this one runs.
void ark_emulator_read_constant(void* to, const void* from, int bytes, Site at);
void ark_emulator_read(void* to, const void* from, int bytes, Site at);
void ark_emulator_write(void* to, const void* from, int bytes, Site at);
void ark_emulator_prefetch(const void* p, Site at);  // of memory that is somebody's
void ark_emulator_bulk_prefetch(const void* p, unsigned bytes, Site at);
// One access to a word of 4 or 8 bytes; returns the old value. `expected`: kCompareSwap only.
uint64_t ark_emulator_word(WordOperation operation, WordScope scope, void* word, int bytes, uint64_t value,
                           uint64_t expected, Site at);
// That several words side by side, at `p`, can be accessed at once.
void ark_emulator_check_words(const void* p, int bytes, Site at);
// A word that says itself that it is there (engine/cuda/lamport.h) is stored: behind who has cleared it.
void ark_emulator_told(const void* word, unsigned value, Site at);
void ark_emulator_fence(WordScope scope, Site at);

void ark_emulator_cp_async(void* shared, const void* global, unsigned bytes, Site at);  // zero fills to 16
void ark_emulator_cp_async_commit(Site at);
void ark_emulator_cp_async_wait(int pending, Site at);
void ark_emulator_cp_async_arrive(uint64_t* barrier, Site at);
void ark_emulator_mbarrier_init(uint64_t* barrier, unsigned arrivals, Site at);
void ark_emulator_mbarrier_inval(uint64_t* barrier, Site at);
void ark_emulator_mbarrier_init_fence(Site at);
void ark_emulator_mbarrier_arrive(uint64_t* barrier, unsigned expected_bytes, Site at);
bool ark_emulator_mbarrier_try_wait(uint64_t* barrier, unsigned parity, Site at);
void ark_emulator_fence_proxy(Site at);
void ark_emulator_bulk_load(void* shared, const void* global, unsigned bytes, uint64_t* barrier, Site at);
void ark_emulator_bulk_store(void* global, const void* shared, unsigned bytes, Site at);
void ark_emulator_bulk_commit(Site at);
void ark_emulator_bulk_wait(int pending, Site at);

void ark_emulator_pause(const void* word, uint64_t seen, uint64_t needed, Site at);
uint64_t ark_emulator_clock_ns();
void ark_emulator_trap(Site at);
}

}  // namespace ark::emulator
