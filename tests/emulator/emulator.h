// Host side of the emulator: memory of emulated GPUs, launches, schedules. See README.md.
//
//   Machine machine({.schedule = Schedule::kRandom, .seed = 7});
//   std::byte* x = machine.memory().allocate(1024, 0, "x");
//   machine.launch({.gpu = 0, .blocks = 2, .threads = 64, .kernel = kernel, .parameter = bytes});
//   machine.run();  // throws Failure
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/emulator/failure.h"
#include "tests/emulator/memory.h"

namespace ark::emulator {

enum class Schedule {
  kFixed,   // a warp runs until it waits, then the next in line: fast, always the same
  kRandom,  // uniformly random at every word, barrier and collective
  kPct,     // random priorities that rarely change: finds orderings that need a thread to stay behind.
            // Source: Burckhardt et al., "A randomized scheduler with probabilistic guarantees", 2010
};
// When asynchronous copies land.
enum class Landing { kAtOnce, kLate, kRandom };  // kLate: when somebody waits for them, or nobody can run

// What a thread has asked of the machine: a primitive with its scope, size or count.
struct Traced {
  int block = 0, thread = 0;
  std::string what;
};

struct Options {
  Schedule schedule = Schedule::kFixed;
  Landing landing = Landing::kLate;
  uint64_t seed = 1;
  // Races and uninitialised reads; the kernel must have been compiled with -fsanitize=thread.
  bool detector = false;
  // Nobody can go on: let time pass, so that the kernel's own deadlines end it, instead of reporting.
  bool stuck_passes_time = false;
  // In random schedules: stores to words become visible late and, unless ordered, in any order; relaxed loads may give
  // what stood there before.
  bool weak_words = true;
  unsigned bug = 0;  // bug_hash() of the seeded bug
  std::vector<Traced>* trace = nullptr;
};

struct LaunchRequest {
  std::string name = "kernel";
  int gpu = 0;
  int blocks = 1, threads = 32;
  uint64_t shared_bytes = 0;
  std::function<void(const void*)> kernel;
  std::vector<std::byte> parameter = {};
};

struct Counts {
  uint64_t switches = 0, collectives = 0, barriers = 0, matrix_products = 0, copies = 0, words = 0, polls = 0,
           prefetches = 0;
};

class Core;

// Some GPUs that share memory. run() and advance() belong to one thread, always the same.
class Machine {
 public:
  explicit Machine(const Options& options = {});
  ~Machine();

  Memory& memory();
  const Options& options() const;
  // Between launches only.
  void set_options(const Options& options);
  const Counts& counts() const;

  using LaunchId = uint64_t;
  // All launches are resident at once, as persistent kernels are.
  LaunchId launch(LaunchRequest request);
  bool is_running(LaunchId id) const;

  // What the host has done, between calls of advance(): loaded a word that kernels store (acquire), and read
  // bytes that they wrote. Throws Failure if nothing that it has loaded orders the bytes before its read.
  // Words as they are now.
  void host_acquires(const void* word);
  void host_reads(const void* p, uint64_t bytes);

  enum class Progress {
    kDone,     // no launch is left
    kStopped,  // after `switches`
    kIdle,     // only the host can help: every thread waits, and one of them for a word of the host
  };
  // Throws Failure; all launches are then lost, memory stays.
  Progress advance(uint64_t switches);
  // While idle: leaves the CPU to the host for a moment; the kernels' clock goes on.
  void nap();
  // Until all launches are done; looks at the host's words again and again while idle.
  void run();

 private:
  std::unique_ptr<Core> core_;
};

}  // namespace ark::emulator
