// Causal attention over paged keys and values: tile = (item, KV head), all query heads of the group together.
// Pages are merged in ascending order, so that a row's result depends on its own position only.
#include <algorithm>
#include <cmath>

#include "engine/cpu/kv_pages.h"
#include "engine/cpu/step_kernel.h"

namespace ark {
namespace {

int64_t group_rows(const VariantFacts& facts, const TensorView& q) {
  return facts.head_map.empty() ? q.dims[1] : static_cast<int64_t>(facts.head_map.size());
}

int64_t scratch(const PhaseLimits& l) {
  const int64_t rows = kItemTokens * group_rows(*l.facts, l.operands[0]);
  const int64_t value_dim = l.operands[2].dims[3];
  return scratch_of<const float*>(rows) + 3 * scratch_of<float>(rows) + 4 * scratch_of<int32_t>(rows) +
         scratch_of<float>(rows * value_dim) +
         scratch_of<float>(simd::AttentionRows::score_room(l.operands[1].dims[2]));
}

// One tile's rows: (token of the item, query head of the group).
struct Rows {
  const float** queries;
  float *maxima, *sums, *slopes, *accumulators, *scores;
  int32_t *first, *last, *at, *heads;
  int64_t count = 0;
};

Rows take_rows(const PhaseCall& call) {
  const int64_t rows = kItemTokens * group_rows(*call.facts, call.operands[0]);
  Scratch& s = *call.scratch;
  Rows r;
  r.queries = s.take<const float*>(rows);
  r.maxima = s.take<float>(rows);
  r.sums = s.take<float>(rows);
  r.slopes = s.take<float>(rows);
  r.first = s.take<int32_t>(rows);
  r.last = s.take<int32_t>(rows);
  r.at = s.take<int32_t>(rows);
  r.heads = s.take<int32_t>(rows);
  r.accumulators = s.take<float>(rows * call.operands[2].dims[3]);
  r.scores = s.take<float>(simd::AttentionRows::score_room(call.operands[1].dims[2]));
  return r;
}

// A sink is a score without a value: it opens the softmax with weight exp(sink - sink) = 1.
void open_rows(const PhaseCall& call, const AttentionItem& item, int64_t kv_head, Rows& rows) {
  const TensorView &q = call.operands[0], &slopes = call.operands[3], &sinks = call.operands[4];
  const int64_t heads = q.dims[1], key_dim = q.dims[2];
  rows.count = 0;
  for (int32_t i = 0; i < item.count; ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      const auto head = static_cast<std::size_t>(h);
      if ((call.facts->head_map.empty() ? h : call.facts->head_map[head]) != kv_head) continue;
      const int64_t r = rows.count++;
      rows.queries[r] = q.as<const float>() + ((item.first + i) * heads + h) * key_dim;
      rows.maxima[r] = sinks.present() ? sinks.as<const float>()[h] : -INFINITY;
      rows.sums[r] = sinks.present() ? 1.f : 0.f;
      rows.slopes[r] = slopes.present() ? slopes.as<const float>()[h] : 0.f;
      rows.heads[r] = static_cast<int32_t>((item.first + i) * heads + h);
    }
  }
  std::fill_n(rows.accumulators, rows.count * call.operands[2].dims[3], 0.f);
}

void run_tile(const PhaseCall& call, const AttentionItem& item, int64_t kv_head, Rows& rows) {
  const KvPages keys(call.operands[1], false), values(call.operands[2], true);
  const TensorView& out = call.operands[5];
  const int64_t size = keys.size, value_dim = values.dim;
  open_rows(call, item, kv_head, rows);
  if (rows.count == 0) return;
  const int64_t group = rows.count / item.count, window = call.facts->window;
  const int64_t oldest = window > 0 ? std::max<int64_t>(0, item.position - window + 1) : 0;
  simd::AttentionRows a{keys.dim, value_dim, size, keys.codec.type, call.facts->scale, call.facts->softcap};
  a.rows = rows.count;
  a.queries = rows.queries;
  a.maxima = rows.maxima, a.sums = rows.sums, a.accumulators = rows.accumulators, a.scores = rows.scores;
  a.first = rows.first, a.last = rows.last, a.at = rows.at;
  a.slopes = call.operands[3].present() ? rows.slopes : nullptr;
  const int64_t pages = (item.position + item.count + size - 1) / size;
  for (int64_t page = oldest / size; page < pages; page += a.pages) {
    for (int64_t r = 0; r < rows.count; ++r) {
      const int64_t own = item.position + r / group - page * size;
      rows.first[r] =
          static_cast<int32_t>(window > 0 ? std::max<int64_t>(own - window + 1, -page * size) : -page * size);
      rows.last[r] = static_cast<int32_t>(own + 1);
      rows.at[r] = static_cast<int32_t>(own);
    }
    a.pages = std::min<int64_t>(simd::AttentionRows::kPages, pages - page);
    for (int64_t p = 0; p < a.pages; ++p) {
      const int64_t place = call.state->table(item.slot)[page + p];
      a.keys[p] = keys.codes(place, kv_head);
      a.values[p] = values.codes(place, kv_head);
    }
    call.simd->attention(a);
  }
  for (int64_t r = 0; r < rows.count; ++r) {
    float* to = out.as<float>() + rows.heads[r] * value_dim;
    for (int64_t d = 0; d < value_dim; ++d) to[d] = rows.accumulators[r * value_dim + d] / rows.sums[r];
  }
}

// Tiles are dealt in turn: later items of a prompt see more keys than earlier ones.
void run(const PhaseCall& call) {
  if (call.processor >= call.grid) return;
  const int64_t kv_heads = call.operands[1].dims[1];
  Rows rows = take_rows(call);
  for (int64_t t = call.processor; t < call.grid; t += call.processors) {
    run_tile(call, call.frame->items[t / kv_heads], t % kv_heads, rows);
  }
}

}  // namespace

std::vector<StepKernel> attention_step_kernels() { return {{OpCode::kAttention, run, scratch, true}}; }

}  // namespace ark
