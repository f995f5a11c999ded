// A program as device code sees it: plain tables of addresses and numbers, the same for host and device.
//
// The code of a loop kernel depends on the set of variants only (engine/cuda/codegen.h); depth, sizes, ranks
// and places are data in these tables. Compiled by NVRTC too: no std.
//
// Addresses and sizes: engine/cuda/arguments.h. Tables lie in device memory and are constant while a kernel
// runs, unless they are marked otherwise.
#pragma once

#include "engine/cuda/arguments.h"
#include "engine/cuda/control.h"
#include "engine/program/device_contract.h"

namespace ark::cuda {

inline constexpr int kConsumerWarps = 8;                // run the bodies
inline constexpr int kConsumers = kConsumerWarps * 32;  // threads
// And the warp that streams weights ahead, with three that only give registers away.
inline constexpr int kThreads = kConsumers + 4 * 32;
// Of a thread: at the launch (an SM has 65,536), and, where they can be moved, of consumers and of other warps.
inline constexpr int kLaunchRegisters = 168, kConsumerRegisters = 208, kStreamingRegisters = 88;
inline constexpr int kMaxWaits = 16, kMaxMessages = 8, kMaxVals = 256;  // of an instance; of a program
inline constexpr int kStageBytes = 8192;                                // of the weights' ring
inline constexpr int kPieceRows = 128;  // rows of a weight, at most, that are added up as one: a stage's
inline constexpr int kMaxPieces = 512;
// From one polled word to the next: each has a line of the host's caches.
inline constexpr u64 kLineBytes = 64;
inline constexpr int kAuxSizes = 40;         // of an instance: sizes beside its own
inline constexpr int kAttentionBlock = 256;  // keys that a tile's warps share at a time
inline constexpr int kLongestHead = 256;     // elements of a head that attention takes, at most
// Of attention, of an opened tile: query heads of a KV head, and pages of a warp's first keys, that it knows.
inline constexpr int kKnownHeads = 16, kKnownPages = 4;

inline constexpr int kFewRows = 8;  // of x: one column of products on tensor cores
// Of steps whose instances tell others by what they store, at most (RankTables::told_rows).
inline constexpr int kMostToldRows = 64;
inline constexpr int kWarpRows = 16;   // of x that a warp takes at once on tensor cores, at most
inline constexpr int kMaxGroups = 64;  // tiles that share an output
inline constexpr int kNode = 8;        // of them, whose sums are read at once

// A wide tile of a matrix product, of steps of more than kFewRows rows: so many of them times two panels, or one panel
// of two weights. Exact ones multiply both parts of x and add up pieces as other tiles do: x takes twice the bytes, and
// sums wait for each other.
inline constexpr int kExactWideRows = 64, kRoundedWideRows = 128;
inline constexpr int kWideReaders = 4;  // warps that read a stage: each takes a quarter of the rows
// Rows of a tile of which each takes one eight: its x and sums take less room.
inline constexpr int kSlimWideRows = 8 * kWideReaders;
// Of an exact one's tree: sums of the lowest level or two wait in registers, of the next ones in scratch
// (TileShape::wide_levels), then in memory (RankTables::waiting), so many floats each.
inline constexpr int kWideLevelFloats = kExactWideRows * 2 * 64;

// What a tile of a matrix product takes, and the scratch that bodies get. Bits do not depend on it: pieces of
// a weight and the tree that adds them up are the same.
struct TileShape {
  int row_block;  // rows of x, a multiple of 8
  int levels;     // of a tree: a tile takes 2^(levels - 1) pieces of a weight's rows at most
  u32 scratch;    // bytes of shared memory
  // Of wide tiles, which small scratch has no room for; exact ones': rooms of x, and levels of their trees in scratch;
  // stages that the ring of weights leaves to these in steps that may take some of more than kSlimWideRows.
  bool has_wide;
  int wide_rooms, wide_levels, wide_stages;
#if !defined(__CUDACC__)
  bool operator==(const TileShape&) const = default;
#endif
};
inline constexpr TileShape kLargestTiles = {32, 7, 105 * 1024, true, 3, 3, 6};
// For GPUs whose blocks get 163 KiB: sm_80.
inline constexpr TileShape kLargeTiles = {32, 7, 105 * 1024, true, 2, 2, 0};
// For GPUs whose blocks get 99 KiB: sm_86, sm_89, sm_120.
inline constexpr TileShape kSmallTiles = {16, 4, 166 * 256, false, 0, 0, 0};
static_assert(kMaxPieces <= kMaxGroups << (kSmallTiles.levels - 1),
              "tiles enough for all pieces of a weight");
#if defined(ARK_TILES)
inline constexpr TileShape kTiles = ARK_TILES;
#else
inline constexpr TileShape kTiles = kLargestTiles;
#endif
// In a step of so many rows products get so much of the scratch, and other bodies what they get in one of few: the ring
// of weights takes what is behind (ring_stages()). Of few rows that is room for x of eight pieces of 64 rows, or, in a
// loop that leaves nothing beyond few rows, since its pieces are long, of 128. Beyond, up to `leaving_rows`
// (LoopParameters::leaving_rows), it is room for x of two batches of eight pieces of 64 (engine/cuda/dealing.h).
inline constexpr u32 kScratchOfRow = 5 * 1024;
ARK_BOTH constexpr u32 scratch_of(i32 rows, i32 leaving_rows, u32 scratch) {
  const u32 few = leaving_rows > kFewRows ? 48 * 1024 : 56 * 1024,
            most = rows <= kFewRows       ? few
                   : rows <= leaving_rows ? 4 * 1024 + static_cast<u32>(rows) * kScratchOfRow
                                          : scratch;
  return scratch < most ? scratch : most;
}
ARK_BOTH constexpr u32 few_scratch(u32 scratch) { return scratch_of(kFewRows, kWarpRows, scratch); }
// Tiles of attention that a block has open at once: opens, and asks for the first keys of, before it waits; and bytes
// of scratch that it keeps of them and of its warps' tasks (bodies/attention_parts.h). Half of them it takes at once at
// most, while it opens others in the places of those before. Small scratch is for keys and values.
ARK_BOTH constexpr int tiles_ahead(u32 scratch) { return scratch < 48 * 1024 ? 3 : 8; }
inline constexpr u32 kTaskBytes = 13 * 4,
                     kOpenTileBytes = kTaskBytes + (kKnownHeads + (1 + kKnownPages) * kConsumerWarps) * 4;
ARK_BOTH constexpr u32 open_bytes(u32 scratch) {
  const u32 all = kConsumerWarps * kTaskBytes + static_cast<u32>(tiles_ahead(scratch)) * kOpenTileBytes;
  return (all + 15) / 16 * 16;
}
// Elements of a row that a norm can hold beside its own sums.
ARK_BOTH constexpr i64 longest_row(const TileShape& tiles) {
  return few_scratch(tiles.scratch) / 4 - 2 * kConsumerWarps;
}
// Whether the loop has several ranks, which send each other messages. As device code is compiled.
#if defined(ARK_ALONE)
inline constexpr bool kHasPeers = false;
#else
inline constexpr bool kHasPeers = true;
#endif
// Of device code, as it is compiled; the host asks tiles_for().
inline constexpr int kRowBlock = kTiles.row_block;
inline constexpr u32 kScratchBytes = kTiles.scratch, kFewScratchBytes = few_scratch(kScratchBytes);
inline constexpr int kTilesAhead = tiles_ahead(kScratchBytes);

// Whether a device's copy of a weight's panels has its rows' pieces of 16 bytes turned: piece c of row k lies
// at c ^ (k % 8), so that eight rows of one piece, which tensor cores load together, lie in different banks
// of shared memory. Rows of 128 bytes of 16-bit numbers; blocks of codes have an order of their own.
ARK_BOTH constexpr bool has_turned_rows(int panel, int element_bytes) {
  return panel == 64 && element_bytes == 2;
}
inline constexpr int kTurn = 8;  // pieces of a row, elements of a piece, rows that differ

// Whether a device's copy of blocks of codes has these in the order of tensor cores' fragments (mma.m16n8k16's A): of
// each sixteen rows and sixteen columns a lane's four registers, two rows of a column each, lie together, in the order
// of lanes. Terms of a lane's columns (column % 8 == lane / 4), over all of the panel, lie together as well.
// Others' readers are multiply-adds: of blocks of no sixteen rows, and where the weight's `k` rows end within sixteen.
ARK_BOTH constexpr bool has_turned_codes(i64 block, i64 k) {
  return block > 0 && block % 16 == 0 && k % 16 == 0;
}
ARK_BOTH constexpr int turned_term(int column, int panel) {
  return column % 8 * (panel / 8) + column / 16 * 2 + column / 8 % 2;
}
// The lowest bit of the code of a block's row `k`. Four bits: both rows of a register 16 bits apart, so that a shift
// and a mask make two 16-bit numbers of them.
ARK_BOTH constexpr int turned_code_bit(int k, int column, int panel, int bits) {
  const int lane = column % 8 * 4 + k % 8 / 2, number = k / 8 % 2 * 2 + column / 8 % 2;
  const int words = (k / 16 * (panel / 16) + column / 16) * 32 + lane;  // of four registers' codes
  return words * 8 * bits + (bits == 4 ? k % 2 * 16 + number * 4 : (number * 2 + k % 2) * 8);
}

// Elements of x whose 16-bit parts lie together, before their rests (bodies/parts.h).
inline constexpr i64 kPartsTogether = 16;

// What to wait for: the word at `counter` reaches offset + stride * step (modulo its width).
struct alignas(16) Wait {
  u64 counter;
  u64 offset;
  u64 relay;  // 0, or the word lies in memory of the host: then processor 0 alone looks, and tells the others
              // here
  u32 stride;
  i32 wide;  // the word is a u64 of the sys scope (dma counter), else a u32 of the gpu scope
};
static_assert(sizeof(Wait) == 32);

// How the counter of a message (a sender's arrivals, a receiver's credits) gets to the peer. Words of the host's
// memory are never the target of a device's atomic operation: over PCIe those are atomic for one device alone.
enum class LinkKind : i32 {
  kDevice,  // in this device's memory: each sending processor adds one; one credit a message
  kMapped,  // in memory that the peer shares, of the host or of either GPU: the last processor stores the new value
  kPosted,  // the last processor posts a request; the pump moves the bytes and raises the peer's counter
};

// An end of a channel in one instance. Message number: step * per_step + ordinal.
struct alignas(16) Message {
  u64 slots;           // where slot 0 is written (sender: peer's inbox or own outbox) or read (own inbox)
  u64 counter;         // kDevice, kMapped: sender: the peer's arrivals; receiver: the peer's credits
  u64 queue;           // kPosted: the ring of requests (dma/ring.h), in memory of the host
  u64 head;            // kPosted: first word of a request without its commit bit and length
  u64 source, target;  // kPosted: offsets of slot 0 in its regions
  u32 slot_count, slot_bytes;
  u32 per_step, ordinal;
  u64 first;  // kMapped: where the counter started. kPosted: address of the ring's RingTickets
  i32 channel;
  LinkKind link;
};
static_assert(sizeof(Message) == 80);

// The producers' side of a ring of requests that a device fills; in device memory, zero at first.
struct RingTickets {
  u64 next;      // the ticket of the next request
  u64 consumed;  // requests that the pump has taken out, as somebody has seen it last
};

// A matrix product's weights as the streaming warp and the body see them. Tile t of blocks * panels * groups:
// group t % groups, rows block t / groups % blocks, panel t / groups / blocks; blocks = ceil(m / row_block). How many
// groups depends on the step's rows: StreamTiles. Bits do not. A gated product's tile takes its pieces of the first
// weight, then those of the second.
//
// From wide_from rows on (0: never) tiles are wide, of wide_rows rows: the panel of a tile is a pair of panels, or, of
// a gated product, one panel of both weights; pieces come in turn from both.
struct alignas(16) Stream {
  u64 weights;  // panels of units of rows: a row of elements, or a block of codes (engine/program/weight_codec.h)
  u64 borders;   // i32 [pieces + 1]: rows of the pieces; pieces is a power of two
  u64 partials;  // f32 [weights][groups][panels][m][panel]: sums of groups; 0 if there is never more than one
  u64 arrivals;  // u32 [panels * blocks]: groups that are there, 0 between steps; written by the kernel. 0 where there
                 // are partials: the norm behind the product adds them up
  Size m;
  i32 k, n, panel;
  i32 unit_rows, unit_bytes;  // of a panel; pieces begin with units
  i32 pieces, longest_piece;  // rows of the latter; a tile takes pieces / groups pieces
  // Groups are 2^these: for kFewRows; in one block of rows; in several, at least (more_groups).
  u8 few_bits, some_bits, most_bits;
  i16 base;  // the Instance's
  u8 wide_rows;
  u8 some_blocks;       // of rows, 1 or 2, in steps of more than kFewRows that one block would hold
  u32 unit_reciprocal;  // 2^32 / unit_rows, rounded up: row * it / 2^32 is the unit; not if that is 1
  i32 panels;
  u64 second;       // kGatedMatMul: the other weight, of the same sizes; else 0
  u64 wide_groups;  // of wide tiles, 2^these by blocks of rows: two bits each, of one block the lowest
  i32 wide_from;
  // Of products that multiply the same x: panels of those before it, and of all; pairs of them, where tiles are wide.
  // All 0 if there are no others.
  u16 before, beside, wide_before, wide_beside;
  // Groups of tiles that are not wide are 2^this times as many, by blocks of a tile's most rows: as wide_groups.
  u32 more_groups;
};
static_assert(sizeof(Stream) == 112);

// One execution of a phase in a step.
struct alignas(16) Instance {
  i32 variant, phase, trip;
  Size grid;  // tiles; 0: the body knows
  i32 base;   // the processor that takes tile 0, but in a Lineup: share_of()
  i32 waits, first_wait, messages, first_message;
  i32 ahead_waits, ahead_first_wait, ahead_messages,
      ahead_first_message;  // of the instance that is fetched while this one runs, kFetchAhead later
  i32 readers_period;       // processors; 0: no inbox is read
  u32 complete_offset, complete_stride;  // the counter when this is complete: offset + stride * step
  u64 counter;                           // u32: raised by each processor when it is through
  u64 readers;                           // u32: processors that are through with the inboxes; the last sets 0
  u64 aux;                               // Size [kAuxSizes]
  // What its body is given, by operator: engine/cuda/arguments.h.
  union {
    // The phase's operands, as they are copied. First and as large as any, so that all of Instance{} is 0.
    u64 operands[kArgumentWords];
    EmbedArguments embed;
    NormArguments norm;
    RowwiseArguments rowwise;
    ProductArguments product;
    RotaryArguments rotary;
    KvAppendArguments kv_append;
    RotaryAppendArguments rotary_append;
    AttentionArguments attention;
    SelectRowsArguments select_rows;
    SampleArguments sample;
    PointwiseArguments pointwise;
    SendArguments send;
    ReduceArguments reduce;
    ConcatArguments concat;
    CopyArguments copy;
  };
  // Of matrix products: what the streaming warp reads in the table of streams; of a norm that takes up what a product's
  // tiles share: that product's.
  Stream stream;
  // What it exchanges by rows that say themselves that they are there (engine/cuda/lamport.h); 0: not so.
  u64 lamport_x,
      lamport_out;   // a product's x; its output, or that of a norm or of attention: row 0 of the first half
  u64 lamport_sums;  // f32 [weights][groups][panels][sums_rows][panel]: of a product, or taken up by a norm
  i32 parts_at;      // RankParts::place
  i32 share_parts_at;  // RankShares::parts_at, in fours of floats
  i16 settles, share;  // RankParts::settles, RankShares::number
  // Of the waits, the first ones, of steps whose instances exchange so, and the last ones, of those whose do not.
  i16 few_waits, more_waits;
  i16 is_quiet;  // in steps whose instances exchange so nobody waits for its counter, nor is a peer told
  i16 links;     // of its messages: bits 1 << LinkKind
  i16 by_norm;  // a sum over ranks that the norm behind adds up in such steps; or that norm (RankParts::taker)
  i16 sums_rows;  // of the steps whose sums lie at lamport_sums, at most; tiles count those of others
};
static_assert(sizeof(Instance) == 432);

// Where a token's keys and values go.
struct alignas(16) RowPlace {
  i32 position, row, page;  // of the sequence; of the page
  i32 padding;
};

// Pages of a cache for page copies.
struct CachePages {
  u64 base;
  u64 page_bytes;  // multiple of 16
};

// One rank of this device.
struct alignas(16) RankTables {
  u64 instances, waits, messages, streams, caches;  // tables
  i32 instance_count, stream_count, cache_count, val_count;
  i32 rank, ranks, page_size, pages_per_slot;
  // State, written by the kernel.
  u64 page_table;      // i32 [slots][pages_per_slot]
  u64 last_tokens;     // i32 [slots]
  u64 page_tokens;     // i32 [pages][page_size]: token ids as fed
  u64 positions;       // i32 [tokens]
  u64 token_slots;     // i32 [tokens]
  u64 places;          // RowPlace [tokens]
  u64 items;           // AttentionItem [max_items]
  u64 token_ids;       // i32 [tokens]: what kEmbed reads
  u64 step_positions;  // i32 [tokens]: what phases read; 0: none does
  u64 readers;         // u32, 64 bytes apart, by phase: processors that are through with its inboxes
  u64 ready;           // u64: steps (turns) that the rank's processor 0 has opened
  u64 through;         // u64: processors that have run a step, over all steps
  u64 longest;         // u64: tokens of the longest sequence of this step
  u64 sample_counts;   // u32 [min(processors, rows)][vocabulary]: room for penalties
  u64 waiting;         // f32 [processors][waiting_levels][kWideLevelFloats]: sums of wide tiles' trees
  u64 lamport;         // LamportState; 0: no instances exchange rows so (engine/cuda/lamport.h)
  u64 lamport_rows;    // [2][told_rows][lamport_pitch] floats
  // [ranks][2][part_rows][part_pitch] floats of this rank's memory: parts of sums over ranks; and by rank, in its
  // memory, where this rank's part of them goes (engine/cuda/rank_parts.h). 0: there are none.
  u64 parts, parts_to[kMaxParts];
  // By rank, in its memory: u64 [kMaxParts][kMostSharing], by rank and processor the last sum (of all steps', from 1
  // on) whose share it has stored; then f32 [elements], the sums, and parts of them (engine/cuda/rank_shares.h).
  u64 shares[kMaxParts];
  i32 shares_from, shares_per_step;  // sums are of more such tiles of sends; so many in a step, shared or not
  i32 part_rows, part_pitch;         // rows of a step that has parts, at most; a multiple of 16
  i32 lamport_pitch;                 // a multiple of 16
  // Instances that do nothing in steps that tell. If there are some, behind `instances` lie the others, once more,
  // then addresses of these ones' counters.
  i32 skipped_count;
  u16 told_rows;       // of steps whose instances exchange rows so, at most (engine/cuda/lamport_plan.h)
  u16 writes_results;  // the rank whose results the host reads
  i32 max_rows;
  i32 waiting_levels;
  // Of an AttentionItem: query tokens in any step, at most, and as many as are one strip; KV heads (item_tokens_of()).
  u8 item_tokens, item_strip;
  u16 item_heads;
};

// Processors of a rank that adds up its share of sums, at most; elements of a send's tile; bytes of the words that say
// which sums are there.
inline constexpr int kMostSharing = 512;
inline constexpr int kSendElements = kSendTile / 4;
inline constexpr u32 kShareWordBytes = kMaxParts * kMostSharing * 8;

// Of the last step whose instances exchange rows so.
struct alignas(16) LamportState {
  i32 half;          // of the rows in memory
  i32 rows, before;  // of that step, at most, and of the one before it
  i32 parts;         // the half of the parts of sums over ranks, of the last step that has some
};

// Words of a device; in device memory, zero at first.
struct Control {
  u64 go;       // turns that the leader has opened
  u64 stop_at;  // the turn at which all leave; before `go` of that turn
  u32 abort;    // any block: everybody leaves
  u32 padding;
};

// The kernel's argument. The mailbox is mapped host memory: the leader alone reads it; results, done counters
// and fault records are written by who has them.
struct LoopParameters {
  u64 ranks;                                 // RankTables [rank_count]
  u64 control;                               // Control
  u64 record;                                // the step's slot of the mailbox, republished: slot_bytes
  u64 mailbox;                               // engine/run/mailbox.h's MailboxLayout:
  u64 slots, slot_bytes, vals, vals_each;    // i64 vals [ranks][vals_each] at `vals` of a slot
  u64 results, result_bytes, logits, depth;  // depth: slots
  u64 host;                                  // LoopControl and FaultRecords
  u64 first_step, first_turn;                // of this launch; a turn is a step, or the leaving of a launch
  u64 lease;                                 // steps a launch may run; 0: unbounded
  u64 deadline_ns;                           // of a wait inside a step
  u64 linger_ns;                             // how long the leader waits for the next step before it leaves
  u64 trace;                                 // TraceEvent [blocks][trace_events]; 0: none
  i32 trace_events;
  u32 counter_base;            // where counters of instances start
  i32 rank_count, processors;  // blocks = rank_count * processors; rank = block / processors
  i32 stages;                  // of the ring of weights
  i32 leaving_rows;  // rows of the steps in which the ring takes what products leave of the scratch, at most
  i32 wide_from;     // rows of the steps in which it has wide_stages(), at least
  i32 ahead;         // pieces_ahead()
  i32 barrier;       // ignore the phases' waits, join after each phase
};

inline constexpr u32 kRankBytes = 384;
static_assert(sizeof(LoopParameters) <= 256 && sizeof(RankTables) <= kRankBytes);

// The layout of ark::TraceEvent (engine/run/timeline.h).
struct TraceEvent {
  u64 clock;
  i32 phase;
  i32 kind;
};

}  // namespace ark::cuda
