// Operands, types, sizes, grids and parameters of each OpCode, as program.h states them.
#include <algorithm>
#include <bit>
#include <functional>
#include <set>

#include "base/error.h"
#include "base/index.h"
#include "base/ir/keys.h"
#include "base/ir/pointwise_host.h"
#include "engine/lower/lowering.h"
#include "engine/program/text.h"
#include "engine/program/unroll.h"
#include "engine/program/weight_codec.h"
#include "engine/validate/generic_shapes.h"
#include "engine/validate/validate.h"

namespace ark::validation {
namespace {

bool is_index(DType t) { return t == DType::kI32 || t == DType::kI64; }

// One phase in one trip.
class PhaseCheck {
 public:
  PhaseCheck(const Program& p, std::size_t index, int32_t trip, Report& report)
      : p_(p),
        phase_(p.phases[index]),
        v_(p.variants[phase_.variant]),
        report_(report),
        place_("phase " + std::to_string(index) + " (" + std::string(name_of(v_.code)) + ", trip " +
               std::to_string(trip) + ")") {
    for (const Operand& o : phase_.operands) operands_.push_back(resolve(p, phase_, o, trip));
  }

  void run() {
    try {
      dispatch();
    } catch (const Error& e) {  // attributes that are absent
      require(false, e.what());
    }
  }

 private:
  bool require(bool ok, const std::string& what) { return report_.check(ok, place_, what); }

  std::size_t count() const { return operands_.size(); }
  bool has(std::size_t i) const { return operands_[i] != kNone; }
  const Buffer& buffer(std::size_t i) const { return p_.buffers[operands_[i]]; }
  Shape shape(std::size_t i) const { return sizes(p_, operands_[i]); }
  bool is_kind(std::size_t i, BufferKind kind) const { return has(i) && buffer(i).kind == kind; }
  // Something that phases compute, or the host brings.
  bool is_data(std::size_t i, DType type = DType::kF32) const {
    return has(i) && buffer(i).dtype == type && buffer(i).kind != BufferKind::kKvPage &&
           buffer(i).kind != BufferKind::kInbox && !is_panels(i);
  }
  bool is_panels(std::size_t i) const {
    return is_kind(i, BufferKind::kWeight) && p_.weights[buffer(i).weight].layout == Layout::kPanels;
  }
  bool is_raw(std::size_t i) const { return is_kind(i, BufferKind::kWeight) && !is_panels(i); }
  bool is_output(std::size_t i, DType type = DType::kF32) const {
    if (!has(i) || buffer(i).dtype != type || buffer(i).alias != kNone) return false;
    return buffer(i).kind == BufferKind::kAct || buffer(i).kind == BufferKind::kOutput ||
           operands_[i] == p_.logits;
  }
  static Expr rows(const Shape& s) {
    return s.empty() ? Expr(1) : element_count(Shape(s.begin(), s.end() - 1));
  }
  void grid(const Expr& tiles) {
    require(phase_.grid != kNone && p_.vals[phase_.grid].e == tiles, "its grid is not " + tiles.str());
  }
  bool operands(std::size_t n) { return require(count() == n, "needs " + std::to_string(n) + " operands"); }
  void parameters(bool recipe, bool epilogue, bool attributes, bool pointwise) {
    require(recipe || v_.recipe.slabs.empty(), "has a recipe");
    require(epilogue || v_.epilogue == 0, "has an epilogue");
    require(attributes || v_.attributes.values().empty(), "has attributes");
    require(pointwise || v_.pointwise.empty(), "has pointwise steps");
    require(v_.code == OpCode::kGeneric || (v_.op == Op::kIdentity && v_.outputs == 1), "names an operator");
  }

  void dispatch() {
    switch (v_.code) {
      case OpCode::kGeneric:
        return generic();
      case OpCode::kPointwise:
        return pointwise();
      case OpCode::kEmbed:
        return embed();
      case OpCode::kNorm:
        return norm();
      case OpCode::kMatMul:
        return matmul();
      case OpCode::kRotary:
        return rotary();
      case OpCode::kKvAppend:
        return kv_append();
      case OpCode::kAttention:
        return attention();
      case OpCode::kSelectRows:
        return select_rows();
      case OpCode::kSend:
        return send();
      case OpCode::kRecvReduce:
        return recv_reduce();
      case OpCode::kRecvConcat:
        return recv_concat();
      case OpCode::kSample:
        return sample();
    }
    require(false, "unknown OpCode");
  }

  void generic() {
    parameters(false, false, true, false);
    if (!require(v_.outputs >= 1 && at(v_.outputs) <= count(), "number of outputs")) return;
    const std::size_t inputs = count() - at(v_.outputs);
    std::vector<GenericOperand> values;
    for (std::size_t i = 0; i < count(); ++i) {
      values.push_back(has(i) ? GenericOperand{buffer(i).dtype, shape(i)} : GenericOperand{});
      if (!has(i)) continue;
      if (i < inputs)
        require(is_data(i, buffer(i).dtype), "reads what is no dense tensor");
      else
        require(is_output(i, buffer(i).dtype), "writes what it may not");
    }
    require(phase_.grid == kNone, "a kernel's grid is its own");
    SymbolValues most;
    for (const Val& v : p_.vals) {
      std::set<std::string> symbols;
      v.e.collect_symbols(symbols);
      for (const std::string& s : symbols) {
        if (v.e == Expr::symbol(s)) most[s] = v.max;
      }
    }
    const std::string problem = check_generic(v_.op, v_.attributes, {values.data(), inputs},
                                              {values.data() + inputs, at(v_.outputs)}, most);
    require(problem.empty(), problem);
  }

  void pointwise() {
    parameters(false, false, false, true);
    if (!require(count() >= 1 && !v_.pointwise.empty() && is_output(count() - 1), "operands or steps"))
      return;
    const Shape out = shape(count() - 1);
    for (std::size_t i = 0; i + 1 < count(); ++i) {
      if (require(is_data(i), "reads what is no dense f32"))
        require(broadcasts(shape(i), out), "an operand does not broadcast to the output");
    }
    std::set<int32_t> loaded;
    for (std::size_t i = 0; i < v_.pointwise.size(); ++i)
      step(v_.pointwise[i], static_cast<int32_t>(i), loaded);
    require(loaded.size() + 1 == count(), "loads not each operand");
    grid(ceildiv(element_count(out), kElementTile));
  }
  void step(const PointwiseStep& s, int32_t index, std::set<int32_t>& loaded) {
    const auto earlier = [&](int32_t r) { return r >= 0 && r < index; };
    const bool none = s.a == kNone && s.b == kNone && s.c == kNone;
    if (s.op == Op::kIdentity) {
      require(none && s.input >= 0 && at(s.input) + 1 < count(), "a step loads no operand");
      loaded.insert(s.input);
      return;
    }
    bool ok = s.input == kNone && s.c == kNone;
    if (const pointwise::Row* row = pointwise::row_of(s.op)) {
      const bool two = pointwise::operands_of(*row) == 2;
      ok &= pointwise::is_fusible(*row) && earlier(s.a) && (two ? earlier(s.b) : s.b == kNone);
    } else {
      ok &= s.op == Op::kConstantOfShape && none;
    }
    require(ok, "a step reads a register that is not written yet, or is malformed");
  }
  static bool broadcasts(const Shape& in, const Shape& out) {
    if (in.size() > out.size()) return false;
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (!in[i].is_constant(1) && !(in[i] == out[i + out.size() - in.size()])) return false;
    }
    return true;
  }

  void embed() {
    parameters(false, false, true, false);
    if (!operands(3)) return;
    if (!require(has(0) && is_index(buffer(0).dtype) && is_data(0, buffer(0).dtype), "ids are no integers"))
      return;
    const WeightCodec* codec = has(1) ? codec_of(buffer(1).dtype) : nullptr;
    if (!require(is_kind(1, BufferKind::kWeight) && codec && shape(1).size() == 2, "no table")) return;
    if (!require(is_output(2), "output")) return;
    const WeightUse& w = p_.weights[buffer(1).weight];
    require(w.layout == Layout::kPanels ? w.transposed : codec->has_numbers,
            "rows of the table are not columns of the panels");
    require(v_.attributes.get(key::kFirst) == w.ranges[0].begin, "first is not the table's first row");
    Shape out = shape(0);
    out.push_back(shape(1)[w.layout == Layout::kRaw ? 1 : 0]);
    require(shape(2) == out, "output size");
    grid(element_count(shape(0)));
  }

  void norm() {
    parameters(false, false, true, false);
    if (!operands(4) || !require(is_data(0) && is_output(3) && !shape(0).empty(), "input or output")) return;
    const int64_t rms = v_.attributes.get(key::kRms);
    require((rms == 0 || rms == 1) && v_.attributes.get(key::kEpsilon) >= 0, "rms or epsilon");
    for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
      if (has(i))
        require(is_raw(i) && buffer(i).dtype == DType::kF32 && shape(i) == Shape{shape(0).back()},
                "scale or bias");
    }
    require(shape(3) == shape(0), "output size");
    grid(rows(shape(0)));
  }

  // Bias and residual are there when the epilogue says so.
  void epilogue(std::size_t bias, std::size_t residual, std::size_t out) {
    constexpr uint32_t kActivations = kEpilogueRelu | kEpilogueSilu | kEpilogueGelu | kEpilogueGeluTanh;
    require(v_.epilogue < 64 && std::popcount(v_.epilogue & kActivations) <= 1, "epilogue");
    require(has(bias) == ((v_.epilogue & kEpilogueBias) != 0), "bias does not fit the epilogue");
    require(has(residual) == ((v_.epilogue & kEpilogueResidual) != 0), "residual does not fit the epilogue");
    if (has(bias))
      require(is_raw(bias) && buffer(bias).dtype == DType::kF32 && shape(bias) == Shape{shape(out).back()},
              "bias size");
    if (has(residual)) require(is_data(residual) && shape(residual) == shape(out), "residual size");
  }

  void matmul() {
    parameters(true, true, false, false);
    if (!operands(5) || !require(is_data(0) && is_panels(1) && is_output(4), "x, W or output")) return;
    Shape out = shape(0);
    const Shape w = shape(1);
    if (!require(!out.empty() && w.size() == 2 && out.back() == w[0], "K of x and W differ")) return;
    out.back() = w[1];
    require(shape(4) == out, "output size");
    epilogue(2, 3, 4);
    const std::vector<int32_t>& slabs = v_.recipe.slabs;
    require(slabs.size() >= 2 && std::has_single_bit(slabs.size() - 1) && slabs.front() == 0 &&
                w[0].is_constant(slabs.back()) && std::is_sorted(slabs.begin(), slabs.end()),
            "the recipe's slabs do not cover K");
    const int32_t block = std::max(1, p_.weights[buffer(1).weight].block);
    for (std::size_t s = 1; s + 1 < slabs.size(); ++s)
      require(slabs[s] % block == 0, "a slab begins inside a block of quantized rows");
    const int64_t panels = (w[1].constant().value_or(0) + panel_width() - 1) / panel_width();
    grid(ceildiv(rows(out), kMatMulRows) * Expr(panels));
  }

  void rotary() {
    parameters(false, false, true, false);
    if (!operands(5) || !require(is_data(0) && is_output(4) && shape(0).size() == 3, "x or output")) return;
    const int64_t pairs = v_.attributes.get(key::kRotaryDim) / 2;
    require(v_.attributes.get(key::kHeadAxis) == 1, "head axis");
    for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
      require(is_raw(i) && buffer(i).dtype == DType::kF32 && shape(i).size() == 2 &&
                  shape(i)[1].is_constant(pairs),
              "cos or sin");
    }
    require(shape(1) == shape(2) && shape(0)[2].constant().value_or(0) >= 2 * pairs, "rotary size");
    require(
        has(3) && is_index(buffer(3).dtype) && is_data(3, buffer(3).dtype) && shape(3) == Shape{shape(0)[0]},
        "positions");
    require(shape(4) == shape(0), "output size");
    grid(shape(0)[0]);
  }

  // Pages of `heads` heads of `dim` elements.
  bool is_pages(std::size_t i, bool values, const Expr& heads, const Expr& dim) const {
    return is_kind(i, BufferKind::kKvPage) && buffer(i).is_value == values &&
           buffer(i).dtype == DType::kF32 && shape(i)[0] == Expr::symbol("pages") && shape(i)[1] == heads &&
           shape(i)[3] == dim;
  }
  bool is_pair(std::size_t keys, std::size_t values) const {
    return buffer(keys).cache == buffer(values).cache && shape(keys)[2] == shape(values)[2];
  }

  void kv_append() {
    parameters(false, false, false, false);
    if (!operands(4) ||
        !require(is_data(0) && is_data(1) && shape(0).size() == 3 && shape(1).size() == 3, "keys or values"))
      return;
    const Shape k = shape(0), v = shape(1);
    require(k[0] == v[0] && k[1] == v[1], "keys and values differ in tokens or heads");
    if (require(is_pages(2, false, k[1], k[2]) && is_pages(3, true, v[1], v[2]), "pages"))
      require(is_pair(2, 3), "pages of two caches");
    grid(k[0]);
  }

  void attention() {
    parameters(false, false, true, false);
    if (!operands(6) || !require(is_data(0) && is_output(5) && shape(0).size() == 3, "q or output")) return;
    const Shape q = shape(0);
    if (!require(is_kind(1, BufferKind::kKvPage) && is_kind(2, BufferKind::kKvPage), "pages")) return;
    const Expr heads = shape(1)[1], value_dim = shape(2)[3];
    if (require(is_pages(1, false, heads, q[2]) && is_pages(2, true, heads, value_dim), "pages"))
      require(is_pair(1, 2), "pages of two caches");
    for (const std::size_t i : {std::size_t{3}, std::size_t{4}}) {
      if (has(i)) require(is_data(i) && shape(i) == Shape{q[1]}, "slopes or sinks");
    }
    const std::vector<int64_t>& map = v_.attributes.get(key::kHeadMap);
    const int64_t kv_heads = heads.constant().value_or(0);
    require(q[1].is_constant(static_cast<int64_t>(map.size())) && std::is_sorted(map.begin(), map.end()) &&
                std::all_of(map.begin(), map.end(), [&](int64_t h) { return h >= 0 && h < kv_heads; }),
            "head_map");
    require(v_.attributes.get(key::kWindow) >= 0 && v_.attributes.get(key::kSoftcap) >= 0 &&
                v_.attributes.get(key::kScale) > 0,
            "attributes");
    require(shape(5) == Shape({q[0], q[1], value_dim}), "output size");
    grid(Expr::symbol("items") * heads);
  }

  void select_rows() {
    parameters(false, false, false, false);
    if (!operands(2) || !require(is_data(0) && is_output(1) && !shape(0).empty(), "x or output")) return;
    Shape out = shape(0);
    out[0] = Expr::symbol("rows");
    require(shape(0)[0] == Expr::symbol("tokens") && shape(1) == out, "sizes");
    grid(out[0]);
  }

  void send() {
    parameters(false, false, false, false);
    if (!operands(1) || !require(is_data(0) && !is_raw(0), "sends no activation")) return;
    require(max_bytes(p_, operands_[0]) <= p_.channels[phase_.channel].bytes,
            "message larger than its channel");
    grid(ceildiv(element_count(shape(0)) * 4, kSendTile));
  }

  // Operands 1 .. ranks - 1 are the inboxes of all peers, in rank order.
  bool inboxes() {
    std::size_t i = 1;
    for (int32_t peer = 0; peer < p_.ranks; ++peer) {
      if (peer == p_.rank) continue;
      const bool ok = is_kind(i, BufferKind::kInbox) && buffer(i).dtype == DType::kF32 &&
                      p_.channels[buffer(i).channel].peer == peer;
      if (!require(ok, "inbox of rank " + std::to_string(peer))) return false;
      ++i;
    }
    return true;
  }

  void recv_reduce() {
    parameters(false, true, false, false);
    const auto ranks = at(p_.ranks);
    if (!operands(ranks + 3) || !require(is_data(0) && is_output(ranks + 2), "own part or output") ||
        !inboxes())
      return;
    for (std::size_t i = 1; i < ranks; ++i) require(shape(i) == shape(0), "inbox size");
    require(shape(ranks + 2) == shape(0), "output size");
    epilogue(ranks, ranks + 1, ranks + 2);
    grid(ceildiv(element_count(shape(0)), kElementTile));
  }

  void recv_concat() {
    parameters(false, false, true, false);
    const auto ranks = at(p_.ranks);
    if (!operands(ranks + 1) || !require(is_data(0) && is_output(ranks), "own part or output") || !inboxes())
      return;
    const int64_t axis = v_.attributes.get(key::kAxis);
    Shape out = shape(0);
    if (!require(axis >= 0 && at(axis) < out.size(), "axis")) return;
    for (std::size_t i = 1; i < ranks; ++i) {
      Shape part = shape(i);
      if (!require(part.size() == out.size(), "inbox rank")) return;
      out[axis] = out[axis] + part[axis];
      part[axis] = shape(0)[axis];
      require(part == shape(0), "inbox size");
    }
    require(shape(ranks) == out, "output size");
    grid(element_count(Shape(out.begin(), out.begin() + axis)));
  }

  void sample() {
    parameters(false, false, false, false);
    if (!operands(1) ||
        !require(operands_[0] == p_.logits && p_.logits != kNone, "samples what are no logits"))
      return;
    grid(shape(0)[0]);
  }

  const Program& p_;
  const Phase& phase_;
  const Variant& v_;
  Report& report_;
  const std::string place_;
  std::vector<BufferId> operands_;
};

}  // namespace

void check_phases(const Program& program, Report& report) {
  for (std::size_t i = 0; i < program.phases.size(); ++i) {
    const int32_t repeat = program.phases[i].repeat;
    const int32_t trips = repeat == kNone ? 1 : program.repeats[repeat].trips;
    for (int32_t trip = 0; trip < trips; ++trip) PhaseCheck(program, i, trip, report).run();
  }
}

}  // namespace ark::validation
