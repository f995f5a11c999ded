// Program: the contract between compiler and executors. One per rank. Plain structs and indices, no
// pointers; prints as text that parses back (engine/program/text.h); checked by engine/validate/validate.h.
//
// Execution: every processor of the rank runs all phases in order (repeats unrolled in time, not in code).
// At a phase instance it waits for the phase's `waits`, runs the tiles that are its own (tiles of a grid are dealt in
// contiguous ranges, see tiles_of; kernels may deal them otherwise), then raises the phase's counter by one - also if
// it had no tile.
// With A active processors, instance i (0-based, over all trips and steps) of a phase is complete when its
// counter has reached base + A * (i + 1), compared modulo 2^32. Nothing is ever reset.
//
// Since every processor runs every phase in order, "instance i of phase p is complete" implies that all
// instances which stand before it in program order are complete too; the lowering therefore needs one kPhase
// wait on most phases: on the last instance it depends on. The validator proves that instance i + 1 of a
// phase never starts before its instance i is complete (so that the sum above means what it says).
//
// Messages: a channel may serve several phases. Message m of a channel (0, 1, ... over trips and steps) is
// the one of the m-th execution of a kSend or kSendRows phase on it (sender) or of a phase that reads its inbox
// (receiver); every processor can count them. It uses inbox half m % 2, which lies inbox_half(channel) * (m %
// 2) bytes behind the inbox buffer's offset. All inbox buffers of a channel have the same offset.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/expr.h"
#include "base/ir/attributes.h"
#include "base/ir/ops.h"
#include "engine/program/device_contract.h"

namespace ark {

using ValId = int32_t;     // index into Program::vals
using BufferId = int32_t;  // index into Program::buffers
using PhaseId = int32_t;   // index into Program::phases
inline constexpr int32_t kNone = -1;

// Symbols that expressions may use besides a plain graph's own input sizes:
// "tokens" T, "rows" R, "items" (attention work items of the step: one per (sequence, block of query
// tokens)), "pages" (of the caches; fixed while memory is bound).
struct Val {
  Expr e;
  int64_t max = 0;  // over all steps; what memory is planned for
};

enum class BufferKind : uint8_t {
  kWeight,  // packed at load, constant afterwards
  kAct,     // activation: lives from its writer to its last reader within a step
  kKvPage,  // key or value pages of one cache: [pages, kv_heads, page_size, dim] of a type of kv_codec.h
  kIo,  // what the step descriptor brings (token ids, positions, both i32 [T]) and what goes back (logits f32
        // [R, V])
  kInbox,  // written by a peer through a channel
  kInput,  // plain programs: graph input; kOutput: graph output
  kOutput,
};

struct Buffer {
  BufferKind kind = BufferKind::kAct;
  DType dtype = DType::kF32;
  // Sizes of this rank's part, in elements; kPanels weights: [K, N], without padding.
  std::vector<ValId> dims;
  int32_t weight = kNone;  // kWeight: index into Program::weights
  // kKvPage: index into DecoderModel::caches; kInput/kOutput: graph input/output index.
  int32_t cache = kNone;
  bool is_value = false;    // kKvPage: values, not keys
  int32_t channel = kNone;  // kInbox: index into Program::channels
  // The same memory as this buffer (itself no alias), seen with other dims: a Reshape. All else but dims and
  // name equals the other's; Binding has the same offset for both.
  BufferId alias = kNone;
  std::string name;
};

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

enum class Layout : uint8_t {
  kRaw,     // dense row-major part of the constant
  kPanels,  // matrix W [K, N] (after `transposed`) as panels of `panel` columns: [ceil(N/panel)][K][panel],
            // zero padded; rows can be gathered from it too (tied embeddings). Quantized weights:
            // engine/program/weight_codec.h
};

// What a weight buffer holds of one constant of the graph. A constant may be used by several buffers of a
// rank only if their parts differ; equal parts share one buffer, so tied weights are stored once.
struct WeightUse {
  int32_t constant = 0;       // index into the list of constants that the compiler returns with the program
  std::vector<Range> ranges;  // this rank's part per axis of the constant's view (all of it: full ranges)
  Layout layout = Layout::kRaw;
  bool transposed = false;  // kPanels: the constant is [N, K]
  int32_t panel = 0;        // kPanels: columns a panel
  // Element type in memory; for kPanels one that weight_codec.h lists. Either the constant's own, one that holds
  // its codes, or f32 where the constant has fewer bits (biases, norm scales): widened at load.
  DType stored = DType::kF32;
  // Rows of K, from the part's first, that share a scale and a zero; even; 0: numbers, no codes.
  int32_t block = 0;
  BlockTerms terms = BlockTerms::kZeros;  // of blocks
};

// What a phase does; operands, attributes and tiles of each: the table in engine/program/opcodes.cc.
enum class OpCode : uint8_t {
  kGeneric,    // any canonical operator through its kernel
  kPointwise,  // a fused expression: PointwiseStep
  kEmbed,      // rows of a table
  kNorm,
  kRowwise,       // an operator of base/ir/rowwise.h, over the last axis
  kMatMul,        // with a packed weight: recipe, epilogue
  kGatedMatMul,   // activation(x gate) * (x up), of two packed weights: recipe, epilogue
  kExpertMatMul,  // with the packed weights that each row asks for; recipe
  kRotary,
  kKvAppend,
  kRotaryAppend,  // kRotary of queries and keys, kKvAppend of these keys
  kAttention,
  kSelectRows,
  kSend,
  kRecvReduce,  // sum of all ranks' partials, epilogue
  kRecvConcat,
  kSendRows,  // as kSend and kRecvReduce, of partials whose rows are zeros on all ranks but one: these rows
  kRecvRows,  // need not travel
  kSample,
};

// The fixed order in which a weight's products are added up, chosen at load from the weight and its plan's unit
// borders - never from batch, chunking, tp or processors. Each slab [slabs[i], slabs[i+1]) of K is one FMA chain from
// +0, ascending k; slab sums are added as a balanced pairwise tree whose upper levels are the all-reduce.
struct Recipe {
  // K borders of this rank's slabs: {0, ..., K}; 2^s + 1 entries; slabs may be empty (sum +0).
  std::vector<int32_t> slabs;
  bool operator==(const Recipe&) const = default;
};

// What the factors of a kMatMul or kGatedMatMul, or of kAttention's products, are multiplied in; results are f32. As
// the recipe it is chosen at load, never from a batch. Order and roundings: engine/cpu/README.md. Devices have code for
// kF32 only.
enum class Precision : uint8_t {
  kF32,        // weights widened
  kBF16,       // weights of bf16; x rounded to it
  kBF16Tiles,  // the same, added in the order of AMX's tiles; of attention over pages of bf16
  kInt8,       // weights of integer codes; x quantized to 8 bits by row and block of the weight
};
// What a CPU multiplies bf16 with, faster than f32: nothing, dot products of pairs, AMX's tiles.
enum class Bf16Unit : uint8_t { kNone, kPairs, kTiles };
// What a compiler is asked for.
enum class Activations : uint8_t {
  kAuto,  // each product as its file says (key::kAccuracyLevel)
  kF32,
  kBF16,  // all products with weights of bf16, others f32
  kInt8,  // all products with weights of integer codes, others f32
};

// Bytecode of a fused pointwise phase, f32 registers: step i writes register i; the last step is the output.
struct PointwiseStep {
  // Unary or binary f32 -> f32 operator; kClip (p = min, q = max); or, without registers:
  // kIdentity with `input` set = load an operand; kConstantOfShape = the constant p.
  Op op = Op::kIdentity;
  int32_t a = kNone, b = kNone, c = kNone;  // registers, all of earlier steps (c: unused so far)
  int32_t input = kNone;  // operand index to load (broadcast by dims), then a, b, c are unused
  // The operator's parameters in the order of base/ir/ops.h's braces: alpha; alpha, beta; alpha, gamma;
  // kGelu: p = 1 for tanh, 0 for erf. kMod: p = fmod.
  float p = 0, q = 0;
};

// The unit of code: on the CPU a tile function, in CUDA one `case`.
struct Variant {
  OpCode code = OpCode::kGeneric;
  Op op = Op::kIdentity;                  // kGeneric
  int32_t outputs = 1;                    // kGeneric: how many of the operands, the last ones, are written
  Attributes attributes;                  // kGeneric: Shape entries may use symbols, evaluated each step
  Recipe recipe;                          // kMatMul, kGatedMatMul, kExpertMatMul
  Precision precision = Precision::kF32;  // kMatMul, kGatedMatMul; kAttention: kF32, kBF16Tiles
  uint32_t epilogue = 0;                  // EpilogueBits, applied in the order bias, activation, residual
  std::vector<PointwiseStep> pointwise;
};

enum class WaitKind : uint8_t {
  // All processors of this rank have finished an instance of phase `phase`:
  // - in the waiter's own repeat (or the waiter itself, in or outside a repeat): the instance of the same number as the
  //   waiter's plus trip_offset, 0 or -1. Instances count over trips and steps, so that -1 in trip 0 is the last trip
  //   of the previous step;
  // - else trip_offset is 0: its last trip in this step if it stands earlier in the program, else in the previous step.
  // No wait where that instance would be before the first step.
  kPhase,
  kArrived,  // the peer's message of this execution has arrived on `channel`
  kCredit,   // the peer has consumed the message before the previous one (m - 2) on `channel`; m < 2: no wait
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
  std::string name;  // of the node it stems from
  int32_t variant = 0;
  std::vector<Operand> operands;
  ValId grid = kNone;  // number of tiles; kNone only with kGeneric: the kernel's own
  std::vector<Wait> waits;
  int32_t channel = kNone;  // kSend, kSendRows
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
  int64_t bytes = 0;  // of one message at most; an inbox half takes inbox_half() bytes
  std::string name;   // equal on both ends
};

inline int64_t inbox_half(const Channel& channel) { return (channel.bytes + 63) / 64 * 64; }

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
  std::vector<int64_t> offsets;  // per buffer; kAct: activation arena, kInbox: inbox arena (half 0), others
                                 // -1; multiples of 64
  int64_t act_bytes = 0;
  int64_t inbox_bytes = 0;
};

// The tiles of a grid that processor `processor` of `active` runs: [first, last).
inline Range tiles_of(int64_t grid, int64_t processor, int64_t active) {
  return {grid * processor / active, grid * (processor + 1) / active};
}

}  // namespace ark
