// A program's step, unrolled: its phase instances in program order and what each one touches.
#pragma once

#include <cstdint>
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
// The buffer that owns the memory: `buffer` itself, or what it is an alias of.
BufferId root(const Program& program, BufferId buffer);
// Bytes at the largest sizes.
int64_t max_bytes(const Program& program, BufferId buffer);

struct Access {
  BufferId buffer = kNone;  // a root
  bool writes = false;
};
// What an instance reads and writes, constants left out. kSample writes the token ids: the next step's kEmbed
// may read what it sampled.
std::vector<Access> accesses(const Program& program, const Instance& instance);

}  // namespace ark
