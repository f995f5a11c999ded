// What an Instance says to its body, by name: one struct per operator, over the same bytes of the Instance.
//
// engine/cuda/device_ops.cc fills them, bodies/*.h and cost/ read them. A struct begins with the addresses of the
// phase's operands in the phase's order (engine/program/opcodes.cc), where these are copied as they are; `?`: 0 if the
// operand is absent. Unless said otherwise, what lies there are floats. Compiled by NVRTC too: no std.
//
// Addresses are u64 as the device sees them, 0: absent. A `Size` is a number >= 0, or ~v for val v of the step.
#pragma once

namespace ark::cuda {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i16 = short;
using i32 = int;
using i64 = long long;
using Size = i32;

inline constexpr int kOperands = 12;       // of a phase
inline constexpr int kArgumentWords = 22;  // of 64 bits: of the largest struct here
inline constexpr int kMaxInputs = 8;       // of a fused expression
inline constexpr int kMaxOutputs = 5;      // of an operator that copies parts of rows
inline constexpr int kMaxParts = 8;        // of a sum or concatenation over ranks

// Of what goes by keys and values: their indices.
inline constexpr int kOfKeys = 0, kOfValues = 1;

struct EmbedArguments {
  u64 ids, table, out;     // integers; of the weight's type: row-major or panels; [T, width]
  Size width, rows;        // elements of a row; rows that this rank has
  Size panel;              // columns of a panel; 0: row-major
  Size first, block_rows;  // id of the first row here; rows of a block of codes
};

struct NormArguments {
  u64 x, scale, bias, out;  // [rows, width], ?[width], ?[width], [rows, width] floats or parts
  // Of the product, or the sum over ranks, that is taken up here (taken_up.h): ?[width], ?[rows, width].
  u64 taken_bias, taken_residual;
  Size width, taken_epilogue;  // bits of its epilogue
  float epsilon;
};

struct RowwiseArguments {
  u64 x, out;  // [rows, width]
  Size width;
  float parameter;  // of the operator
};

// Bits of what becomes of a product's outputs (bodies/finished_tile.h); 0: they are stored as they are.
inline constexpr i32 kTileRotated = 1, kTileAppended = 2;

// What Stream does not say. Of a gated product, the residual is the second product's bias.
struct ProductArguments {
  u64 x, weight, bias, residual;  // [m, k] floats or parts; panels; ?[n]; ?[m, n], gated: ?[n]
  u64 out;                        // [m, n] floats, or parts if stores_parts; unless tiles are appended
  // What becomes of tiles (bodies/appended_tile.h): of heads of `dim` elements, whole in a panel.
  u64 cos, sin;                 // [length, pairs]: kTileRotated
  u64 pages;                    // of keys or of values, as KvAppendArguments says: kTileAppended
  Size epilogue, stores_parts;  // bits; whether
  Size tile_use, tile_variant;  // bits; which use of tiles, of the kernel (codegen.cc)
  Size dim, pairs, length;      // as AngleSizes says
  Size heads, page_size;        // of pages
};

// Angles of positions; which parts of heads they turn.
struct AngleTables {
  u64 cos, sin, positions;  // [length, pairs], [length, pairs], integers [T]
};
struct AngleSizes {
  Size dim, pairs, length;  // elements of a head; pairs of them that are turned; positions in the tables
};

struct RotaryArguments {
  u64 x;  // [T, heads, dim]
  AngleTables angles;
  u64 out;  // [T, heads, dim]
  Size heads;
  AngleSizes turned;
};

struct KvAppendArguments {
  u64 added[2];  // [T, heads, dim] of keys, of values
  u64 pages[2];  // [pages, heads][page_size, dim] of the cache's type
  Size heads, page_size, dims[2];
};

struct RotaryAppendArguments {
  u64 q;  // [T, heads, dim]
  AngleTables angles;
  u64 k, v;      // [T, kv_heads, dim], [T, kv_heads, value_dim]
  u64 out;       // [T, heads, dim]
  u64 pages[2];  // as KvAppendArguments says
  Size heads, kv_heads, page_size, value_dim;
  AngleSizes turned;
};

struct AttentionArguments {
  u64 q;              // [T, heads, dim]
  u64 keys, values;   // [pages, kv_heads][page_size, dim] of the cache's type, as KvAppendArguments says
  u64 slopes, sinks;  // ?[heads], ?[heads]
  u64 out;            // [T, heads, value_dim] floats or parts
  u64 head_table;     // integers [kv_heads + 1], places in what follows: the query heads of each
  u64 partials;  // of items whose keys are split: [T, heads, splits] sums of values, maximum and sum of weights
  u64 arrivals;  // u32 [items, kv_heads]: splits that are there, 0 between steps
  Size heads, kv_heads, page_size;
  Size window;           // tokens that a query sees; 0: all
  float scale, softcap;  // the latter 0: none
};

struct SelectRowsArguments {
  u64 x, out;  // [T, width], [R, width], of four bytes
  Size width;
};

struct SampleArguments {
  u64 logits;  // [R, vocabulary]
  Size vocabulary;
};

// How an input lies in the output of a fused expression.
enum Placement : Size { kLikeOutput, kAlongLastAxis, kOneElement, kByTable };
struct PointwiseArguments {
  u64 inputs[kOperands - 1], out;
  Size elements[4];  // of out: a product
  Size placements
      [kMaxInputs];  // Placement; kByTable: by Instance::aux, four dims of out, then four of each input
  Size last_axis;    // of out
};

struct SendArguments {
  u64 x, ids;        // of four bytes; ?: rows of which the receivers need some (kSendRows); all are sent
  Size elements[4];  // a product
};

struct ReduceArguments {
  u64 parts[kMaxParts];     // by rank: the own part; 0: comes by message
  u64 bias, residual, out;  // ?[width], ?[rows, width], [rows, width]
  Size elements[4];         // of out: a product
  Size width, epilogue;     // last axis; bits
};

struct ConcatArguments {
  u64 parts[kMaxParts], out;  // as ReduceArguments says, of four bytes
  Size width;                 // elements of out behind the axis
  Size part_widths[kMaxParts];
};

struct CopyArguments {
  u64 x, outputs[kMaxOutputs];  // of four bytes
  Size rows[4];                 // a product
  Size width;                   // elements of an input row
  struct Part {
    Size first, width;  // elements of the row that an output takes
  } taken[kMaxOutputs];
};

}  // namespace ark::cuda
