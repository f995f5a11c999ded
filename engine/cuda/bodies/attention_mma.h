// Longer than most: what lanes hold of keys, values, scores and sums is one layout. Attention on tensor cores
// (bodies/attention.h): sixteen rows at a time, keys and values of 16 bits.
//
// Scores are q K^T, sixteen rows by eight keys a product, so that their fragments are the weights' ones in the product
// with V. A warp's lanes load keys and values into the fragments' registers, 16 bytes each, and nothing goes through
// shared memory: which of a key's elements is which k of a product is free, as long as q has the same order, and so
// is which of a value's elements is which column. q and weights are split into two parts (bodies/parts.h). Those of
// f16 would leave its range: q has each row's largest number at 2^14, weights are taken times 2^15.
//
// Why warps share rows, not keys' rows: one row's bits must be those of a decode step, where all warps have keys of the
// same few rows. Sixteen rows, not 32: a prompt's tile then takes as long for its keys from L2 as for its arithmetic
// (64 KiB a block of keys, 1,560 ns at 42 bytes a nanosecond), and a decode step's rows cost no more than eight would.
#pragma once

#include "engine/cuda/bodies/attention_parts.h"

namespace ark::cuda {

template <class E>
inline constexpr bool kIsF16 = false;
template <>
inline constexpr bool kIsF16<dev::f16> = true;

template <class E, int kKey, int kValue, class X>
struct AttentionByMma : AttentionRows<kValue, X> {
  using Rows = AttentionRows<kValue, X>;
  using Rows::call, Rows::task;
  using Rows::scratch;
  using Target = typename Rows::Target;
  static constexpr int kRows = 16;
  static_assert(kAttentionBlock == kConsumerWarps * 32 && kKey % 8 == 0 && kValue % 8 == 0);

  // A value's elements are taken by parts, whose sums a warp has registers for, and these by chunks; of a chunk the
  // values of 16 or 32 keys are loaded at once, of keys 32 elements.
  static constexpr int kChunk = 64, kPart = kValue < 128 ? kValue : 128;
  static constexpr int kChunks = (kPart + kChunk - 1) / kChunk, kValuesAtOnce = 1;
  static constexpr float kWeights = kIsF16<E> ? 0x1p15f : 1.0f;

  // Scratch of a block. Rows of q: pitch in elements, an odd number of 64 bytes, so that two rows' 64 bytes lie in
  // different banks.
  static constexpr int kPairs = (kKey + 31) / 32, kPitch = (kPairs | 1) * 32;
  static constexpr int kRules = kRows * kPitch;  // in floats from here on
  static constexpr int kTargets = kRules + kRows * 4, kMaxima = kTargets + 2 * kRows * 2,
                       kSums = kMaxima + kConsumerWarps * kRows, kKeyRows = kSums + kConsumerWarps * kRows,
                       kValues = kKeyRows + kConsumerWarps * 32;
  // Fours of each eight elements of a chunk that warps merge at once.
  static constexpr int kFours = (kValues + kConsumerWarps * kRows * kChunk) * 4 <= kRowsScratch ? 2 : 1;
  static constexpr int kPieces = kChunk / 8 * kFours;  // of four floats, of a row
  static_assert((kValues + kConsumerWarps * kRows * kPieces * 4) * 4 <= kRowsScratch);

  ARK_DEVICE explicit AttentionByMma(const Call& c) : Rows(c) {}

  ARK_DEVICE E* queries(int part, int row) const {
    return reinterpret_cast<E*>(scratch(0)) + (part * kRows + row) * kPitch;
  }

  // ---- q: a warp splits two rows

  // Of a row, in scratch.
  struct Rule {
    float factor, slope;  // of scores, of distances
    i32 position;
    u32 reach;  // keys that it sees, its own one the last
  };
  ARK_DEVICE Rule& rule(int row) const { return reinterpret_cast<Rule*>(scratch(kRules))[row]; }
  ARK_DEVICE Target& target(int row) const {
    return reinterpret_cast<Target*>(scratch(kTargets))[task().turn * kRows + row];
  }

  ARK_DEVICE void split_queries(i32 row0, i32 rows) const {
    constexpr int kTurns = (kPairs * 8 + 31) / 32;  // of 32 lanes with four elements
    const i32 window = call.size(call.i.attention.window);
    const float* slopes = at<const float>(call.i.attention.slopes);
    const float* sinks = at<const float>(call.i.attention.sinks);
    Division tokens[2];
    i32 heads[2], places[2];
    const float most = call.i.attention.softcap,
                scale = most > 0 ? call.i.attention.scale / most : call.i.attention.scale;
    float own_slopes[2] = {0, 0}, own_sinks[2] = {-infinity(), -infinity()};
    dev::f32x4 v[2][kTurns];
    ARK_UNROLL
    for (int r = 0; r < 2; ++r)
      tokens[r] = divide(row0 + dev::min(call.b.warp + r * kConsumerWarps, rows - 1), task().group);
    ARK_UNROLL
    for (int r = 0; r < 2; ++r) heads[r] = Rows::head(tokens[r].rest);
    if (slopes != nullptr)
      own_slopes[0] = dev::ld_nc(slopes + heads[0]), own_slopes[1] = dev::ld_nc(slopes + heads[1]);
    if (sinks != nullptr)
      own_sinks[0] = dev::ld_nc(sinks + heads[0]), own_sinks[1] = dev::ld_nc(sinks + heads[1]);
    ARK_UNROLL
    for (int r = 0; r < 2; ++r) {
      places[r] = (task().item.first + tokens[r].quotient) * call.size(call.i.attention.heads) + heads[r];
      const float* from = at<const float>(call.i.attention.q) + static_cast<i64>(places[r]) * kKey;
      ARK_UNROLL
      for (int i = 0; i < kTurns; ++i) {
        const int d = (i * 32 + call.b.lane) * 4;
        v[r][i] = {0, 0, 0, 0};
        if (d < kKey) v[r][i] = dev::ld_global(reinterpret_cast<const dev::f32x4*>(from + d));
      }
    }
    ARK_UNROLL
    for (int r = 0; r < 2; ++r) {
      const i32 row = call.b.warp + r * kConsumerWarps;
      float by = row < rows ? 1.0f : 0.0f, factor = scale;
      if constexpr (kIsF16<E>) {
        float largest = 0;
        ARK_UNROLL
        for (int i = 0; i < kTurns; ++i) {
          const dev::f32x4& q = v[r][i];
          largest = dev::max(dev::max(largest, dev::max(dev::abs(q.x), dev::abs(q.y))),
                             dev::max(dev::abs(q.z), dev::abs(q.w)));
        }
        largest = dev::warp_max(largest);
        // 2^(14 - exponent), a number that is not subnormal; numbers that are not finite stay what they are.
        u32 exponent = dev::as_u32(largest) >> 23;
        exponent = exponent == 255 ? 141 : exponent < 15 ? 15 : exponent;
        by *= dev::as_f32((141 + 127 - exponent) << 23);
        factor *= dev::as_f32((exponent - 141 + 127) << 23);
      }
      const u32 reach = row >= rows ? 0u : window > 0 ? static_cast<u32>(window) : 0x80000000u;
      if (call.b.lane == 0) target(row) = {places[r], own_sinks[r]};
      if (call.b.lane == 0)
        rule(row) = Rule{factor, own_slopes[r], task().item.position + tokens[r].quotient, reach};
      ARK_UNROLL
      for (int i = 0; i < kTurns; ++i) {
        const int d = (i * 32 + call.b.lane) * 4;
        if (d >= kPairs * 32) continue;
        const dev::f32x4 q = {v[r][i].x * by, v[r][i].y * by, v[r][i].z * by, v[r][i].w * by};
        *reinterpret_cast<dev::u32x2*>(queries(0, row) + d) = {dev::pack<E>(q.x, q.y),
                                                               dev::pack<E>(q.z, q.w)};
        *reinterpret_cast<dev::u32x2*>(queries(1, row) + d) = {
            dev::pack<E>(rest_of<E>(q.x), rest_of<E>(q.y)), dev::pack<E>(rest_of<E>(q.z), rest_of<E>(q.w))};
      }
    }
  }

  // ---- a warp's 32 keys

  // Of the lane's own key; behind the last key: that one's, whose weight is 0 then.
  struct Place {
    i32 page, slot;
  };
  ARK_DEVICE Place place_of_key(i32 first, i32 end, bool is_first) const {
    const u32 key = static_cast<u32>(dev::min(first + call.b.lane, end - 1)),
              size = static_cast<u32>(call.size(call.i.attention.page_size)), page = key / size;
    return {Rows::page(static_cast<i32>(page), is_first), static_cast<i32>(key - page * size)};
  }
  // Its row among all rows of pages; a cache has fewer than 2^32.
  ARK_DEVICE u32 row_of_key(const Place& place) const {
    return static_cast<u32>((place.page * call.size(call.i.attention.kv_heads) + task().kv) *
                                call.size(call.i.attention.page_size) +
                            place.slot);
  }
  ARK_DEVICE u32* rows_of_keys() const {
    return reinterpret_cast<u32*>(scratch(kKeyRows)) + call.b.warp * 32;
  }
  // Tells the warp's lanes the row of this one's key.
  ARK_DEVICE void tell(u32 row) const {
    dev::sync_warp();  // the ones before are read
    rows_of_keys()[call.b.lane] = row;
    if (!ARK_BUG(keys_without_sync_warp)) dev::sync_warp();
  }
  template <int kDim>
  ARK_DEVICE static void ask_for(const E* pages, u32 row) {
    const E* from = pages + static_cast<i64>(row) * kDim;
    ARK_UNROLL
    for (int d = 0; d < kDim; d += 64) dev::prefetch(from + d);
  }

  struct Words {  // 16 bytes: eight elements
    u32 of[4];
  };
  ARK_DEVICE static Words load(const E* from) {
    const dev::u32x4 v = dev::ld_global(reinterpret_cast<const dev::u32x4*>(from));
    return {{v.x, v.y, v.z, v.w}};
  }

  // With g = lane / 4, t = lane % 4. Keys: of key 8n + g the elements 8t.. of 32.
  struct Keys {
    Words of[4];
  };
  ARK_DEVICE void load_keys(int from_element, Keys& keys) const {
    const int d = from_element + call.b.lane % 4 * 8;
    const E* from = at<const E>(call.i.attention.keys) + d;
    const u32* rows = rows_of_keys() + call.b.lane / 4;
    const bool is_there = kKey % 32 == 0 || d < kKey;
    ARK_UNROLL
    for (int n = 0; n < 4; ++n)
      keys.of[n] = is_there ? load(from + static_cast<i64>(rows[n * 8]) * kKey) : Words{};
  }
  // Values: of keys 16u + 2t, + 1, + 8, + 9 the elements 8g.. of the chunk, for kKeysAtOnce numbers u.
  struct Values {
    Words of[kValuesAtOnce][4];
  };
  ARK_DEVICE void load_values(int first_u, int from_element, Values& values) const {
    const int d = from_element + call.b.lane / 4 * 8;
    const E* from = at<const E>(call.i.attention.values) + d;
    const u32* rows = rows_of_keys() + call.b.lane % 4 * 2;
    const bool is_there = kValue % kChunk == 0 || d < kValue;
    ARK_UNROLL
    for (int u = 0; u < kValuesAtOnce; ++u) {
      ARK_UNROLL
      for (int i = 0; i < 2; ++i) {
        const auto two = *reinterpret_cast<const dev::u32x2*>(rows + ((first_u + u) * 16 + i * 8));
        values.of[u][2 * i] = is_there ? load(from + static_cast<i64>(two.x) * kValue) : Words{};
        values.of[u][2 * i + 1] = is_there ? load(from + static_cast<i64>(two.y) * kValue) : Words{};
      }
    }
  }

  // A warp's running state; of rows g and g + 8 the columns' sums, of which a value's element 16t + 8i + 4f + j of a
  // chunk is of[chunk][f][0][j][i] (row g + 8: [2 + i]). Sums of weights: of the lane's keys.
  using Sums = float[2][1][4][4];
  struct State {
    float maximum[2], sum[2];
    Sums of[kChunks];
  };
  using Scores = float[1][4][4];  // of keys 8n + 2t and + 1: [0][n]

  ARK_DEVICE void score(const Keys& keys, int from_element, Scores& scores) const {
    const E* own = queries(0, call.b.lane / 4) + call.b.lane % 4 * 8 + from_element;
    ARK_UNROLL
    for (int part = 0; part < 2; ++part) {
      const auto low = *reinterpret_cast<const dev::u32x4*>(own + part * kRows * kPitch);
      const auto high = *reinterpret_cast<const dev::u32x4*>(own + (part * kRows + 8) * kPitch);
      const u32 a[2][1][4] = {{{low.x, high.x, low.y, high.y}}, {{low.z, high.z, low.w, high.w}}};
      ARK_UNROLL
      for (int step = 0; step < 2; ++step) {
        u32 b[4][2];
        ARK_UNROLL
        for (int n = 0; n < 4; ++n) b[n][0] = keys.of[n].of[2 * step], b[n][1] = keys.of[n].of[2 * step + 1];
        dev::mma_tile<E>(scores, a[step], b);
      }
    }
  }

  // A score at a time, through the warp's part of what is merged later: there is one copy of the code.
  ARK_DEVICE void cap(float most, const Rule (&rules)[2], Scores& scores) const {
    float* own = merged_four(call.b.warp, 0, 0) + call.b.lane;
    static_assert(kRows * kPieces * 4 >= 512);
    ARK_UNROLL
    for (int i = 0; i < 16; ++i) own[i * 32] = scores[0][i / 4][i % 4] * rules[i % 4 / 2].factor;
    ARK_ROLLED
    for (int i = 0; i < 16; ++i) own[i * 32] = most * dev::tanh(own[i * 32]);
    ARK_UNROLL
    for (int i = 0; i < 16; ++i) scores[0][i / 4][i % 4] = own[i * 32];
  }

  // Scores -> weights; `key`: the lane's first one. Rescales the state. `has_high`: rows from eight on are there.
  ARK_DEVICE void weigh(bool has_high, i32 key, Scores& scores, State& state) const {
    const float most = call.i.attention.softcap;
    const bool has_slopes = at<const float>(call.i.attention.slopes) != nullptr;
    Rule rules[2] = {rule(call.b.lane / 4), rule(call.b.lane / 4 + 8)};
    if (most > 0) {
      cap(most, rules, scores);
      rules[0].factor = rules[1].factor = 1;
    }
    ARK_UNROLL
    for (int r = 0; r < 2; ++r) {
      if (r == 1 && !has_high) break;
      dev::sync_warp();
      const i32 distance = rules[r].position - key;
      const float before = state.maximum[r];
      float now = before;
      ARK_UNROLL
      for (int i = 0; i < 8; ++i) {
        float& s = scores[0][i / 2][2 * r + i % 2];
        const i32 back = distance - (i / 2 * 8 + i % 2);
        s *= rules[r].factor;
        if (has_slopes) s = dev::fma(rules[r].slope, static_cast<float>(-back), s);
        if (static_cast<u32>(back) >= rules[r].reach) s = -infinity();
        now = dev::max(now, s);
      }
      now = dev::max(now, dev::shfl_xor(now, 1));
      now = dev::max(now, dev::shfl_xor(now, 2));
      const bool none = now == -infinity();  // weights are 0 then, not NaN
      const float factor = none ? 1.0f : dev::exp(before - now), from = none ? 0.0f : now;
      float sum = 0;
      ARK_UNROLL
      for (int i = 0; i < 8; ++i) {
        float& s = scores[0][i / 2][2 * r + i % 2];
        s = dev::exp(s - from);
        sum += s;
        s *= kWeights;
      }
      state.maximum[r] = now;
      state.sum[r] = dev::fma(state.sum[r], factor, sum);
      ARK_UNROLL
      for (int c = 0; c < kChunks; ++c) {
        ARK_UNROLL
        for (int j = 0; j < 8; ++j) {
          float(&of)[4] = state.of[c][j / 4][0][j % 4];
          of[2 * r] *= factor, of[2 * r + 1] *= factor;
        }
      }
    }
  }

  ARK_DEVICE static void add_values(const Values& values, int first_u, const Scores& weights, Sums& sums) {
    ARK_UNROLL
    for (int u = 0; u < kValuesAtOnce; ++u) {
      u32 high[1][4], low[1][4];
      ARK_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* w = weights[0][2 * (first_u + u) + i / 2] + i % 2 * 2;
        high[0][i] = dev::pack<E>(w[0], w[1]);
        const dev::f32x2 two = dev::unpack<E>(high[0][i]);
        low[0][i] = dev::pack<E>(w[0] - two.x, w[1] - two.y);
      }
      ARK_UNROLL
      for (int f = 0; f < 2; ++f) {
        dev::sync_warp();
        u32 b[4][2];
        ARK_UNROLL
        for (int j = 0; j < 4; ++j) {
          const bool is_odd = ARK_BUG(turned_values) ? j % 2 == 0 : j % 2 == 1;
          ARK_UNROLL
          for (int i = 0; i < 2; ++i) {
            const u32 first = values.of[u][2 * i].of[f * 2 + j / 2],
                      second = values.of[u][2 * i + 1].of[f * 2 + j / 2];
            b[j][i] = is_odd ? first >> 16 | (second & 0xffff0000u) : (first & 0xffffu) | second << 16;
          }
        }
        dev::mma_tile<E>(sums[f], high, b);
        dev::mma_tile<E>(sums[f], low, b);
      }
    }
  }

  // The warp's keys of the split.
  ARK_DEVICE void run_warp(i32 row0, i32 rows, int part, State& state) const {
    state = {{-infinity(), -infinity()}, {0, 0}, {}};
    const i32 window = call.size(call.i.attention.window);
    const i32 newest = task().item.position + divide(row0 + rows - 1, task().group).quotient;
    const i32 oldest =
        window > 0 ? task().item.position + divide(row0, task().group).quotient - window + 1 : 0;
    const i32 of_split = split_keys(task().item.position);
    const i32 end = dev::uniform(dev::min((task().split + 1) * of_split, newest + 1));
    i32 first = dev::uniform(first_key(task(), window, call.b.warp, oldest));
    if (first >= end) return;
    tell(row_of_key(place_of_key(first, end, row0 == 0)));
    ARK_ROLLED
    for (;;) {
      // A page is looked up one turn ahead, and what lies there asked for in L2. Nothing is loaded ahead: the registers
      // are not there, and the other warp of the processor's quarter works meanwhile.
      const Place next = place_of_key(first + kAttentionBlock, end, false);
      Scores scores = {};
      ARK_ROLLED
      for (int d = 0; d < kKey; d += 32) {
        Keys keys;
        load_keys(d, keys);
        score(keys, d, scores);
      }
      const u32 next_row = row_of_key(next);
      if (first + kAttentionBlock < end) {
        ask_for<kKey>(at<const E>(call.i.attention.keys), next_row);
        ask_for<kValue>(at<const E>(call.i.attention.values), next_row);
      }
      dev::sync_warp();  // not before: keys are in the registers
      Values values;
      load_values(0, part * kPart, values);
      dev::sync_warp();
      weigh(rows > 8, first + call.b.lane % 4 * 2, scores, state);
      ARK_UNROLL
      for (int c = 0; c < kChunks; ++c) {
        ARK_UNROLL
        for (int u = 0; u < 2; u += kValuesAtOnce) {
          if (c + u > 0) load_values(u, part * kPart + c * kChunk, values);
          dev::sync_warp();
          add_values(values, u, scores, state.of[c]);
        }
      }
      first += kAttentionBlock;
      if (first >= end) break;
      tell(next_row);
    }
  }

  // ---- the warps' states, merged in order

  // Where four elements of a warp's row lie: no two of eight lanes that store or load at once meet in a bank.
  ARK_DEVICE float* merged_four(int warp, int row, int piece) const {
    const int turned = kFours == 2 ? piece ^ (piece >> 2 & 3) ^ (row & 1) << 2 : piece ^ (row & 1);
    return scratch(kValues) + ((warp * kRows + row) * kPieces + turned) * 4;
  }
  // Of each eight elements of a chunk the fours from number `four` on.
  ARK_DEVICE void put(const Sums& sums, int four) const {
    ARK_UNROLL
    for (int r = 0; r < 2; ++r) {
      ARK_UNROLL
      for (int i = 0; i < 2; ++i) {
        ARK_UNROLL
        for (int f = 0; f < kFours; ++f) {
          const float(&of)[4][4] = sums[four + f][0];
          const int piece = (call.b.lane % 4 * 2 + i) * kFours + f, k = 2 * r + i;
          constexpr float by = 1 / kWeights;
          *reinterpret_cast<dev::f32x4*>(merged_four(call.b.warp, call.b.lane / 4 + r * 8, piece)) = {
              of[0][k] * by, of[1][k] * by, of[2][k] * by, of[3][k] * by};
        }
      }
    }
  }
  ARK_DEVICE void merge(i32 rows, int from_element, int four) const {
    ARK_ROLLED
    for (int e = call.b.thread; e < rows * kPieces; e += kConsumers) {
      const int row = e / kPieces, piece = e % kPieces;
      const int d = from_element + (kFours == 2 ? piece : piece * 2 + four) * 4;
      if (d >= kValue) continue;
      RowPart parts[kConsumerWarps];
      ARK_UNROLL
      for (int w = 0; w < kConsumerWarps; ++w) {
        parts[w].maximum = scratch(kMaxima)[w * kRows + row], parts[w].sum = scratch(kSums)[w * kRows + row];
        parts[w].values = *reinterpret_cast<const dev::f32x4*>(merged_four(w, row, piece));
      }
      Rows::hand_in(target(row), d, merged(parts));
    }
  }

  ARK_DEVICE void put_sums(const State& state) const {
    ARK_UNROLL
    for (int r = 0; r < 2; ++r) {
      float sum = state.sum[r];  // of four lanes' keys
      sum += dev::shfl_xor(sum, 1);
      sum += dev::shfl_xor(sum, 2);
      const int own = call.b.warp * kRows + call.b.lane / 4 + r * 8;
      if (call.b.lane % 4 == 0) scratch(kMaxima)[own] = state.maximum[r], scratch(kSums)[own] = sum;
    }
  }

  ARK_DEVICE void run_rows(i32 row0, i32 rows) const {
    dev::sync_warp();
    // Whose targets: those of the rows before may still be read.
    if (call.b.lane == 0 && !ARK_BUG(targets_in_use)) task().turn ^= 1;
    dev::sync_warp();
    split_queries(row0, rows);
    // Behind it nobody reads what is merged, of rows before these, any more.
    if (!ARK_BUG(queries_without_barrier)) consumers_sync();
    ARK_ROLLED
    for (int part = 0; part * kPart < kValue; ++part) {
      if (part > 0) consumers_sync();  // the ones before are merged
      State state;
      run_warp(row0, rows, part, state);
      if (part == 0) put_sums(state);
      ARK_UNROLL
      for (int c = 0; c < kChunks; ++c) {
        ARK_UNROLL
        for (int four = 0; four < 2; four += kFours) {
          if (c + four > 0) consumers_sync();
          put(state.of[c], four);
          if (!ARK_BUG(merged_without_barrier)) consumers_sync();
          merge(rows, part * kPart + c * kChunk, four);
        }
      }
    }
  }
};

}  // namespace ark::cuda
