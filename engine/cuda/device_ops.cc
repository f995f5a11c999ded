#include "engine/cuda/device_ops.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/index.h"
#include "base/ir/keys.h"
#include "base/ir/rowwise_host.h"
#include "engine/cuda/pointwise_source.h"
#include "engine/program/kv_codec.h"
#include "engine/program/opcodes.h"
#include "engine/program/variant_facts.h"
#include "engine/program/weight_codec.h"

namespace ark::cuda {
namespace {

// ---- names of types

const char* element_type(DType dtype) {
  if (const WeightCodec* codec = codec_of(dtype)) return codec->device;
  return dtype == DType::kI32 ? "i32" : dtype == DType::kI64 ? "i64" : nullptr;
}

std::string type_of(const PhaseOperands& p, std::size_t operand) {
  const char* name = element_type(p.buffer(operand).dtype);
  if (!name) p.refuse("elements of type " + std::string(name_of(p.buffer(operand).dtype)));
  if (p.buffer(operand).weight == kNone) return name;
  const BlockTerms terms = p.weight(operand).terms;
  if (terms == BlockTerms::kZeros) return name;
  return "Codes<" + std::to_string(bits_of(p.buffer(operand).dtype)) + ", BlockTerms::" +
         (terms == BlockTerms::kOffsets     ? "kOffsets>"
          : terms == BlockTerms::kOffsets16 ? "kOffsets16>"
                                            : "kScales16>");
}

// "Name<a, b>".
DeviceVariant type(const std::string& name, const std::vector<std::string>& parameters) {
  std::string text = name + "<";
  for (std::size_t i = 0; i < parameters.size(); ++i) text += (i ? ", " : "") + parameters[i];
  return {text + ">", ""};
}
std::string flag(bool value) { return value ? "true" : "false"; }
// What `out` holds: floats, or parts of x.
std::string stored_type(const PhaseOperands& p, std::size_t out) {
  return element_type(p.parts(out).value_or(DType::kF32));
}

// ---- rows and tokens: bodies/rows.h, bodies/append.h

DeviceVariant embed_name(const PhaseOperands& p) { return type("Embed", {type_of(p, 1), type_of(p, 0)}); }
void fill_embed(const PhaseOperands& p, const InstancePlaces&, Instance& to) {
  const WeightUse& use = p.weight(1);
  const bool panels = use.layout == Layout::kPanels;
  to.embed.width = p.dim(1, panels ? 0 : 1);
  to.embed.rows = p.dim(1, panels ? 1 : 0);
  to.embed.panel = panels ? use.panel : 0;
  to.embed.first = static_cast<Size>(VariantFacts::of(p.variant()).first);
  to.embed.block_rows = use.block;
}

DeviceVariant norm_name(const PhaseOperands& p) {
  return type("Norm", {flag(VariantFacts::of(p.variant()).rms), stored_type(p, 3),
                       std::to_string(std::min(p.program().ranks, kMaxParts))});
}
void fill_norm(const PhaseOperands& p, const InstancePlaces&, Instance& to) {
  to.norm.width = p.last_dim(0);
  to.norm.epsilon = VariantFacts::of(p.variant()).epsilon;
}

DeviceVariant rowwise_name(const PhaseOperands& p) {
  return type("Rowwise", {"rowwise::" + std::string(rowwise::row_of(p.variant().op)->name)});
}
void fill_rowwise(const PhaseOperands& p, const InstancePlaces&, Instance& to) {
  to.rowwise.width = p.last_dim(0);
  to.rowwise.parameter = VariantFacts::of(p.variant()).parameter;
}

DeviceVariant rotary_name(const PhaseOperands& p) {
  return type("Rotary", {flag(VariantFacts::of(p.variant()).interleaved), type_of(p, 3)});
}
AngleSizes angle_sizes(const PhaseOperands& p) { return {p.last_dim(0), p.last_dim(1), p.dim(1, 0)}; }
void fill_rotary(const PhaseOperands& p, const InstancePlaces&, Instance& to) {
  to.rotary.heads = p.one_size(0, 1, p.rank(0) - 1, "the number of heads");
  to.rotary.turned = angle_sizes(p);
}

// The element type of operand `pages`, which holds keys or values.
std::string kv_type_of(const PhaseOperands& p, std::size_t pages) {
  return kv_codec_of(p.buffer(pages).dtype)->device;
}

// Of keys and values at `keys` and the operand behind.
std::string appended_type(const PhaseOperands& p, std::size_t keys) {
  for (const std::size_t pages : {keys, keys + 1})
    if (p.constant_dim(pages, 3) % 4 != 0)
      p.refuse("heads of " + std::to_string(p.constant_dim(pages, 3)) + " elements");
  return kv_type_of(p, keys);
}

DeviceVariant kv_append_name(const PhaseOperands& p) { return type("KvAppend", {appended_type(p, 2)}); }
void fill_kv_append(const PhaseOperands& p, const InstancePlaces&, Instance& to) {
  to.kv_append.heads = p.dim(2, 1);
  to.kv_append.page_size = p.dim(2, 2);
  to.kv_append.dims[kOfKeys] = p.dim(2, 3);
  to.kv_append.dims[kOfValues] = p.dim(3, 3);
}

DeviceVariant rotary_append_name(const PhaseOperands& p) {
  const bool interleaved = VariantFacts::of(p.variant()).interleaved;
  return type("RotaryAppend", {flag(interleaved), type_of(p, 3), appended_type(p, 7)});
}
void fill_rotary_append(const PhaseOperands& p, const InstancePlaces&, Instance& to) {
  to.rotary_append.heads = p.dim(0, 1);
  to.rotary_append.turned = angle_sizes(p);
  to.rotary_append.kv_heads = p.dim(7, 1);
  to.rotary_append.page_size = p.dim(7, 2);
  to.rotary_append.value_dim = p.dim(8, 3);
}

void fill_select_rows(const PhaseOperands& p, const InstancePlaces&, Instance& to) {
  to.select_rows.width = p.one_size(0, 1, p.rank(0), "a row's size");
}

void fill_sample(const PhaseOperands& p, const InstancePlaces&, Instance& to) {
  to.sample.vocabulary = p.last_dim(0);
}

// ---- matrices and attention: bodies/matmul.h, bodies/attention.h

DeviceVariant product_name(const PhaseOperands& p) {
  const int32_t panel = p.weight(1).panel;
  if (panel != 16 && panel != 32 && panel != 64) p.refuse("panels of " + std::to_string(panel) + " columns");
  if (std::ssize(pieces_of(p.variant().recipe, p.weight(1))) - 1 > kMaxPieces)
    p.refuse("more rows than pieces hold");
  const char* path = !part_type(p) ? "kFma" : p.parts(0) ? "kParts" : "kMma";
  DeviceVariant variant = type("MatMul", {type_of(p, 1), std::to_string(panel), path});
  const WeightUse& use = p.weight(1);
  // Codes of which x is in parts are turned, too.
  variant.takes_wide_tiles =
      p.parts(0) &&
      (use.block > 0 ? panel == 64 : has_turned_rows(panel, static_cast<int>(bytes_of(use.stored, 1))));
  return variant;
}
void fill_matmul(const PhaseOperands& p, const InstancePlaces&, Instance& to) {
  to.product.epilogue = static_cast<Size>(p.variant().epilogue);
  to.product.stores_parts = p.parts(4).has_value();
}
void fill_gated_matmul(const PhaseOperands& p, const InstancePlaces& places, Instance& to) {
  const u32 biases = (p.has(2) ? kEpilogueBias : 0U) | (p.has(4) ? kEpilogueResidual : 0U);
  const std::vector<u64>& all = places.operands;  // x, gate, gate_bias, up, up_bias, out
  to.product.x = all[0], to.product.weight = all[1];
  to.product.bias = all[2], to.product.residual = all[4];
  to.product.out = all[5];
  to.product.epilogue = static_cast<Size>(p.variant().epilogue | biases);
  to.product.stores_parts = p.parts(5).has_value();
}

DeviceVariant attention_name(const PhaseOperands& p) {
  const int64_t key = p.constant_dim(1, 3), value = p.constant_dim(2, 3);
  if (key < 0 || value < 0) p.refuse("a size that changes from step to step");
  if (key % 4 != 0 || value % 4 != 0 || key > kLongestHead || value > kLongestHead)
    p.refuse("heads of " + std::to_string(key) + " and " + std::to_string(value) + " elements");
  for (const std::size_t pages : {1, 2}) {  // so that rows of pages lie one behind the other
    const KvFormat& format = kv_codec_of(p.buffer(pages).dtype)->format;
    const int64_t tokens = p.constant_dim(pages, 2), dim = p.constant_dim(pages, 3);
    if (tokens * dim * format.bits % 128 != 0)
      p.refuse("pages of " + std::to_string(tokens) + " tokens of " + std::to_string(dim) + " elements");
  }
  return type("Attention", {kv_type_of(p, 1), std::to_string(key), std::to_string(value), stored_type(p, 5)});
}
void fill_attention(const PhaseOperands& p, const InstancePlaces& places, Instance& to) {
  const VariantFacts facts = VariantFacts::of(p.variant());
  AttentionArguments& own = to.attention;
  own.head_table = places.heads;
  own.partials = places.partials;
  own.arrivals = places.arrivals;
  own.heads = p.dim(0, 1);
  own.kv_heads = p.dim(1, 1);
  own.page_size = p.dim(1, 2);
  own.window = static_cast<Size>(std::min<int64_t>(facts.window, INT32_MAX));
  own.scale = facts.scale;
  own.softcap = facts.softcap;
}

DeviceVariant expert_matmul_name(const PhaseOperands& p) { p.refuse("products with chosen experts"); }

// ---- elements and messages: bodies/pointwise.h, bodies/exchange.h

DeviceVariant pointwise_name(const PhaseOperands& p) { return pointwise_source(p.variant(), p.count() - 1); }
// How input `i` lies in the output.
Placement placement(const PhaseOperands& p, std::size_t i, Size* table) {
  const std::size_t out = p.count() - 1, n = p.rank(i);
  const std::vector<ValId>& dims = p.buffer(i).dims;
  std::size_t ones = 0;
  while (ones < n && p.constant_dim(i, ones) == 1) ++ones;
  if (dims == p.buffer(out).dims) return kLikeOutput;
  if (ones == n) return kOneElement;
  if (ones + 1 >= n && dims.back() == p.buffer(out).dims.back()) return kAlongLastAxis;
  if (p.rank(out) > 4) p.refuse("a broadcast over more than four axes");
  for (std::size_t a = 0; a < n; ++a) table[4 + 4 * i + 3 - a] = p.dim(i, n - 1 - a);
  return kByTable;
}
void fill_pointwise(const PhaseOperands& p, const InstancePlaces& places, Instance& to) {
  const std::size_t out = p.count() - 1, rank = p.rank(out);
  if (out > kMaxInputs) p.refuse("more than " + std::to_string(kMaxInputs) + " inputs of a fused expression");
  p.product(out, 0, rank, to.pointwise.elements);
  to.pointwise.out = places.operands[out];
  to.pointwise.last_axis = p.last_dim(out);
  to.aux = places.aux;
  std::fill_n(places.aux_sizes, kAuxSizes, 1);
  for (std::size_t a = 0; a < std::min<std::size_t>(rank, 4); ++a)
    places.aux_sizes[3 - a] = p.dim(out, rank - 1 - a);
  for (std::size_t i = 0; i < out; ++i) to.pointwise.placements[i] = placement(p, i, places.aux_sizes);
}

// kSendRows, too, whose zeros travel: how many rows are a rank's own is known to the device alone, and requests are
// made before it looks.
DeviceVariant send_name(const PhaseOperands& p) {
  return type("Send", {std::to_string(p.program().ranks - 1)});
}
void fill_send(const PhaseOperands& p, const InstancePlaces&, Instance& to) {
  p.product(0, 0, p.rank(0), to.send.elements);
}

void check_parts(const PhaseOperands& p) {
  if (p.program().ranks > kMaxParts) p.refuse("parts of more than " + std::to_string(kMaxParts) + " ranks");
}
DeviceVariant reduce_name(const PhaseOperands& p) {
  check_parts(p);
  if (p.variant().code == OpCode::kRecvReduce && p.count() != at(p.program().ranks) + 3)
    p.refuse("partial sums of some ranks");
  return type("RecvReduce", {std::to_string(p.program().ranks)});
}
void fill_reduce(const PhaseOperands& p, const InstancePlaces& places, Instance& to) {
  const std::size_t out = p.count() - 1;
  ReduceArguments& reduce = to.reduce;
  check_parts(p);
  reduce.parts[p.program().rank] = places.operands[0];
  reduce.bias = places.operands[out - 2];
  reduce.residual = places.operands[out - 1];
  reduce.out = places.operands[out];
  p.product(out, 0, p.rank(out), reduce.elements);
  reduce.width = p.last_dim(out);
  reduce.epilogue = static_cast<Size>(p.variant().epilogue);
}

void fill_concat(const PhaseOperands& p, const InstancePlaces& places, Instance& to) {
  const auto axis = at(VariantFacts::of(p.variant()).axis);
  const int32_t ranks = p.program().ranks, own = p.program().rank;
  check_parts(p);
  to.concat.parts[own] = places.operands[0];
  to.concat.out = places.operands.back();
  const auto elements = [&](std::size_t i) { return p.one_size(i, axis, p.rank(i), "a part's size"); };
  to.concat.width = elements(p.count() - 1);
  for (int32_t r = 0; r < ranks; ++r)
    to.concat.part_widths[r] = elements(r == own ? 0 : at(r < own ? r + 1 : r));
}

// ---- other operators: parts of rows, bodies/rows.h

DeviceVariant generic_name(const PhaseOperands& p) {
  const Variant& v = p.variant();
  if (v.op != Op::kSplit && v.op != Op::kSlice && v.op != Op::kIdentity)
    p.refuse("operator " + std::string(ark::name_of(v.op)));
  if (bytes_of(p.buffer(0).dtype, 1) != 4) p.refuse("elements that do not have four bytes");
  return type("Copy", {std::to_string(v.outputs)});
}
// Axis and first element of the part that a Slice takes.
std::pair<int64_t, int64_t> slice_of(const PhaseOperands& p) {
  const Attributes& a = p.variant().attributes;
  const std::vector<int64_t>& axes = a.get(key::kAxes);
  if (axes.size() != 1 || a.get(key::kSteps)[0] != 1) p.refuse("a slice of more than one axis");
  const auto first = a.get(key::kStarts)[0].constant();
  if (!first) p.refuse("a size that changes from step to step");
  return {axes[0], *first};
}
void fill_copy(const PhaseOperands& p, const InstancePlaces&, Instance& to) {
  const Variant& v = p.variant();
  const std::size_t rank = p.rank(0), outputs = at(v.outputs);
  if (v.op == Op::kIdentity) {
    p.product(0, 0, rank, to.copy.rows);
    to.copy.width = to.copy.taken[0].width = 1;
    return;
  }
  auto [axis, begin] = v.op == Op::kSlice ? slice_of(p) : std::pair{v.attributes.get(key::kAxis), int64_t{0}};
  if (axis < 0) axis += static_cast<int64_t>(rank);
  const Size inner = p.one_size(0, at(axis) + 1, rank, "a row's size"), width = p.dim(0, at(axis));
  if (inner < 0 || width < 0 || outputs > kMaxOutputs)
    p.refuse("parts of an axis that changes from step to step");
  if (begin < 0) begin += width;
  p.product(0, 0, at(axis), to.copy.rows);
  to.copy.width = width * inner;
  for (std::size_t o = 0; o < outputs; ++o) {
    const Size n = p.dim(p.count() - outputs + o, at(axis));
    to.copy.taken[o] = {static_cast<Size>(begin * inner), n * inner};
    begin += n;
  }
}

constexpr std::array kAll = {
    DeviceOp{OpCode::kGeneric, generic_name, fill_copy},
    DeviceOp{OpCode::kPointwise, pointwise_name, fill_pointwise},
    DeviceOp{OpCode::kEmbed, embed_name, fill_embed},
    DeviceOp{OpCode::kNorm, norm_name, fill_norm},
    DeviceOp{OpCode::kRowwise, rowwise_name, fill_rowwise},
    DeviceOp{OpCode::kMatMul, product_name, fill_matmul},
    DeviceOp{OpCode::kGatedMatMul, product_name, fill_gated_matmul, true},
    DeviceOp{OpCode::kExpertMatMul, expert_matmul_name, nullptr},
    DeviceOp{OpCode::kRotary, rotary_name, fill_rotary},
    DeviceOp{OpCode::kKvAppend, kv_append_name, fill_kv_append},
    DeviceOp{OpCode::kRotaryAppend, rotary_append_name, fill_rotary_append},
    DeviceOp{OpCode::kAttention, attention_name, fill_attention},
    DeviceOp{OpCode::kSelectRows, nullptr, fill_select_rows},
    DeviceOp{OpCode::kSend, send_name, fill_send},
    DeviceOp{OpCode::kRecvReduce, reduce_name, fill_reduce, true},
    DeviceOp{OpCode::kRecvConcat, nullptr, fill_concat, true},
    DeviceOp{OpCode::kSendRows, send_name, fill_send},
    DeviceOp{OpCode::kRecvRows, reduce_name, fill_reduce, true},
    DeviceOp{OpCode::kSample, nullptr, fill_sample},
};

}  // namespace

DeviceVariant appended_variant(const PhaseOperands& append) {
  const bool rotates = append.variant().code == OpCode::kRotaryAppend;
  const char* rotation = !rotates                                         ? "kUnturned"
                         : VariantFacts::of(append.variant()).interleaved ? "kInterleaved"
                                                                          : "kHalves";
  DeviceVariant variant = type("AppendedTile", {rotation, appended_type(append, append.count() - 2)});
  variant.takes_tiles = true;
  return variant;
}

void fill_appended(const PhaseOperands& append, const InstancePlaces& places, const Appended::Part& part,
                   int32_t variant, Instance& to) {
  const std::size_t pages = append.count() - 2;  // keys, then values
  const bool is_kept = part.written >= pages;
  ProductArguments& product = to.product;
  product.tile_use = (part.is_rotated ? kTileRotated : 0) | (is_kept ? kTileAppended : 0);
  product.tile_variant = variant;
  product.dim = append.dim(part.dims, 2);
  product.heads = append.dim(pages, 1);
  product.page_size = append.dim(pages, 2);
  (is_kept ? product.pages : product.out) = places.operands[part.written];
  if (!part.is_rotated) return;
  product.pairs = append.last_dim(1);
  product.length = append.dim(1, 0);
  product.cos = places.operands[1];
  product.sin = places.operands[2];
}

const DeviceOp& device_op(OpCode code) {
  for (const DeviceOp& op : kAll) {
    if (op.code == code) return op;
  }
  throw Error(Code::kUnsupported,
              std::string(ark::name_of(code)) + " has no device code; run with --device cpu");
}

}  // namespace ark::cuda
