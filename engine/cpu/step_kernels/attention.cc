// Causal attention over paged keys and values: tile = (item, KV head), all query heads of the group together.
//
// A row's keys are taken in spans of so many by absolute position: online softmax within a span (engine/cpu/simd), then
// spans in ascending order onto what the row has so far, whoever computed them. So a row's result depends on its own
// position only, and processors can share a tile's spans. Each takes a run of spans of equal cost; a tile that
// lies within a run is finished there, of others the spans' parts are left in shared memory for join().
#include <algorithm>
#include <cmath>

#include "engine/cpu/kv_pages.h"
#include "engine/cpu/step_kernel.h"
#include "engine/cpu/step_kernels/four.h"

namespace ark {
namespace {

constexpr int64_t kSpanKeys = 512;                 // about: whole pages
constexpr int64_t kMostShared = int64_t{4} << 20;  // floats

int64_t span_keys(int64_t page_size) { return std::max<int64_t>(1, kSpanKeys / page_size) * page_size; }

bool is_by_tiles(const Variant& variant) { return variant.precision == Precision::kBF16Tiles; }

int64_t group_rows(const VariantFacts& facts, const TensorView& q) {
  return facts.head_map.empty() ? q.dims[1] : static_cast<int64_t>(facts.head_map.size());
}
int64_t most_rows(const VariantFacts& facts, const TensorView& q) {
  return kItemTokens * group_rows(facts, q);
}
int64_t whole_vectors(int64_t n) { return (n + 15) / 16 * 16; }
// Of a row's part of a span: maximum, sum, values.
int64_t part_size(int64_t value_dim) { return value_dim + 2; }

// The first span of a processor's run, as of its tile's item. A tile whose spans are shared has its parts in shared
// memory from `room` on.
struct Border {
  int64_t tile = 0, span = 0;
  bool is_shared = false;
  int64_t room = 0;
};

// Of one processor's scores, and of what else tiles are made of.
int64_t room_of(const Variant& variant, const TensorView& keys, const TensorView& values) {
  return is_by_tiles(variant)
             ? simd::AttentionRows::tile_room(span_keys(keys.dims[2]), keys.dims[3], values.dims[3])
             : simd::AttentionRows::score_room(keys.dims[2]);
}

int64_t attention_scratch(const PhaseLimits& l) {
  const int64_t rows = most_rows(*l.facts, l.operands[0]), value_dim = l.operands[2].dims[3];
  return scratch_of<const float*>(rows) + 2 * scratch_of<int32_t>(rows) + 5 * scratch_of<float>(rows) +
         2 * scratch_of<float>(whole_vectors(rows)) + 2 * scratch_of<float>(rows * value_dim) +
         scratch_of<float>(room_of(*l.variant, l.operands[1], l.operands[2])) +
         scratch_of<Border>(l.processors + 1);
}

// All but one processor's borders can lie inside a tile.
int64_t shared(const PhaseLimits& l) {
  const int64_t rows = most_rows(*l.facts, l.operands[0]),
                spans = l.max_length / span_keys(l.operands[1].dims[2]) + 1;
  return std::min(kMostShared, (l.processors - 1) * spans * rows * part_size(l.operands[2].dims[3]));
}

// One tile's rows: (token of the item, query head of the group).
struct Rows {
  const float** queries;
  int32_t *at, *heads;
  float* slopes;
  float *maxima, *sums, *accumulators;  // of all spans so far
  float *part_maxima, *part_sums, *part_accumulators;
  float *by, *part_by;  // what these are multiplied by
  float* room;
  int64_t count = 0;
};

Rows take_rows(const PhaseCall& call) {
  const int64_t rows = most_rows(*call.facts, call.operands[0]), value_dim = call.operands[2].dims[3];
  Scratch& s = *call.scratch;
  Rows r;
  r.queries = s.take<const float*>(rows);
  for (int32_t** each : {&r.at, &r.heads}) *each = s.take<int32_t>(rows);
  for (float** each : {&r.slopes, &r.maxima, &r.sums, &r.part_maxima, &r.part_sums})
    *each = s.take<float>(rows);
  for (float** each : {&r.by, &r.part_by}) *each = s.take<float>(whole_vectors(rows));
  for (float** each : {&r.accumulators, &r.part_accumulators}) *each = s.take<float>(rows * value_dim);
  r.room = s.take<float>(room_of(*call.variant, call.operands[1], call.operands[2]));
  return r;
}

// What all functions below know of a phase.
struct AttentionPhase {
  explicit AttentionPhase(const PhaseCall& c)
      : call(c),
        keys(c.operands[1], false),
        values(c.operands[2], true),
        window(c.facts->window),
        span(span_keys(keys.size)) {}

  const AttentionItem& item_of(int64_t tile) const {
    return call.frame->items[static_cast<std::size_t>(tile / keys.heads)];
  }
  int64_t oldest(const AttentionItem& item) const {
    return window > 0 ? std::max<int64_t>(0, item.position - window + 1) : 0;
  }
  int64_t first_span(const AttentionItem& item) const { return oldest(item) / span; }
  int64_t last_span(const AttentionItem& item) const { return (item.position + item.count - 1) / span + 1; }
  bool sees(int64_t at, int64_t of_span) const {
    return at >= of_span * span && (window == 0 || at - window + 1 < (of_span + 1) * span);
  }

  const PhaseCall& call;
  KvPages keys, values;
  int64_t window, span;
};

// A sink is a score without a value: it opens the softmax with weight exp(sink - sink) = 1.
void open_rows(const AttentionPhase& phase, int64_t tile, Rows& rows) {
  const PhaseCall& call = phase.call;
  const AttentionItem& item = phase.item_of(tile);
  const TensorView &q = call.operands[0], &slopes = call.operands[3], &sinks = call.operands[4];
  const int64_t heads = q.dims[1], key_dim = q.dims[2], kv_head = tile % phase.keys.heads;
  rows.count = 0;
  for (int32_t i = 0; i < item.count; ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      const auto head = static_cast<std::size_t>(h);
      if ((call.facts->head_map.empty() ? h : call.facts->head_map[head]) != kv_head) continue;
      const int64_t r = rows.count++;
      rows.queries[r] = q.as<const float>() + ((item.first + i) * heads + h) * key_dim;
      rows.at[r] = item.position + i;
      rows.heads[r] = static_cast<int32_t>((item.first + i) * heads + h);
      rows.slopes[r] = slopes.present() ? slopes.as<const float>()[h] : 0.f;
      rows.maxima[r] = sinks.present() ? sinks.as<const float>()[h] : -INFINITY;
      rows.sums[r] = sinks.present() ? 1.f : 0.f;
    }
  }
  std::fill_n(rows.accumulators, rows.count * phase.values.dim, 0.f);
}

void attend_span(const AttentionPhase& phase, int64_t tile, int64_t span, Rows& rows) {
  const AttentionItem& item = phase.item_of(tile);
  const int64_t size = phase.keys.size, kv_head = tile % phase.keys.heads;
  std::fill_n(rows.part_maxima, rows.count, -INFINITY);
  std::fill_n(rows.part_sums, rows.count, 0.f);
  std::fill_n(rows.part_accumulators, rows.count * phase.values.dim, 0.f);
  simd::AttentionRows a{phase.keys.dim,        phase.values.dim,        size,
                        phase.keys.codec.type, phase.call.facts->scale, phase.call.facts->softcap};
  a.window = phase.window;
  a.rows = rows.count;
  a.queries = rows.queries, a.at = rows.at;
  a.slopes = phase.call.operands[3].present() ? rows.slopes : nullptr;
  a.maxima = rows.part_maxima, a.sums = rows.part_sums, a.accumulators = rows.part_accumulators;
  a.room = rows.room;
  a.table = phase.call.state->table(item.slot);
  a.keys = phase.keys.codes(0, kv_head), a.key_stride = phase.keys.codes(1, kv_head) - a.keys;
  a.values = phase.values.codes(0, kv_head), a.value_stride = phase.values.codes(1, kv_head) - a.values;
  a.first_page = std::max(span * phase.span, phase.oldest(item)) / size;
  a.last_page = (std::min<int64_t>((span + 1) * phase.span, item.position + item.count) + size - 1) / size;
  a.span_first = span * phase.span;
  is_by_tiles(*phase.call.variant) ? phase.call.simd->attention_bf16_tiles(a) : phase.call.simd->attention(a);
}

// Adds a span's parts to what the rows have.
void add_span(const AttentionPhase& phase, int64_t span, const float* maxima, const float* sums,
              const float* accumulators, Rows& rows) {
  for (int64_t r = 0; r < rows.count; ++r) {
    const float before = rows.maxima[r], of_span = maxima[r], now = before > of_span ? before : of_span;
    const bool is_open = now != -INFINITY;  // else every score was -infinity, and values weigh 0
    rows.by[r] = is_open ? before - now : 0;
    rows.part_by[r] = is_open ? of_span - now : 0;
    if (phase.sees(rows.at[r], span)) rows.maxima[r] = now;
  }
  phase.call.simd->pointwise(Op::kExp, rows.by, nullptr, 0, 0, rows.by, rows.count);
  phase.call.simd->pointwise(Op::kExp, rows.part_by, nullptr, 0, 0, rows.part_by, rows.count);
  const int64_t dim = phase.values.dim;
  for (int64_t r = 0; r < rows.count; ++r) {
    if (!phase.sees(rows.at[r], span)) continue;
    const float by = rows.by[r], part_by = rows.part_by[r];
    rows.sums[r] = rows.sums[r] * by + sums[r] * part_by;
    float* to = rows.accumulators + r * dim;
    const float* from = accumulators + r * dim;
    int64_t d = 0;
    for (; d + 4 <= dim; d += 4) put(to + d, four_at(to + d) * by + four_at(from + d) * part_by);
    for (; d < dim; ++d) to[d] = to[d] * by + from[d] * part_by;
  }
}

void write_rows(const AttentionPhase& phase, const Rows& rows) {
  const int64_t dim = phase.values.dim;
  for (int64_t r = 0; r < rows.count; ++r) {
    float* to = phase.call.operands[5].as<float>() + rows.heads[r] * dim;
    const float *from = rows.accumulators + r * dim, sum = rows.sums[r];
    int64_t d = 0;
    for (; d + 4 <= dim; d += 4) put(to + d, four_at(from + d) / sum);
    for (; d < dim; ++d) to[d] = from[d] / sum;
  }
}

// What a tile takes beside its keys, in keys: by AMX one of 48 rows takes 4 us, and 0.04 us a key.
constexpr int64_t kTileKeys = 96;
// Cost of a key: its bytes take about as long as four rows' arithmetic.
int64_t key_cost(const AttentionPhase& phase, const AttentionItem& item) {
  return item.count * group_rows(*phase.call.facts, phase.call.operands[0]) / phase.keys.heads + 4;
}

// Where the processors' runs begin, and their end: [processors + 1].
Border* deal(const AttentionPhase& phase) {
  const PhaseCall& call = phase.call;
  const int64_t heads = phase.keys.heads, tiles = call.grid;
  const auto cost = [&](int64_t tile) {
    const AttentionItem& item = phase.item_of(tile);
    return (kTileKeys + item.position + item.count - phase.oldest(item)) * key_cost(phase, item);
  };
  int64_t total = 0, used = 0, before = 0, tile = 0;
  for (int64_t t = 0; t < tiles; t += heads) total += cost(t) * heads;
  Border* const borders = call.scratch->take<Border>(call.processors + 1);
  borders[0] = {};
  borders[call.processors] = {tiles};
  for (int32_t p = 1; p < call.processors; ++p) {
    const int64_t wanted = total / call.processors * p;
    while (tile < tiles && before + cost(tile) <= wanted) before += cost(tile++);
    Border& border = borders[p] = {tile};
    if (tile == tiles) continue;
    const AttentionItem& item = phase.item_of(tile);
    const int64_t key = phase.oldest(item) + (wanted - before) / key_cost(phase, item);
    const int64_t first = phase.first_span(item), last = phase.last_span(item);
    border.span = std::clamp((key + phase.span / 2) / phase.span, first, last);
    if (border.span > first && border.span < last) {
      const bool again = borders[p - 1].is_shared && borders[p - 1].tile == tile;
      const int64_t room = again ? borders[p - 1].room : used;
      const int64_t end = room + (last - first) * item.count * group_rows(*call.facts, call.operands[0]) *
                                     part_size(phase.values.dim);
      border.is_shared = end <= std::ssize(call.shared);
      border.room = room;
      if (border.is_shared) used = end;
    }
    if (!border.is_shared && 2 * border.span >= first + last) ++border.tile;
    border.span = border.is_shared ? border.span : 0;
  }
  return borders;
}

// Of a shared tile's span.
struct KeyPart {
  float *maxima, *sums, *accumulators;
  KeyPart(const AttentionPhase& phase, const Border& tile, int64_t span, int64_t rows) {
    const int64_t before = span - phase.first_span(phase.item_of(tile.tile));
    maxima = phase.call.shared.data() + tile.room + before * rows * part_size(phase.values.dim);
    sums = maxima + rows;
    accumulators = sums + rows;
  }
};

void run_attention(const PhaseCall& call) {
  const AttentionPhase phase(call);
  Rows rows = take_rows(call);
  const Border* const borders = deal(phase);
  const Border &begin = borders[call.processor], &end = borders[call.processor + 1];
  for (int64_t tile = begin.tile; tile < end.tile + (end.is_shared ? 1 : 0); ++tile) {
    const AttentionItem& item = phase.item_of(tile);
    const bool begins = begin.is_shared && tile == begin.tile, ends = end.is_shared && tile == end.tile;
    const int64_t first = begins ? begin.span : phase.first_span(item),
                  last = ends ? end.span : phase.last_span(item);
    open_rows(phase, tile, rows);
    if (rows.count == 0) continue;
    for (int64_t span = first; span < last; ++span) {
      attend_span(phase, tile, span, rows);
      if (begins || ends) {
        const KeyPart part(phase, begins ? begin : end, span, rows.count);
        std::copy_n(rows.part_maxima, rows.count, part.maxima);
        std::copy_n(rows.part_sums, rows.count, part.sums);
        std::copy_n(rows.part_accumulators, rows.count * phase.values.dim, part.accumulators);
      } else {
        add_span(phase, span, rows.part_maxima, rows.part_sums, rows.part_accumulators, rows);
      }
    }
    if (!begins && !ends) write_rows(phase, rows);
  }
}

// Tiles that borders lie in.
void join(const PhaseCall& call) {
  call.scratch->reset();
  const AttentionPhase phase(call);
  Rows rows = take_rows(call);
  const Border* const borders = deal(phase);
  for (int32_t p = 1; p < call.processors; ++p) {
    const Border& border = borders[p];
    if (!border.is_shared || (borders[p - 1].is_shared && borders[p - 1].tile == border.tile)) continue;
    const AttentionItem& item = phase.item_of(border.tile);
    open_rows(phase, border.tile, rows);
    for (int64_t span = phase.first_span(item); span < phase.last_span(item); ++span) {
      const KeyPart part(phase, border, span, rows.count);
      add_span(phase, span, part.maxima, part.sums, part.accumulators, rows);
    }
    write_rows(phase, rows);
  }
}

}  // namespace

std::vector<StepKernel> attention_step_kernels() {
  return {{OpCode::kAttention, run_attention, attention_scratch, true, shared, join}};
}

}  // namespace ark
