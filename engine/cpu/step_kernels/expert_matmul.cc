// Products of rows with the packed weights that they ask for: rows are sorted by expert, so that each weight is read
// once for all rows of some tokens.
#include <algorithm>

#include "engine/cpu/step_kernel.h"
#include "engine/program/weight_codec.h"

namespace ark {
namespace {

constexpr int64_t kTokens = 128;      // whose rows are sorted together
constexpr int64_t kRows = 64;         // of x that are gathered at a time
constexpr int64_t kPanelsAtOnce = 4;  // that share gathered rows
constexpr int64_t kColumns = kPanelsAtOnce * kPanelWidth;

// The operands, and the sizes of the whole phase.
struct Experts {
  Experts(std::span<const TensorView> operands, const Variant& variant)
      : x(operands[0]),
        weights(operands.subspan(1, operands.size() - 4)),
        experts(operands[operands.size() - 3]),
        shares(operands[operands.size() - 2]),
        out(operands.back()),
        tokens(experts.dims[0]),
        slots(experts.dims[1]),
        k(weights[0].dims[0]),
        n(weights[0].dims[1]),
        slabs(static_cast<int64_t>(variant.recipe.slabs.size()) - 1) {}

  const TensorView& x;
  std::span<const TensorView> weights;
  const TensorView &experts, &shares, &out;
  int64_t tokens, slots, k, n, slabs;

  const float* row(int64_t entry) const {
    return x.as<const float>() + (x.rank == 2 ? entry / slots : entry) * k;
  }
};

// Entries (token * slots + slot) of some tokens by expert: those of expert e are [first[e], first[e + 1]).
struct Order {
  int32_t* first;
  int32_t* entries;

  void sort(const Experts& e, int64_t begin, int64_t end) const {
    const auto count = static_cast<int64_t>(e.weights.size());
    const auto expert = [&](int64_t entry) { return index_at(e.experts, entry); };
    const auto is_there = [&](int64_t entry) { return expert(entry) >= 0 && expert(entry) < count; };
    std::fill(first, first + count + 1, 0);
    for (int64_t i = begin; i < end; ++i)
      if (is_there(i)) ++first[expert(i) + 1];
    for (int64_t i = 0; i < count; ++i) first[i + 1] += first[i];
    for (int64_t i = begin; i < end; ++i)
      if (is_there(i)) entries[first[expert(i)]++] = static_cast<int32_t>(i - begin);
    for (int64_t i = count; i > 0; --i) first[i] = first[i - 1];
    first[0] = 0;
  }
};

struct Room {
  Order order;
  float *gathered, *packed, *products;
  float* sums;  // [slabs, tokens, kColumns] with shares
};

int64_t expert_matmul_scratch(const PhaseLimits& limits) {
  const Experts e(limits.operands, *limits.variant);
  const int64_t tokens = std::min(e.tokens, kTokens), rows = std::min(tokens * e.slots, kRows);
  return scratch_of<int32_t>(std::ssize(e.weights) + 1) + scratch_of<int32_t>(tokens * e.slots) +
         scratch_of<float>(rows * e.k) + scratch_of<float>(simd::packed_room(rows, e.k)) +
         scratch_of<float>(rows * kColumns) +
         (e.shares.present() ? scratch_of<float>(e.slabs * tokens * kColumns) : 0);
}

class Product {
 public:
  Product(const PhaseCall& call)
      : call_(call), e_(call.operands, *call.variant), tokens_(std::min(e_.tokens, kTokens)) {
    const int64_t rows = std::min(tokens_ * e_.slots, kRows);
    room_.order = {call.scratch->take<int32_t>(std::ssize(e_.weights) + 1),
                   call.scratch->take<int32_t>(tokens_ * e_.slots)};
    room_.gathered = call.scratch->take<float>(rows * e_.k);
    room_.packed = call.scratch->take<float>(simd::packed_room(rows, e_.k));
    room_.products = call.scratch->take<float>(rows * kColumns);
    room_.sums = e_.shares.present() ? call.scratch->take<float>(e_.slabs * tokens_ * kColumns) : nullptr;
  }

  void run() {
    for (int64_t token = 0; token < e_.tokens; token += kTokens) {
      const int64_t count = std::min(kTokens, e_.tokens - token);
      room_.order.sort(e_, token * e_.slots, (token + count) * e_.slots);
      for (int64_t panel = call_.first; panel < call_.last; panel += kPanelsAtOnce)
        multiply(token, count, panel, std::min(panel + kPanelsAtOnce, call_.last));
    }
  }

 private:
  // Panels [first, last) of some tokens.
  void multiply(int64_t token, int64_t count, int64_t first, int64_t last) {
    first_ = first * kPanelWidth;
    columns_ = std::min(last * kPanelWidth, e_.n) - first_;
    if (room_.sums) {
      std::fill(room_.sums, room_.sums + e_.slabs * tokens_ * kColumns, 0.F);
    } else {  // slots whose expert is none
      for (int64_t i = token * e_.slots; i < (token + count) * e_.slots; ++i)
        std::fill_n(e_.out.as<float>() + i * e_.n + first_, columns_, 0.F);
    }
    for (int64_t s = 0; s < e_.slabs; ++s)
      for (std::size_t w = 0; w < e_.weights.size(); ++w)
        for (int32_t i = room_.order.first[w]; i < room_.order.first[w + 1]; i += kRows)
          multiply_rows(token, w, s, i, std::min<int32_t>(i + kRows, room_.order.first[w + 1]));
    if (room_.sums) add_slabs(token, count);
  }

  // Entries [begin, end) of the order, which are all of one expert.
  void multiply_rows(int64_t token, std::size_t expert, int64_t slab, int32_t begin, int32_t end) {
    const auto entry = [&](int32_t i) { return token * e_.slots + room_.order.entries[i]; };
    const WeightUse& use = *call_.weight;
    const int64_t panel_bytes = units_of(e_.k, use.block) * codec_of(use.stored)->unit_bytes(use);
    simd::MatMul m;
    m.m = m.last_row = end - begin;
    m.x = m.m == 1 ? e_.row(entry(begin)) : room_.gathered;
    for (int32_t i = begin; i < end && m.m > 1; ++i)
      std::copy_n(e_.row(entry(i)), e_.k, room_.gathered + (i - begin) * e_.k);
    m.k = e_.k;
    m.n = columns_;
    m.w = e_.weights[expert].data + first_ / kPanelWidth * panel_bytes;
    m.stored = use.stored;
    m.panel = use.panel;
    m.block = use.block;
    m.terms = use.terms;
    m.slabs = call_.variant->recipe.slabs.data() + slab;
    m.out = room_.products;
    m.last_panel = (columns_ + kPanelWidth - 1) / kPanelWidth;
    m.packed = room_.packed;
    call_.simd->matmul(m);
    for (int32_t i = begin; i < end; ++i) {
      const float* from = room_.products + (i - begin) * columns_;
      if (room_.sums) {
        float* to = room_.sums + (slab * tokens_ + room_.order.entries[i] / e_.slots) * kColumns;
        const float share = e_.shares.as<const float>()[entry(i)];
        for (int64_t c = 0; c < columns_; ++c) to[c] += share * from[c];
      } else {
        std::copy_n(from, columns_, e_.out.as<float>() + entry(i) * e_.n + first_);
      }
    }
  }

  void add_slabs(int64_t token, int64_t count) {
    const float* parts[64];
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t s = 0; s < e_.slabs; ++s) parts[s] = room_.sums + (s * tokens_ + t) * kColumns;
      call_.simd->add_parts(parts, static_cast<int>(e_.slabs), {},
                            e_.out.as<float>() + (token + t) * e_.n + first_, columns_);
    }
  }

  const PhaseCall& call_;
  const Experts e_;
  const int64_t tokens_;  // that there is room for
  Room room_;
  int64_t first_ = 0, columns_ = 0;  // at hand
};

void run_expert_matmul(const PhaseCall& call) {
  if (call.first < call.last && call.operands.back().dims[0] > 0) Product(call).run();
}

}  // namespace

std::vector<StepKernel> expert_matmul_step_kernels() {
  return {{OpCode::kExpertMatMul, run_expert_matmul, expert_matmul_scratch}};
}

}  // namespace ark
