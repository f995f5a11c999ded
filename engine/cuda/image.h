// A program as device code sees it: plain tables of addresses and numbers, the same for host and device.
//
// The code of a loop kernel depends on the set of variants only (engine/cuda/codegen.h); depth, sizes, ranks
// and places are data in these tables. Compiled by NVRTC too: no includes, no std.
//
// Addresses are u64 as the device sees them, 0: absent. A `Size` is a number >= 0, or ~v for val v of the
// step. Tables lie in device memory and are constant while a kernel runs, unless they are marked otherwise.
#pragma once

namespace ark::cuda {

using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;
using Size = i32;

inline constexpr int kConsumerWarps = 8;                // run the bodies
inline constexpr int kConsumers = kConsumerWarps * 32;  // threads
inline constexpr int kThreads = kConsumers + 32;        // and the warp that streams weights ahead
inline constexpr int kOperands = 12, kSizes = 16, kReals = 4;
inline constexpr int kMaxWaits = 16, kMaxMessages = 8, kMaxVals = 256;  // of an instance; of a program
inline constexpr int kStageBytes = 8192;                                // of the weights' ring
inline constexpr int kRowBlock = 32;                                    // rows of x that a matmul tile takes
inline constexpr int kPieceRows = 256;       // rows of a weight that are added up as one
inline constexpr int kMaxLevels = 8;         // of the tree of pieces inside a tile
inline constexpr int kItemRows = 16;         // query tokens of an attention item
inline constexpr int kAttentionBlock = 256;  // keys that a tile's warps share at a time
inline constexpr int kMaxSplits = 8;         // tiles that share one item's keys

// What to wait for: the word at `counter` reaches offset + stride * step (modulo its width).
struct Wait {
  u64 counter;
  u64 stride, offset;
  i32 wide;   // the word is a u64 of the sys scope (dma counter), else a u32 of the gpu scope
  i32 about;  // for the fault record: phase (wide = 0) or peer
};
static_assert(sizeof(Wait) == 32);

// An end of a channel in one instance. Message number: step * per_step + ordinal.
struct Message {
  u64 slots;           // where slot 0 is written (sender: peer's inbox or own outbox) or read (own inbox)
  u64 counter;         // sender: the peer's arrivals; receiver: the peer's credits; raised by one. 0: posted
  u64 queue;           // posted: the ring of requests (dma/ring.h)
  u64 head;            // posted: first word of a request without its commit bit and length
  u64 source, target;  // posted: offsets of slot 0 in its regions
  u32 slot_count, slot_bytes;
  u32 per_step, ordinal;
};
static_assert(sizeof(Message) == 64);

// One execution of a phase in a step. Meaning of operands, sizes and reals: at the bodies.
struct Instance {
  i32 variant, phase, trip;
  i32 grid;  // Size: tiles
  i32 waits, first_wait;
  i32 messages, first_message;
  i32 next_waits, next_messages;  // of the next instance, so that all of it can be fetched at once
  i32 readers_period;             // processors; 0: no inbox is read
  i32 stream;                     // kMatMul: index into the streams, else -1
  u64 counter;                    // u32: raised by each processor when it is through
  u64 readers;                    // u32: processors that are through with the inboxes
  u64 operands[kOperands];
  Size sizes[kSizes];
  float reals[kReals];
};
static_assert(sizeof(Instance) == 240 && sizeof(Instance) % 16 == 0);

// A matrix product's weights as the streaming warp and the body see them. Tile t of blocks * panels * groups:
// group t % groups, rows block t / groups % blocks, panel t / groups / blocks; blocks = ceil(m / kRowBlock).
struct Stream {
  u64 weights;   // [panels][k][panel] elements
  u64 borders;   // i32 [pieces + 1]: rows of the pieces; pieces is a power of two
  u64 partials;  // f32 [groups][m][n]: sums of groups; 0 if groups == 1
  u64 arrivals;  // u32 [panels * blocks]: groups that are there, over all steps; written by the kernel
  Size m;
  i32 k, n, panel, element_bytes;
  i32 pieces, groups;  // a tile takes pieces / groups pieces
  i32 rows_per_stage;
};
static_assert(sizeof(Stream) == 64);

// engine/cpu/step_kernel.h's AttentionItem.
struct Item {
  i32 slot, first, count, position;
};

// Pages of a cache for page copies.
struct CachePages {
  u64 base;
  u64 page_bytes;  // multiple of 16
};

// One rank of this device.
struct RankTables {
  u64 instances, waits, messages, streams, caches;  // tables
  i32 instance_count, stream_count, cache_count, val_count;
  i32 rank, ranks, page_size, pages_per_slot;
  // State, written by the kernel.
  u64 page_table;      // i32 [slots][pages_per_slot]
  u64 last_tokens;     // i32 [slots]
  u64 page_tokens;     // i32 [pages][page_size]: token ids as fed
  u64 positions;       // i32 [tokens]
  u64 token_slots;     // i32 [tokens]
  u64 items;           // Item [max_items]
  u64 token_ids;       // i32 [tokens]: what kEmbed reads
  u64 vals;            // i64 [val_count]: of this step
  u64 ready;           // u64: steps (turns) that the rank's processor 0 has opened
  u64 through;         // u64: processors that have run a step
  u64 done;            // u64 in mapped memory: steps whose results are there
  u64 sample_counts;   // u32 [min(processors, rows)][vocabulary]: room for penalties
  u64 vals_offset;     // of this rank's vals in a slot of LoopParameters::vals
  i32 writes_results;  // the rank whose results the host reads
  i32 max_rows;
};

// What stopped the loop, in mapped memory; `raised` last.
struct FaultRecord {
  u32 raised;
  u32 kind;  // FaultCode
  i32 rank, processor, phase, trip;
  i32 what;   // FaultPoint
  i32 about;  // phase or peer
  u64 seen, needed;
};
enum FaultCode : u32 { kFaultDeadline = 1, kFaultAborted = 2 };
enum FaultPoint : i32 {
  kAtPhase,     // an earlier phase
  kAtMessage,   // a message or credit
  kAtBarrier,   // barrier mode
  kAtLeader,    // the next turn
  kAtRank,      // the rank's processor 0
  kAtThrough,   // all processors at the end of a step
  kAtWeights,   // the ring of weights
  kAtRequests,  // room in the ring of requests
};

// Words of a device; in device memory, zero at first, but where noted.
struct Control {
  u64 go;       // turns that the leader has opened
  u64 stop_at;  // the turn at which all leave
  u64 steps;    // steps run, over all launches: where the next launch goes on
  u64 turns;    // the same of turns, each launch takes one more to leave
  u32 abort;    // any block: everybody leaves
  u32 fault_claimed;
  u64 left;  // blocks that have left, over all launches
  u64 padding;
};
static_assert(sizeof(Control) == 56);

// The kernel's argument. Addresses in mapped memory are touched by the leader only, but for results, done
// and the fault record.
struct LoopParameters {
  u64 ranks;    // RankTables [rank_count]
  u64 control;  // Control
  // Mapped memory.
  u64 posted;   // u64: steps posted
  u64 park;     // u32: not zero: leave at the next step border
  u64 abort;    // u32: not zero: leave now
  u64 fault;    // FaultRecord
  u64 slots;    // StepRecord and arrays, [depth] of slot_bytes
  u64 vals;     // i64, [depth] of vals_bytes: the vals of every rank
  u64 results;  // RowRecord [rows], then logits; [depth] of result_bytes
  u64 slot_bytes, vals_bytes, result_bytes, logits_offset;
  // Device memory.
  u64 record;       // the step's record, republished; slot_bytes
  u64 record_vals;  // the same for vals
  u64 trace;        // per block ring of TraceEvent; 0: none
  u64 deadline_ns;  // of a wait inside a step
  u64 linger_ns;    // how long the leader waits for the next step before it leaves
  u64 lease;        // steps a launch may run; 0: unbounded
  i32 depth;
  u32 counter_base;
  i32 rank_count, processors;  // blocks = rank_count * processors; rank = block / processors
  i32 stages;                  // of the ring of weights
  i32 barrier;                 // ignore the phases' waits, join after each phase
  i32 split_keys;              // keys of an attention split, multiple of kAttentionBlock
  i32 trace_events;            // a block
};

struct TraceEvent {
  u64 clock;
  i32 phase;
  i32 kind;  // 0 wait, 1 run, 2 publish, 3 done
};

// Dynamic shared memory of a block.
struct SharedLayout {
  u32 instances, waits, messages, vals, ring_barriers, scratch, ring, total;
};
inline constexpr u32 kScratchBytes = 72 * 1024;  // of a body
constexpr SharedLayout shared_layout(int stages) {
  SharedLayout s{};
  u32 at = 0;
  s.instances = at, at += 2 * 256;
  s.waits = at, at += 2 * kMaxWaits * sizeof(Wait);
  s.messages = at, at += 2 * kMaxMessages * sizeof(Message);
  s.vals = at, at += kMaxVals * 4;
  s.ring_barriers = at, at += 2 * 64 * 8;
  at = (at + 1023) / 1024 * 1024;
  s.scratch = at, at += kScratchBytes;
  s.ring = at, at += static_cast<u32>(stages) * kStageBytes;
  s.total = at;
  return s;
}

}  // namespace ark::cuda
