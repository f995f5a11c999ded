// Longer than most: a row for each OpCode, and what its checks need.
#include "engine/program/opcodes.h"

#include <algorithm>
#include <bit>
#include <set>

#include "base/error.h"
#include "base/index.h"
#include "base/ir/keys.h"
#include "base/ir/op_attributes.h"
#include "base/ir/pointwise_host.h"
#include "base/ir/rowwise_host.h"
#include "engine/program/exchange_checks.h"
#include "engine/program/phase_view.h"
#include "engine/program/unroll.h"
#include "engine/program/weight_codec.h"

namespace ark {
namespace {

using enum OperandKind;

// ---- what the rows below cannot say

std::string check_pointwise(const PhaseView& p) {
  const std::vector<PointwiseStep>& steps = p.variant().pointwise;
  const std::size_t inputs = p.count() - 1;
  const Shape out = p.shape(inputs);
  for (std::size_t i = 0; i < inputs; ++i) {
    const Shape in = p.shape(i);
    bool fits = in.size() <= out.size();
    for (std::size_t a = 0; fits && a < in.size(); ++a)
      fits = in[a].is_constant(1) || in[a] == out[a + out.size() - in.size()];
    if (!fits) return "an operand does not broadcast to the output";
  }
  std::set<int32_t> loaded;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const PointwiseStep& s = steps[i];
    const auto earlier = [&](int32_t r) { return r >= 0 && r < static_cast<int32_t>(i); };
    const bool none = s.a == kNone && s.b == kNone && s.c == kNone;
    if (s.op == Op::kIdentity) {
      if (!none || s.input < 0 || at(s.input) >= inputs) return "a step loads no operand";
      loaded.insert(s.input);
      continue;
    }
    bool ok = s.input == kNone && s.c == kNone;
    if (const pointwise::Row* row = pointwise::row_of(s.op)) {
      const bool two = pointwise::operands_of(*row) == 2;
      ok &= pointwise::is_fusible(*row) && earlier(s.a) && (two ? earlier(s.b) : s.b == kNone);
    } else {
      ok &= s.op == Op::kConstantOfShape && none;
    }
    if (!ok) return "a step reads a register that is not written yet, or is malformed";
  }
  if (steps.empty() || loaded.size() != inputs) return "loads not each operand";
  return "";
}

std::string check_embed(const PhaseView& p) {
  const WeightUse& w = p.weight(1);
  if (w.layout == Layout::kPanels ? !w.transposed : !codec_of(w.stored)->has_numbers)
    return "rows of the table are not columns of the panels";
  if (p.variant().attributes.get(key::kFirst) != w.ranges[0].begin)
    return "first is not the table's first row";
  return "";
}

std::string check_norm(const PhaseView& p) {
  const int64_t rms = p.variant().attributes.get(key::kRms);
  return (rms == 0 || rms == 1) && p.variant().attributes.get(key::kEpsilon) >= 0 ? "" : "rms or epsilon";
}

// The order of sums over K of a weight.
std::string check_recipe(const PhaseView& p, const WeightUse& w) {
  const std::vector<int32_t>& slabs = p.variant().recipe.slabs;
  if (slabs.size() < 2 || !std::has_single_bit(slabs.size() - 1) || slabs.front() != 0 ||
      !p["K"].is_constant(slabs.back()) || !std::is_sorted(slabs.begin(), slabs.end()))
    return "the recipe's slabs do not cover K";
  const int32_t block = std::max(1, w.block);
  const bool whole =
      std::all_of(slabs.begin() + 1, slabs.end() - 1, [&](int32_t s) { return s % block == 0; });
  return whole ? "" : "a slab begins inside a block of quantized rows";
}
std::string check_matmul(const PhaseView& p) {
  if (!can_multiply(p.variant().precision, p.weight(1)))
    return "its weight's type does not go with its precision";
  return check_recipe(p, p.weight(1));
}
std::string check_gated(const PhaseView& p) {
  if ((p.variant().epilogue & ~uint32_t{kEpilogueActivations}) != 0) return "epilogue";
  if (!are_stored_alike(p.weight(1), p.weight(3))) return "its weights are stored in different ways";
  return check_matmul(p);
}
Expr panels(const PhaseView& p) {
  return Expr((p["N"].constant().value_or(0) + kPanelWidth - 1) / kPanelWidth);
}
Expr matmul_grid(const PhaseView& p) { return ceildiv(p.leading(), kMatMulRows) * panels(p); }

std::string check_experts(const PhaseView& p) {
  const std::size_t experts = p.count() - 3;  // the operand behind the last matrix
  const Shape one{p["T"], p["K"]}, many{p["T"], p["J"], p["K"]};
  if (p.shape(0) != one && p.shape(0) != many) return "its rows are not those of its experts";
  Shape out = many;
  out.back() = p["N"];
  if (p.has(experts + 1)) out.erase(out.begin() + 1);
  if (p.shape(experts + 2) != out) return "its output has another size";
  const WeightUse& first = p.weight(1);
  for (std::size_t i = 2; i < experts; ++i)
    if (!are_stored_alike(p.weight(i), first)) return "its weights are stored in different ways";
  if (!p.has(experts + 1) && p.variant().recipe.slabs.size() != 2)
    return "sums in slabs what is not added up";
  return check_recipe(p, first);
}

std::string check_rotary(const PhaseView& p) {
  const int64_t rotated = p.variant().attributes.get(key::kRotaryDim);
  if (p.variant().attributes.get(key::kHeadAxis) != 1) return "head axis";
  return p["R"].is_constant(rotated / 2) && p["D"].constant().value_or(0) >= rotated / 2 * 2 ? ""
                                                                                             : "rotary size";
}

// Keys and values, at `keys` and the operand behind, are of one cache.
std::string check_pages(const PhaseView& p, std::size_t keys) {
  if (p.buffer(keys).dtype != p.buffer(keys + 1).dtype) return "keys and values of two types";
  return p.buffer(keys).cache == p.buffer(keys + 1).cache ? "" : "pages of two caches";
}

std::string check_rotary_append(const PhaseView& p) {
  const std::string problem = check_rotary(p);
  return problem.empty() ? check_pages(p, 7) : problem;
}

std::string check_attention(const PhaseView& p) {
  const Attributes& a = p.variant().attributes;
  const std::vector<int64_t>& map = a.get(key::kHeadMap);
  const int64_t kv_heads = p["K"].constant().value_or(0);
  if (!p["H"].is_constant(static_cast<int64_t>(map.size())) || !std::is_sorted(map.begin(), map.end()) ||
      !std::all_of(map.begin(), map.end(), [&](int64_t h) { return h >= 0 && h < kv_heads; }))
    return "head_map";
  if (p.variant().precision != Precision::kF32 && p.buffer(1).dtype != DType::kBF16)
    return "its pages' type does not go with its precision";
  if (!(a.get(key::kWindow) >= 0 && a.get(key::kSoftcap) >= 0 && a.get(key::kScale) > 0)) return "attributes";
  return check_pages(p, 1);
}

std::string check_concat(const PhaseView& p) {
  const int64_t axis = p.variant().attributes.get(key::kAxis);
  const Shape own = p.shape(0);
  Shape out = own;
  if (axis < 0 || at(axis) >= out.size()) return "axis";
  for (std::size_t i = 1; i + 1 < p.count(); ++i) {
    Shape part = p.shape(i);
    if (part.size() != out.size()) return "inbox rank";
    out[axis] = out[axis] + part[axis];
    part[axis] = own[axis];
    if (!(part == own)) return "inbox size";
  }
  return p.shape(p.count() - 1) == out ? "" : "output size";
}
Expr concat_grid(const PhaseView& p) {
  const Shape out = p.shape(p.count() - 1);
  const auto axis = at(std::clamp<int64_t>(p.variant().attributes.get(key::kAxis), 0, std::ssize(out)));
  return element_count(Shape(out.begin(), out.begin() + axis));
}

std::string check_sample(const PhaseView& p) {
  return p.id(0) == p.program().logits && p.program().logits != kNone ? "" : "samples what are no logits";
}

Expr rows(const PhaseView& p) { return p.leading(); }
Expr tokens(const PhaseView& p) { return p["T"]; }

// ---- the table, in the order of the enum

const std::vector<OpCodeInfo>& table() {
  static const std::vector<OpCodeInfo> kAll = {
      // Any canonical operator through its kernel: the last `outputs` operands are written.
      {OpCode::kGeneric, "Generic", {{"operands", kAnything, "", kOptional | kMany}}},
      // Inputs broadcast to out as numpy does. Tile: kElementTile consecutive elements of out.
      {.code = OpCode::kPointwise,
       .name = "Pointwise",
       .operands = {{"inputs", kInput, "", kMany}, {"out", kOutput, "...", kWritten}},
       .parts = kHasSteps,
       .grid = [](const PhaseView& p) { return ceildiv(p.leading(), kElementTile); },
       .check = check_pointwise},
      // The table holds rows first, first + 1, ...; other ids give zeros. Packed: row id is column id - first.
      // Tile: one id.
      {.code = OpCode::kEmbed,
       .name = "Embed",
       .operands = {{"ids", kIndices, "..."}, {"table", kTable, "V H"}, {"out", kOutput, "... H", kWritten}},
       .attributes = {key::kFirst},
       .grid = rows,
       .check = check_embed},
      // Over the last axis. Tile: one row.
      {.code = OpCode::kNorm,
       .name = "Norm",
       .operands = {{"x", kInput, "... F"},
                    {"scale", kVector, "F", kOptional},
                    {"bias", kVector, "F", kOptional},
                    {"out", kOutput, "... F", kWritten}},
       .attributes = {key::kRms, key::kEpsilon},
       .grid = rows,
       .check = check_norm},
      // Of an operator of base/ir/rowwise.h, along the last axis. Tile: one row.
      {.code = OpCode::kRowwise,
       .name = "Rowwise",
       .operands = {{"x", kInput, "... F"}, {"out", kOutput, "... F", kWritten}},
       .attributes = {key::kParameter},
       .grid = rows},
      // Tile t: rows block t % blocks of kMatMulRows rows, panel t / blocks, where blocks = ceil(rows / kMatMulRows).
      {.code = OpCode::kMatMul,
       .name = "MatMul",
       .operands = {{"x", kInput, "... K"},
                    {"W", kPanels, "K N"},
                    {"bias", kVector, "N", kOptional},
                    {"residual", kInput, "... N", kOptional},
                    {"out", kOutput, "... N", kWritten}},
       .parts = kHasRecipe | kHasEpilogue,
       .grid = matmul_grid,
       .check = check_matmul},
      // activation(x gate + gate_bias) * (x up + up_bias); both weights are stored in the same way. Tiles as of
      // kMatMul, of both weights.
      {.code = OpCode::kGatedMatMul,
       .name = "GatedMatMul",
       .operands = {{"x", kInput, "... K"},
                    {"gate", kPanels, "K N"},
                    {"gate_bias", kVector, "N", kOptional},
                    {"up", kPanels, "K N"},
                    {"up_bias", kVector, "N", kOptional},
                    {"out", kOutput, "... N", kWritten}},
       .parts = kHasRecipe | kHasEpilogue,
       .grid = matmul_grid,
       .check = check_gated},
      // Op::kExpertMatMul; all weights are stored in the same way. Tile: one panel of every weight.
      {.code = OpCode::kExpertMatMul,
       .name = "ExpertMatMul",
       .operands = {{"x", kInput},
                    {"W", kPanels, "K N", kMany},
                    {"experts", kIndices, "T J"},
                    {"shares", kInput, "T J", kOptional},
                    {"out", kOutput, "", kWritten}},
       .parts = kHasRecipe,
       .grid = panels,
       .check = check_experts},
      // Attributes of Op::kRotary. Tile: one token.
      {.code = OpCode::kRotary,
       .name = "Rotary",
       .operands = {{"x", kInput, "T H D"},
                    {"cos", kVector, "L R"},
                    {"sin", kVector, "L R"},
                    {"positions", kIndices, "T"},
                    {"out", kOutput, "T H D", kWritten}},
       .attributes = {key::kRotaryDim, key::kHeadAxis, key::kInterleaved},
       .grid = tokens,
       .check = check_rotary},
      // Tile: one token.
      {.code = OpCode::kKvAppend,
       .name = "KvAppend",
       .operands = {{"k", kInput, "T K D"},
                    {"v", kInput, "T K E"},
                    {"keys", kKeys, "pages K S D", kWritten},
                    {"values", kValues, "pages K S E", kWritten}},
       .grid = tokens,
       .check = [](const PhaseView& p) { return check_pages(p, 2); }},
      // What kRotary makes of q is out, what it makes of k is appended. Tile t: token t / K, head t % K of keys and
      // values and the t % K-th part of the query heads.
      {.code = OpCode::kRotaryAppend,
       .name = "RotaryAppend",
       .operands = {{"q", kInput, "T H D"},
                    {"cos", kVector, "L R"},
                    {"sin", kVector, "L R"},
                    {"positions", kIndices, "T"},
                    {"k", kInput, "T K D"},
                    {"v", kInput, "T K E"},
                    {"out", kOutput, "T H D", kWritten},
                    {"keys", kKeys, "pages K S D", kWritten},
                    {"values", kValues, "pages K S E", kWritten}},
       .attributes = {key::kRotaryDim, key::kHeadAxis, key::kInterleaved},
       .grid = [](const PhaseView& p) { return p["T"] * p["K"]; },
       .check = check_rotary_append},
      // head_map: local kv head of each local query head. Tile t: item t / K, local kv head t % K.
      {.code = OpCode::kAttention,
       .name = "Attention",
       .operands = {{"q", kInput, "T H D"},
                    {"keys", kKeys, "pages K S D"},
                    {"values", kValues, "pages K S E"},
                    {"slopes", kInput, "H", kOptional},
                    {"sinks", kInput, "H", kOptional},
                    {"out", kOutput, "T H E", kWritten}},
       .attributes = {key::kScale, key::kWindow, key::kSoftcap, key::kHeadMap},
       .grid = [](const PhaseView& p) { return Expr::symbol("items") * p["K"]; },
       .check = check_attention},
      // Tile: one row.
      {.code = OpCode::kSelectRows,
       .name = "SelectRows",
       .operands = {{"x", kInput, "tokens ..."}, {"out", kOutput, "rows ...", kWritten}},
       .grid = [](const PhaseView&) { return Expr::symbol("rows"); }},
      // Copies x into the inbox at the channel's peer, then signals arrival. Tile: kSendTile bytes.
      {.code = OpCode::kSend,
       .name = "Send",
       .operands = {{"x", kInput, "..."}},
       .grid = [](const PhaseView& p) { return ceildiv(p.leading() * 4, kSendTile); },
       .check = check_send},
      // Adds the partials of the own and of the inboxes' ranks, in their order, as a pairwise tree, sum(a, b) =
      // sum(a, m) + sum(m, b) with m = a + ceil((b - a) / 2), then the epilogue as in kMatMul. Tile: kElementTile
      // consecutive elements.
      {.code = OpCode::kRecvReduce,
       .name = "RecvReduce",
       .operands = {{"part", kInput, "... N"},
                    {"inboxes", kInbox, "... N", kMany},
                    {"bias", kVector, "N", kOptional},
                    {"residual", kInput, "... N", kOptional},
                    {"out", kOutput, "... N", kWritten}},
       .parts = kHasEpilogue,
       .grid = [](const PhaseView& p) { return ceildiv(p.leading() * p["N"], kElementTile); },
       .check = check_reduce},
      // All-gather along `axis`; sizes along it may differ and be 0. Tile: one index of the product of out's
      // dims before the axis.
      {.code = OpCode::kRecvConcat,
       .name = "RecvConcat",
       .operands = {{"part", kInput}, {"inboxes", kInbox, "", kMany}, {"out", kOutput, "", kWritten}},
       .attributes = {key::kAxis},
       .grid = concat_grid,
       .check = check_concat},
      // As kSend, but only rows whose token the rank has, one behind the other: `borders` holds the first token of each
      // rank, and the end. A device sends all.
      {.code = OpCode::kSendRows,
       .name = "SendRows",
       .operands = {{"x", kInput, "tokens N"}, {"ids", kIndices, "tokens"}},
       .attributes = {key::kBorders},
       .grid = [](const PhaseView& p) { return ceildiv(Expr::symbol("tokens") * p["N"] * 4, kSendTile); },
       .check = check_send_rows},
      // As kRecvReduce of what kSendRows sends.
      {.code = OpCode::kRecvRows,
       .name = "RecvRows",
       .operands = {{"part", kInput, "tokens N"},
                    {"inboxes", kInbox, "tokens N", kMany},
                    {"ids", kIndices, "tokens"},
                    {"bias", kVector, "N", kOptional},
                    {"residual", kInput, "tokens N", kOptional},
                    {"out", kOutput, "tokens N", kWritten}},
       .attributes = {key::kBorders},
       .parts = kHasEpilogue,
       .grid = [](const PhaseView& p) { return ceildiv(Expr::symbol("tokens") * p["N"], kElementTile); },
       .check = check_recv_rows},
      // Samples, writes results, history, last tokens (which kEmbed may read in the next step); the same on all ranks.
      // Tile: one row.
      {.code = OpCode::kSample,
       .name = "Sample",
       .operands = {{"logits", kInput, "R V"}},
       .grid = [](const PhaseView& p) { return p["R"]; },
       .check = check_sample},
  };
  return kAll;
}

}  // namespace

bool are_stored_alike(const WeightUse& a, const WeightUse& b) {
  return a.stored == b.stored && a.block == b.block && a.terms == b.terms;
}

bool can_multiply(Precision precision, const WeightUse& weight) {
  if (precision == Precision::kBF16 || precision == Precision::kBF16Tiles)
    return weight.stored == DType::kBF16 && weight.block == 0;
  return precision == Precision::kF32 || (is_integer(weight.stored) && weight.block != 0);
}

std::string in_single_quotes(std::string_view name) { return "'" + std::string(name) + "'"; }

const OpCodeInfo& info_of(OpCode code) { return table().at(static_cast<std::size_t>(code)); }
std::span<const OpCodeInfo> all_opcodes() { return table(); }
std::string_view name_of(OpCode code) { return info_of(code).name; }

bool is_written(const Variant& variant, std::size_t index, std::size_t count) {
  if (variant.code == OpCode::kGeneric) return index + at(variant.outputs) >= count;
  // Those behind the operand that there may be many of are counted from the end.
  const std::vector<OperandInfo>& operands = info_of(variant.code).operands;
  const std::size_t behind = count - 1 - index;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].flags & kMany)
      return behind < operands.size() - 1 - i && operands[operands.size() - 1 - behind].flags & kWritten;
    if (i == index) return operands[i].flags & kWritten;
  }
  return false;
}

std::string variant_problem(const Variant& v) {
  const OpCodeInfo& info = info_of(v.code);
  if (!(info.parts & kHasRecipe) && !v.recipe.slabs.empty()) return "has a recipe";
  if (!(info.parts & kHasEpilogue) && v.epilogue != 0) return "has an epilogue";
  if (!(info.parts & kHasSteps) && !v.pointwise.empty()) return "has pointwise steps";
  const bool may_be_short =
      is_product(v.code) || (v.code == OpCode::kAttention && v.precision == Precision::kBF16Tiles);
  if (v.precision != Precision::kF32 && !may_be_short) return "has a precision";
  if (v.epilogue >= 64 || std::popcount(v.epilogue & kEpilogueActivations) > 1) return "epilogue";
  if (v.code == OpCode::kGeneric) return attribute_fault(v.op, v.attributes);
  const bool names_its_own =
      v.code == OpCode::kRowwise ? rowwise::row_of(v.op) != nullptr : v.op == Op::kIdentity;
  if (!names_its_own || v.outputs != 1) return "names an operator";
  for (const auto& [name, value] : v.attributes.values()) {
    const auto is_it = [name = std::string_view(name)](const AttributeInfo& a) { return a.name == name; };
    if (std::none_of(info.attributes.begin(), info.attributes.end(), is_it))
      return "knows no attribute " + in_single_quotes(name);
  }
  for (const AttributeInfo& a : info.attributes) {
    const auto it = v.attributes.values().find(a.name);
    if (it == v.attributes.values().end()) return "has no attribute " + in_single_quotes(a.name);
    if (it->second.index() != a.type) return "attribute " + in_single_quotes(a.name) + " has another type";
  }
  return "";
}

}  // namespace ark
