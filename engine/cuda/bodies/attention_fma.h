// Attention by multiply-adds (bodies/attention.h): four rows at a time.
#pragma once

#include "engine/cuda/bodies/attention_parts.h"

namespace ark::cuda {

// Bytes of queries, scores, maxima, sums and values of that many rows.
ARK_BOTH constexpr int fma_scratch(int rows, int key, int value) {
  return rows * (key + kConsumerWarps * (32 + 2 + value)) * 4;
}

template <class E, int kKey, int kValue, class X>
struct AttentionByFma : AttentionRows<kValue, X> {
  using Rows = AttentionRows<kValue, X>;
  using Rows::call, Rows::task;
  using Rows::scratch, Rows::position_of, Rows::place_of;
  using Type = Kv<E>;
  using Quad = typename Type::Quad;
  using Pack = typename Type::Pack;
  static constexpr int kRows = 4, kPack = Type::kPack, kBits = Type::kFormat.bits;
  static constexpr bool kHasScales = Type::kFormat.largest > 0;
  static constexpr int kPacks = (kValue + 32 * kPack - 1) / (32 * kPack), kValueLanes = kPacks * kPack;
  static_assert(kAttentionBlock == kConsumerWarps * 32 && kKey % 4 == 0);

  // Scratch of a block, in floats.
  static constexpr int kQueries = 0, kScores = kQueries + kRows * kKey;
  static constexpr int kMaxima = kScores + kConsumerWarps * kRows * 32,
                       kSums = kMaxima + kConsumerWarps * kRows;
  static constexpr int kValues = kSums + kConsumerWarps * kRows;
  static_assert(fma_scratch(kRows, kKey, kValue) == (kValues + kConsumerWarps * kRows * kValue) * 4);
  static_assert(fma_scratch(kRows, kLongestHead, kLongestHead) <= rows_scratch(kSmallTiles.scratch) &&
                    fma_scratch(kRows, kLongestHead, kLongestHead) <= rows_scratch(kLargeTiles.scratch),
                "heads of any length, on any GPU");

  ARK_DEVICE explicit AttentionByFma(const Call& c) : Rows(c) {}

  // A warp's running state of kRows rows; lane l holds packs l, l + 32, ... of the values' elements.
  struct State {
    float maximum[kRows], sum[kRows], values[kRows][kValueLanes];
  };
  // The value element that is number i of a lane.
  ARK_DEVICE int element(int i) const { return (i / kPack * 32 + call.b.lane) * kPack + i % kPack; }

  // The lane's own key of 32. Without scales: its row among all rows of pages. With them: the elements before it and
  // before its value, and theirs.
  struct Place {
    i64 key, value;
    float key_scale, value_scale;
  };
  // Elements before the key of a lane, and before its value.
  ARK_DEVICE static i64 before_key(const Place& place, int lane) {
    return dev::shfl(place.key, lane) * (kHasScales ? 1 : kKey);
  }
  ARK_DEVICE static i64 before_value(const Place& place, int lane) {
    return kHasScales ? dev::shfl(place.value, lane) : dev::shfl(place.key, lane) * kValue;
  }

  // Fetched together, at most 32 registers of them: keys by fours, values by packs.
  static constexpr int kKeyQuarters = (kKey + 31) / 32;
  static constexpr int kKeysAhead = kKeyQuarters > 4 ? 1 : kKeyQuarters > 2 ? 2 : kBits < 32 ? 8 : 4;
  static constexpr int kValuesAhead = kPacks > 4 ? 4 : kPacks > 2 || (kPack > 1 && kValueLanes > 2) ? 8 : 16;

  ARK_DEVICE void load_keys(i32 first, const Place& place, i32 keys,
                            Quad (&k)[kKeysAhead][kKeyQuarters]) const {
    ARK_UNROLL
    for (int j = 0; j < kKeysAhead; ++j) {
      const int key = first + j * 4 + call.b.lane / 8;
      const i64 before = before_key(place, key & 31);
      ARK_UNROLL
      for (int n = 0; n < kKeyQuarters; ++n) {
        const int d = n * 32 + call.b.lane % 8 * 4;
        k[j][n] = {};
        if (d < kKey && key < keys)
          k[j][n] =
              dev::ld_global(reinterpret_cast<const Quad*>(at<const E>(call.i.attention.keys) + before + d));
      }
    }
  }

  // scores[row][key] = q . k for 32 keys, without their scales; eight lanes share a key.
  ARK_DEVICE void score(i32 rows, const Place& place, i32 keys, float* scores) const {
    ARK_ROLLED
    for (int first = 0; first < keys; first += 4 * kKeysAhead) {
      Quad k[kKeysAhead][kKeyQuarters];
      load_keys(first, place, keys, k);
      ARK_UNROLL
      for (int j = 0; j < kKeysAhead; ++j) score_four(rows, first + j * 4, k[j], scores);
    }
    dev::sync_warp();
  }

  ARK_DEVICE void score_four(i32 rows, i32 first, const Quad (&quads)[kKeyQuarters], float* scores) const {
    const int part = call.b.lane % 8;
    const float* q = scratch(kQueries);
    dev::f32x4 k[kKeyQuarters];
    ARK_UNROLL
    for (int n = 0; n < kKeyQuarters; ++n) k[n] = Type::widen(quads[n]);
    ARK_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      float sum = 0;
      ARK_UNROLL
      for (int n = 0; n < kKeyQuarters; ++n) {
        const int d = n * 32 + part * 4;
        if (d >= kKey) break;
        const dev::f32x4 v = *reinterpret_cast<const dev::f32x4*>(q + r * kKey + d);
        sum = dev::fma(v.x, k[n].x, dev::fma(v.y, k[n].y, dev::fma(v.z, k[n].z, dev::fma(v.w, k[n].w, sum))));
      }
      sum += dev::shfl_xor(sum, 1);
      sum += dev::shfl_xor(sum, 2);
      sum += dev::shfl_xor(sum, 4);
      if (part == 0) scores[r * 32 + first + call.b.lane / 8] = sum;
    }
  }

  // Scores -> weights, times the values' scales; the lane's key is `key`. Rescales the rows' states.
  ARK_DEVICE void weigh(i32 row0, i32 rows, i32 key, const Place& place, i32 keys, float* scores,
                        State& state) const {
    const i32 window = call.size(call.i.attention.window);
    const float* slopes = at<const float>(call.i.attention.slopes);
    const float cap = call.i.attention.softcap;
    ARK_ROLLED
    for (int r = 0; r < rows; ++r) {
      const i32 position = position_of(row0 + r);
      float s = -infinity();
      if (call.b.lane < keys && key <= position && (window == 0 || key > position - window)) {
        s = scores[r * 32 + call.b.lane];
        if constexpr (kHasScales) s *= place.key_scale;
        s *= call.i.attention.scale;
        if (cap > 0) s = capped(s, cap);
        if (slopes != nullptr) {
          const float slope = dev::ld_nc(slopes + Rows::head((row0 + r) % task().group));
          s = dev::fma(slope, static_cast<float>(key - position), s);
        }
        s *= kLog2OfE;
      }
      scores[r * 32 + call.b.lane] = s;  // the lane's own
    }
    ARK_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      const float s = scores[r * 32 + call.b.lane];
      const float before = state.maximum[r], now = dev::max(before, dev::warp_max(s));
      const bool none = now == -infinity();  // weights are 0 then, not NaN
      const float weight = none ? 0.0f : dev::exp2(s - now), factor = none ? 1.0f : dev::exp2(before - now);
      state.maximum[r] = now;
      state.sum[r] = state.sum[r] * factor + dev::warp_sum(weight);
      scores[r * 32 + call.b.lane] = kHasScales && weight > 0 ? weight * place.value_scale : weight;
      ARK_UNROLL
      for (int c = 0; c < kValueLanes; ++c) state.values[r][c] *= factor;
    }
    dev::sync_warp();
  }

  ARK_DEVICE void add_values(i32 rows, const Place& place, i32 keys, const float* weights,
                             State& state) const {
    constexpr int kAhead = kValuesAhead;  // weights behind the last key are 0
    ARK_ROLLED
    for (int first = 0; first < keys; first += kAhead) {
      Pack v[kAhead][kPacks];
      ARK_UNROLL
      for (int j = 0; j < kAhead; ++j) {
        const E* from = at<const E>(call.i.attention.values) + before_value(place, first + j);
        ARK_UNROLL
        for (int c = 0; c < kPacks; ++c) {
          const int d = element(c * kPack);
          v[j][c] = first + j < keys && d < kValue ? dev::ld_global(reinterpret_cast<const Pack*>(from + d))
                                                   : Pack{};
        }
      }
      ARK_UNROLL
      for (int r = 0; r < kRows; ++r) {
        if (r >= rows) break;
        ARK_UNROLL
        for (int j = 0; j < kAhead; ++j) {
          const float weight = weights[r * 32 + first + j];
          ARK_UNROLL
          for (int c = 0; c < kPacks; ++c) {
            float numbers[kPack];
            Type::widen(v[j][c], numbers);
            ARK_UNROLL
            for (int i = 0; i < kPack; ++i)
              state.values[r][c * kPack + i] = dev::fma(weight, numbers[i], state.values[r][c * kPack + i]);
          }
        }
      }
    }
    dev::sync_warp();  // the next keys' scores overwrite the weights
  }

  // Of the key in `slot` of a page's part of `size` tokens.
  ARK_DEVICE Place place_of_key(i64 part, i32 slot, i32 size) const {
    constexpr KvFormat format = Type::kFormat;
    if constexpr (!kHasScales) return {part * size + slot, 0, 1, 1};
    const i64 key = part * format.head_bytes(size, kKey), value = part * format.head_bytes(size, kValue);
    const auto scale = [slot](const u8* scales) {
      return dev::ld_global(reinterpret_cast<const float*>(scales) + slot);
    };
    static_assert(!kHasScales || sizeof(E) == 1, "bytes are elements");
    return {key + slot * kKey, value + slot * kValue,
            scale(at<const u8>(call.i.attention.keys) + key + format.code_bytes(size, kKey)),
            scale(at<const u8>(call.i.attention.values) + value + format.code_bytes(size, kValue))};
  }

  // The warp's keys of the split.
  ARK_DEVICE void run_warp(i32 row0, i32 rows, State& state) const {
    ARK_UNROLL
    for (int r = 0; r < kRows; ++r) {
      state.maximum[r] = -infinity();
      state.sum[r] = 0;
      ARK_UNROLL
      for (int c = 0; c < kValueLanes; ++c) state.values[r][c] = 0;
    }
    const i32 heads = call.size(call.i.attention.kv_heads), size = call.size(call.i.attention.page_size),
              window = call.size(call.i.attention.window);
    rows = dev::uniform(rows);
    const i32 newest = position_of(row0 + rows - 1);
    const i32 oldest = dev::uniform(window > 0 ? position_of(row0) - window + 1 : 0);
    const i32 of_split = split_keys(task().item.position);
    const i32 begin = dev::uniform(first_key(task(), window, call.b.warp, oldest));
    const i32 end = dev::uniform(dev::min((task().split + 1) * of_split, newest + 1));
    float* scores = scratch(kScores) + call.b.warp * kRows * 32;
    ARK_ROLLED
    for (i32 first = begin; first < end; first += kAttentionBlock) {
      const i32 keys = dev::min(32, end - first), key = first + call.b.lane;
      Place place{};
      if (call.b.lane < keys) {
        const i64 page = Rows::page(key / size, row0 == 0 && first == begin, call.b.warp);
        place = place_of_key(page * heads + task().kv, key % size, size);
      }
      score(rows, place, keys, scores);
      weigh(row0, rows, key, place, keys, scores, state);
      add_values(rows, place, keys, scores, state);
    }
  }

  // Adds up the warps' states of `rows` rows, in order.
  ARK_DEVICE void merge_warps(i32 row0, i32 rows, const State& state) const {
    ARK_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      const int own = call.b.warp * kRows + r;
      if (call.b.lane == 0) scratch(kMaxima)[own] = state.maximum[r], scratch(kSums)[own] = state.sum[r];
      ARK_UNROLL
      for (int c = 0; c < kValueLanes; ++c) {
        const int d = element(c);
        if (d < kValue) scratch(kValues)[own * kValue + d] = state.values[r][c];
      }
    }
    consumers_sync();
    constexpr int kFours = kValue / 4;
    ARK_ROLLED
    for (int e = call.b.thread; e < rows * kFours; e += kConsumers) {
      const int r = e / kFours, d = e % kFours * 4;
      RowPart parts[kConsumerWarps];
      ARK_UNROLL
      for (int w = 0; w < kConsumerWarps; ++w) {
        const int own = w * kRows + r;
        parts[w].maximum = scratch(kMaxima)[own], parts[w].sum = scratch(kSums)[own];
        parts[w].values = *reinterpret_cast<const dev::f32x4*>(scratch(kValues) + own * kValue + d);
      }
      Rows::hand_in(task(), Rows::target_of(row0 + r), d, merged(parts));
    }
    consumers_sync();
  }

  // bodies/attention.h: attend(). Of one tile.
  ARK_DEVICE int attend(int n, int before) const {
    const u32 instance = instance_offset(call);
    const bool has_rows = Rows::open(n);
    ARK_ROLLED
    for (i32 row0 = 0; row0 < task().rows; row0 += kRows) run_rows(row0, dev::min(kRows, task().rows - row0));
    if (!has_rows && !ARK_BUG(idle_without_barrier)) consumers_sync();
    // All are through with the tile before, and see what was opened behind it.
    const int next = before + kTilesAhead;
    if (n > 1) ask_ahead<E, kKey, kValue>(call.b.p, instance, next - 1, next);
    open_further(call.b.p, instance, next, n + kTilesAhead);
    if (has_rows && task().split_count > 1) join_splits<kValue, X>(call.b.p, instance, n, 1);
    return 1;
  }
  ARK_DEVICE void run_rows(i32 row0, i32 count) const {
    ARK_ROLLED
    for (int e = call.b.thread; e < count * kKey; e += kConsumers)
      scratch(kQueries)[e] =
          dev::ld_global(at<const float>(call.i.attention.q) + place_of(row0 + e / kKey) * kKey + e % kKey);
    consumers_sync();
    State state;
    run_warp(row0, count, state);
    merge_warps(row0, count, state);
  }
};

}  // namespace ark::cuda
