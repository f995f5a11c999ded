// A program's step, unrolled: its phase instances in program order and what each one touches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/program/program.h"

namespace ark {

struct Instance {
  PhaseId phase = 0;
  int32_t trip = 0;
};
// All instances of one step, in program order.
std::vector<Instance> unroll(const Program& program);

// The buffer of an operand in trip `trip`; kNone if the operand is absent.
BufferId resolve(const Program& program, const Phase& phase, const Operand& operand, int32_t trip);
// Of an instance: its phase's code, and the buffer of operand number `n`.
OpCode code_of(const Program& program, const Instance& instance);
BufferId resolve(const Program& program, const Instance& instance, std::size_t n);
// The buffer that owns the memory: `buffer` itself, or what it is an alias of.
BufferId root(const Program& program, BufferId buffer);
Shape sizes(const Program& program, const Buffer& buffer);
// Bytes at the largest sizes.
int64_t max_bytes(const Program& program, BufferId buffer);
// Of one page of a cache; of all caches.
int64_t page_bytes(const Program& program, const Buffer& pages);
int64_t page_bytes(const Program& program);
// The type of the caches' keys and values, as options call it: "f16". "" if there are none.
std::string kv_name(const Program& program);

// How often a phase runs in a step.
int32_t trips_of(const Program& program, PhaseId phase);
// What a kPhase wait of an instance in step `step` (from 0) means: which instance of wait.phase, counted over trips
// and steps. Negative: before the first step, where step 0 is it.
int64_t awaited(const Program& program, const Wait& wait, const Instance& instance, int64_t step);

struct Access {
  BufferId buffer = kNone;  // a root
  bool writes = false;
};
// What an instance reads and writes, constants left out. kSample writes the token ids: the next step's kEmbed
// may read what it sampled.
std::vector<Access> accesses(const Program& program, const Instance& instance);

// Where a root's bytes lie, at their largest: two roots' ranges overlap where they share memory. What is not planned
// (inboxes, caches, inputs) is its own, and lies below 0.
Range memory_of(const Program& program, const Binding& binding, BufferId root);
// The channels that a phase sends or receives a message on. Its trips share them.
std::vector<int32_t> channels_of(const Program& program, const Phase& phase);

}  // namespace ark
