// What the work of bodies is put together of.
#pragma once

#include "engine/cuda/cost/work.h"
#include "engine/program/kv_codec.h"
#include "engine/program/unroll.h"

namespace ark::cuda::cost {

// Cycles of instructions that wait for each other, of SASS for sm_90a: a turn of a rolled loop over elements, a sum or
// a maximum over a warp by shuffles, a division or another call, an activation.
inline constexpr double kLoopTurn = 60, kWarpSum = 150, kCall = 60, kActivation = 120;
// A round of loads from L2, of a warp beside which another one goes on.
inline constexpr int32_t kRound = 400;
// mma.m16n8k16 of f16 or bf16 with sums in f32, in a quarter of a processor: issued every so many cycles (489 TFLOP/s
// of an H100: Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", 2024), and there behind so
// many.
inline constexpr double kMmaIssue = 8, kMmaLatency = 33;

inline int32_t up(int64_t a, int64_t b) { return static_cast<int32_t>((a + b - 1) / b); }
// Turns of a loop of all consumers over so many elements.
inline int32_t turns(int64_t elements) { return elements <= 0 ? 0 : up(elements, kConsumers); }

inline Work loads(int32_t near, int32_t far = 0) {
  Work w;
  w.loads = near + far, w.far = far;
  return w;
}
inline Work cycles(double count) {
  Work w;
  w.cycles = count;
  return w;
}
inline Work barriers(int32_t count) {
  Work w;
  w.barriers = count;
  return w;
}
// Elements one after the other in a rolled loop, each with one round of loads.
inline Work element_loop(int64_t elements, bool far = false) {
  Work w = far ? loads(0, turns(elements)) : loads(turns(elements));
  w.cycles = turns(elements) * kLoopTurn;
  return w;
}

// Of so many elements a thread's loads are under way at once (in_turns).
inline Work at_once(int32_t count, int64_t elements, bool far = false) {
  const int32_t rounds = up(turns(elements), count);
  Work w = far ? loads(0, rounds) : loads(rounds);
  w.cycles = rounds * kLoopTurn + turns(elements) * 20.0;
  return w;
}

// Of an instance's operand number `pages`: how its keys or values are stored; how many a lane stores, or loads of a
// value, at once.
inline KvFormat kv_format(const StepTables& t, const Instance& i, std::size_t pages) {
  const Program& p = t.program();
  const Phase& phase = p.phases[i.phase];
  return kv_codec_of(p.buffers[resolve(p, phase, phase.operands[pages], i.trip)].dtype)->format;
}
inline int32_t elements_at_once(const KvFormat& format) { return 32 / format.bits; }

// Of attention's tiles: what warps do before the wait, and behind it (attention_work.cc).
Work opened_ahead(const StepTables& t, const Instance& i, Tiles tiles);
Work attention(const StepTables& t, const Instance& i, Tiles tiles);

}  // namespace ark::cuda::cost
