// Program: the contract between compiler and executors. One per rank. Plain structs and indices, no
// pointers; prints as text that parses back (engine/program_text.h); checked by engine/validate.h.
//
// Execution: every processor of the rank runs all phases in order (repeats unrolled in time, not in code).
// At a phase instance it waits for the phase's `waits`, runs the tiles that are its own (tiles of a grid are
// dealt in contiguous ranges, see tiles_of), then raises the phase's counter by one - also if it had no tile.
// With A active processors, instance i (0-based, over all trips and steps) of a phase is complete when its
// counter has reached base + A * (i + 1), compared modulo 2^32. Nothing is ever reset.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/expr.h"
#include "importer/attributes.h"
#include "importer/ops.h"

namespace ark {

using ValId = int32_t;      // index into Program::vals
using BufferId = int32_t;   // index into Program::buffers
using PhaseId = int32_t;    // index into Program::phases
inline constexpr int32_t kNone = -1;

// Symbols that expressions may use besides a plain graph's own input sizes:
// "tokens" T, "rows" R, "items" (attention work items of the step: one per (sequence, block of query tokens)).
struct Val {
  Expr e;
  int64_t max = 0;  // over all steps; what memory is planned for
};

enum class BufferKind : uint8_t {
  kWeight,  // packed at load, constant afterwards
  kAct,     // activation: lives from its writer to its last reader within a step
  kKvPage,  // key or value pages of one cache: [pages, kv_heads, page_size, dim]
  kIo,      // what the step descriptor brings (token ids, positions) and what goes back (logits)
  kInbox,   // written by a peer through a channel
  kInput,   // plain programs: graph input; kOutput: graph output
  kOutput,
};

struct Buffer {
  BufferKind kind = BufferKind::kAct;
  DType dtype = DType::kF32;
  std::vector<ValId> dims;  // sizes of this rank's part, in elements
  int32_t weight = kNone;   // kWeight: index into Program::weights
  int32_t cache = kNone;    // kKvPage: index into DecoderModel::caches; kInput/kOutput: graph input/output index
  bool is_value = false;    // kKvPage: values, not keys
  int32_t channel = kNone;  // kInbox: index into Program::channels
  std::string name;
};

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

enum class Layout : uint8_t {
  kRaw,     // dense row-major part of the constant
  kPanels,  // matrix W [K, N] (after `transposed`) as panels of `panel` columns: [ceil(N/panel)][K][panel], zero padded;
            // rows can be gathered from it too (tied embeddings)
};

// What a weight buffer holds of one constant of the graph. A constant may be used by several buffers of a
// rank only if their parts differ; equal parts share one buffer, so tied weights are stored once.
struct WeightUse {
  int32_t constant = 0;       // index into the list of constants that the compiler returns with the program
  std::vector<Range> ranges;  // this rank's part per axis of the constant's view (all of it: full ranges)
  Layout layout = Layout::kRaw;
  bool transposed = false;    // kPanels: the constant is [N, K]
  int32_t panel = 0;          // kPanels: columns a panel
  DType stored = DType::kF32; // element type in memory: f32, f16 or bf16 for kPanels; anything for kRaw
};

enum class OpCode : uint8_t {
  kGeneric,     // any canonical operator through its kernel (engine/kernel.h): inputs..., then outputs...
  kPointwise,   // fused expression over [rows, features...] operands, see PointwiseStep; inputs..., then one output
  kEmbed,       // (ids i32 [T], table W, out [T, H]); ids outside this rank's `rows` of the table give zeros
  kNorm,        // (x [M, F] seen as rows of the last axis, scale?, bias?, out): attributes {rms: int, epsilon}
  kMatMul,      // (x [M, K], W panels, bias [N]?, residual [M, N]?, out [M, N]): recipe, epilogue
  kRotary,      // (x [T, H, D], cos, sin [L, R/2] raw, positions [T], out): attributes of Op::kRotary
  kKvAppend,    // (k [T, KH, D], v [T, KH, Dv], key pages, value pages)
  kAttention,   // (q [T, H, D], key pages, value pages, slopes [H]?, sinks [H]?, out [T, H, Dv]); grid = items * local kv heads;
                // attributes {scale, window, softcap, head_map: ints (local kv head of each local query head)}
  kSelectRows,  // (x [T, ...], out [R, ...])
  kSend,        // (x): copies x into the inbox at the channel's peer, then signals arrival
  kRecvReduce,  // (own partial, inboxes of the peers in rank order..., out): sums partials of ranks 0..n-1 in the recipe's pairwise tree
  kRecvConcat,  // (own part, inboxes in rank order..., out): all-gather along attributes {axis}
  kSample,      // (logits f32 [R, V]): samples, writes results, history, last tokens
};

enum EpilogueBits : uint32_t {
  kEpilogueBias = 1,
  kEpilogueResidual = 2,
  kEpilogueRelu = 4,
  kEpilogueSilu = 8,
  kEpilogueGelu = 16,
  kEpilogueGeluTanh = 32,
};

// The fixed order in which a weight's products are added up, chosen at load from the weight and its plan's unit
// borders - never from batch, chunking, tp or processors. Each slab [slabs[i], slabs[i+1]) of K is one FMA chain,
// ascending k; slab sums are added as a balanced pairwise tree whose upper levels are the all-reduce.
struct Recipe {
  std::vector<int32_t> slabs;  // K borders of this rank's slabs: {0, ..., K}; 2^s + 1 entries
  bool operator==(const Recipe&) const = default;
};

// Postfix bytecode of a fused pointwise phase, f32 registers: each step writes register i (its own index).
struct PointwiseStep {
  Op op = Op::kIdentity;      // pointwise canonical operator; kIdentity with input = load operand
  int32_t a = kNone, b = kNone, c = kNone;  // registers
  int32_t input = kNone;      // operand index to load (broadcast by dims), then a, b, c are unused
  float p = 0, q = 0;         // op's own parameters (alpha, beta), or the constant if op == kConstantOfShape
};

// The unit of code: on the CPU a tile function, in CUDA one `case`.
struct Variant {
  OpCode code = OpCode::kGeneric;
  Op op = Op::kIdentity;       // kGeneric
  Attributes attributes;       // kGeneric: Shape entries may use symbols, evaluated each step
  Recipe recipe;               // kMatMul
  uint32_t epilogue = 0;       // EpilogueBits, applied in the order bias, activation, residual
  std::vector<PointwiseStep> pointwise;
};

enum class WaitKind : uint8_t {
  kPhase,    // all processors of this rank have finished phase `phase` of trip (own trip + trip_offset); absent
             // (no wait) when that trip does not exist. trip_offset is 0 or -1 inside the same repeat; for a phase
             // outside the waiter's repeat: its last trip in this step if it stands earlier, else of the previous step
  kArrived,  // the peer's message of this instance has arrived on `channel`
  kCredit,   // the peer has consumed the message two instances ago on `channel`
};
struct Wait {
  WaitKind kind = WaitKind::kPhase;
  PhaseId phase = kNone;
  int32_t trip_offset = 0;
  int32_t channel = kNone;
  bool operator==(const Wait&) const = default;
};

// An operand: a buffer, or, inside a repeat, a column of its operand table (slot >= 0).
struct Operand {
  BufferId buffer = kNone;  // kNone: absent optional operand
  int32_t slot = kNone;
  bool operator==(const Operand&) const = default;
};

struct Phase {
  std::string name;   // of the node it stems from
  int32_t variant = 0;
  std::vector<Operand> operands;
  ValId grid = kNone;  // number of tiles
  std::vector<Wait> waits;
  int32_t channel = kNone;  // kSend
  int32_t repeat = kNone;   // index into Program::repeats
};

// Phases [first, first + count) run `trips` times; operand slots read table[trip][slot].
struct Repeat {
  PhaseId first = 0;
  int32_t count = 0;
  int32_t trips = 0;
  std::vector<std::vector<BufferId>> table;
};

enum class Link : uint8_t { kDirect, kPosted };

// One direction between two ranks; messages are numbered by instance. Two inbox halves alternate.
struct Channel {
  int32_t peer = 0;
  bool outgoing = false;
  Link link = Link::kDirect;
  int64_t bytes = 0;  // of one message at most
  std::string name;   // equal on both ends
};

struct Program {
  int32_t rank = 0, ranks = 1;
  std::vector<Val> vals;
  std::vector<Buffer> buffers;
  std::vector<WeightUse> weights;
  std::vector<Variant> variants;
  std::vector<Phase> phases;
  std::vector<Repeat> repeats;  // disjoint, ascending
  std::vector<Channel> channels;
  // Buffers with a fixed role; kNone in plain programs.
  BufferId token_ids = kNone, positions = kNone, logits = kNone;
};

// Where act and inbox buffers lie: byte offsets into the rank's arenas, planned for the vals' maxima.
struct Binding {
  std::vector<int64_t> offsets;  // per buffer; kAct: activation arena, kInbox: inbox arena (half 0), others -1
  int64_t act_bytes = 0;
  int64_t inbox_bytes = 0;
};

// The tiles of a grid that processor `processor` of `active` runs: [first, last).
inline Range tiles_of(int64_t grid, int64_t processor, int64_t active) {
  return {grid * processor / active, grid * (processor + 1) / active};
}

}  // namespace ark
