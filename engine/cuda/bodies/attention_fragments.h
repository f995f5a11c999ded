// What lanes hold of queries, keys and scores on tensor cores (bodies/attention.h), and rows of q in scratch.
//
// Scores are q K^T, sixteen rows (a strip) by eight keys a product, so that their fragments are the weights' ones in
// the product with V. Which of a key's elements is which k of a product is free, as long as q has the same order. q and
// weights are split into two parts (bodies/parts.h). Those of f16 would leave its range: q has each row's largest
// number at 2^14, weights are taken times 2^15.
#pragma once

#include "engine/cuda/bodies/attention_parts.h"

namespace ark::cuda {

template <class E>
inline constexpr bool kIsF16 = false;
template <>
inline constexpr bool kIsF16<dev::f16> = true;

// Of a tile's rows, kAllRows are in scratch at once.
template <class E, int kKey, int kValue, class X, int kAllRows>
struct AttentionFragments : AttentionRows<kValue, X> {
  using Rows = AttentionRows<kValue, X>;
  using Rows::call, Rows::task, Rows::scratch;
  using Target = typename Rows::Target;
  static constexpr int kRows = kAllRows;
  static constexpr float kWeights = kIsF16<E> ? 0x1p15f : 1.0f;

  // q, by 32 elements. Behind it rules and targets, from what float on.
  static constexpr int kPairs = (kKey + 31) / 32;
  static constexpr int kRules = kRows * kPairs * 32, kTargets = kRules + kRows * 4,
                       kBehindTargets = kTargets + 2 * kRows * 2;

  ARK_DEVICE explicit AttentionFragments(const Call& c) : Rows(c) {}

  // Of q lie together what a lane of tensor cores takes: of row g of a strip and row g + 8 in turn, with g = lane / 4,
  // t = lane % 4, two elements each, 8t + 4 * step and then 8t + 4 * step + 2 of 32. Keys have the same order.
  ARK_DEVICE u32* queries(int part, int strip, int pair, int step, int lane) const {
    const int number = ((part * (kRows / kStripRows) + strip) * kPairs + pair) * 2 + step;
    return reinterpret_cast<u32*>(scratch(0)) + (number * 32 + lane) * 4;
  }

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

  // What is in a row of scratch: a row of an open tile, or zeros where there is none; `row` is one of the tile's, too.
  struct Query {
    int tile;
    i32 row;
    bool is_there;
  };
  // A warp: kCount rows of scratch, kApart from each other, from number `first` on, each as query_of(row) says.
  template <int kCount, int kApart, class QueryOf>
  ARK_DEVICE void split_queries(i32 first, const QueryOf& query_of) const {
    constexpr int kTurns = (kPairs * 8 + 31) / 32;  // of 32 lanes with four elements
    const i32 window = call.size(call.i.attention.window);
    const float* slopes = at<const float>(call.i.attention.slopes);
    const float* sinks = at<const float>(call.i.attention.sinks);
    Query queries_of[kCount];
    Division tokens[kCount];
    i32 heads[kCount], places[kCount];
    const float most = call.i.attention.softcap,
                scale = most > 0 ? call.i.attention.scale / most : call.i.attention.scale * kLog2OfE;
    float own_slopes[kCount], own_sinks[kCount];
    dev::f32x4 v[kCount][kTurns];
    ARK_UNROLL
    for (int r = 0; r < kCount; ++r) {
      queries_of[r] = query_of(first + r * kApart);
      tokens[r] = divide(queries_of[r].row, open_tile(call.b, queries_of[r].tile).task.group);
    }
    ARK_UNROLL
    for (int r = 0; r < kCount; ++r)
      heads[r] = Rows::head_in(open_tile(call.b, queries_of[r].tile), tokens[r].rest);
    ARK_UNROLL
    for (int r = 0; r < kCount; ++r) {
      own_slopes[r] = slopes != nullptr ? dev::ld_nc(slopes + heads[r]) : 0.0f;
      own_sinks[r] = sinks != nullptr ? dev::ld_nc(sinks + heads[r]) : -infinity();
    }
    ARK_UNROLL
    for (int r = 0; r < kCount; ++r) {
      places[r] = (open_tile(call.b, queries_of[r].tile).task.item.first + tokens[r].quotient) *
                      call.size(call.i.attention.heads) +
                  heads[r];
      const float* from = at<const float>(call.i.attention.q) + static_cast<i64>(places[r]) * kKey;
      ARK_UNROLL
      for (int i = 0; i < kTurns; ++i) {
        const int d = (i * 32 + call.b.lane) * 4;
        v[r][i] = {0, 0, 0, 0};
        if (d < kKey) v[r][i] = dev::ld_global(reinterpret_cast<const dev::f32x4*>(from + d));
      }
    }
    ARK_UNROLL
    for (int r = 0; r < kCount; ++r) {
      const i32 row = first + r * kApart;
      const bool is_there = queries_of[r].is_there;
      float by = is_there ? 1.0f : 0.0f, factor = scale;
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
      const u32 reach = !is_there ? 0u : window > 0 ? static_cast<u32>(window) : 0x80000000u;
      if (call.b.lane == 0) target(row) = {places[r], own_sinks[r]};
      if (call.b.lane == 0)
        rule(row) =
            Rule{factor, own_slopes[r] * kLog2OfE,
                 open_tile(call.b, queries_of[r].tile).task.item.position + tokens[r].quotient, reach};
      ARK_UNROLL
      for (int i = 0; i < kTurns; ++i) {
        const int d = (i * 32 + call.b.lane) * 4;
        if (d >= kPairs * 32) continue;
        const dev::f32x4 q = {v[r][i].x * by, v[r][i].y * by, v[r][i].z * by, v[r][i].w * by};
        const int strip = row / kStripRows, lane = row % 8 * 4 + call.b.lane % 8 / 2,
                  turn = row % kStripRows / 8;
        u32* high = queries(0, strip, d / 32, call.b.lane % 2, lane) + turn;
        u32* low = queries(1, strip, d / 32, call.b.lane % 2, lane) + turn;
        high[0] = dev::pack<E>(q.x, q.y), high[2] = dev::pack<E>(q.z, q.w);
        low[0] = dev::pack<E>(rest_of<E>(q.x), rest_of<E>(q.y));
        low[2] = dev::pack<E>(rest_of<E>(q.z), rest_of<E>(q.w));
      }
    }
  }

  // The tiles in the places of those from number `before` to `n`, which all are through with: some warps open them, and
  // behind a barrier all ask for their keys.
  ARK_DEVICE void open_next(int n, int before) const {
    open_further(call.b.p, instance_offset(call), before + kTilesAhead, n + kTilesAhead);
  }
  ARK_DEVICE void ask_for_next(int n, int before) const {
    ask_ahead<E, kKey, kValue>(call.b.p, instance_offset(call), before + kTilesAhead, n + kTilesAhead);
  }

  // ---- keys

  // Of key number `key` of the sequence; `is_first`: it is one of the first keys of warp `warp`.
  struct Place {
    i32 page, slot;
  };
  ARK_DEVICE Place place_of_key(i32 key, bool is_first, int warp) const {
    const u32 size = static_cast<u32>(call.size(call.i.attention.page_size)),
              page = static_cast<u32>(key) / size;
    return {Rows::page(static_cast<i32>(page), is_first, warp), static_cast<i32>(key - page * size)};
  }
  // Its row among all rows of pages; a cache has fewer than 2^32.
  ARK_DEVICE u32 row_of_key(const Place& place) const {
    return static_cast<u32>((place.page * call.size(call.i.attention.kv_heads) + task().kv) *
                                call.size(call.i.attention.page_size) +
                            place.slot);
  }

  struct Words {  // 16 bytes: eight elements
    u32 of[4];
  };
  // Of rows g and g + 8 of a strip and keys 8n + 2t and + 1: [n], with g = lane / 4, t = lane % 4.
  using Scores = float[4][4];

  // Of 32 elements of a strip, and kCount eights of keys from number kFirst on, of whose keys 8n + g lanes have the
  // elements 8t... `apart`: one part's loads at a time; else those of all parts and strips would be under way at once.
  template <int kFirst, int kCount>
  ARK_DEVICE void score(int strip, const Words (&keys)[kCount], int pair, bool apart, Scores& scores) const {
    const u32* own = queries(0, strip, pair, 0, call.b.lane);
    ARK_UNROLL
    for (int part = 0; part < 2; ++part) {
      if (apart) dev::sync_warp();
      ARK_UNROLL
      for (int step = 0; step < 2; ++step) {
        const auto q = *reinterpret_cast<const dev::u32x4*>(own + part * (kRows * kPairs * 16) + step * 128);
        const u32 a[4] = {q.x, q.y, q.z, q.w};
        ARK_UNROLL
        for (int n = 0; n < kCount; ++n) {
          const u32 b[2] = {keys[n].of[2 * step], keys[n].of[2 * step + 1]};
          dev::mma_m16n8k16<E>(scores[kFirst + n], a, b);
        }
      }
    }
  }

  // A score at a time, through 512 floats of the warp's: there is one copy of the code.
  ARK_DEVICE void cap(float most, int row, float* warps, Scores& scores) const {
    float* own = warps + call.b.lane;
    ARK_UNROLL
    for (int i = 0; i < 16; ++i) own[i * 32] = scores[i / 4][i % 4] * rule(row + i % 4 / 2 * 8).factor;
    ARK_ROLLED
    for (int i = 0; i < 16; ++i) own[i * 32] = most * dev::tanh(own[i * 32]);
    ARK_UNROLL
    for (int i = 0; i < 16; ++i) scores[i / 4][i % 4] = own[i * 32];
  }
  static constexpr int kCapped = 512;

  // Of a row of a strip, g + 8r, whose scores become weights; `key`: the lane's first one. `before`: the largest score
  // so far. What sums so far are multiplied by then, and the sum of the lane's weights.
  struct Weighed {
    float maximum, factor, sum;
  };
  ARK_DEVICE Weighed weigh_row(const Rule own, int r, i32 key, float before, Scores& scores) const {
    const float by = call.i.attention.softcap > 0 ? kLog2OfE : own.factor;
    const i32 distance = own.position - key;  // the largest of the lane's; its last key's is 25 less
    const auto of = [&](int i) -> float& { return scores[i / 2][2 * r + i % 2]; };
    const auto back = [&](int i) { return distance - (i / 2 * 8 + i % 2); };
    ARK_UNROLL
    for (int i = 0; i < 8; ++i) of(i) *= by;
    if (at<const float>(call.i.attention.slopes) != nullptr) {
      ARK_UNROLL
      for (int i = 0; i < 8; ++i) of(i) = dev::fma(own.slope, static_cast<float>(-back(i)), of(i));
    }
    if (dev::ballot(static_cast<u32>(distance) >= own.reach || back(7) < 0) != 0) {
      ARK_UNROLL
      for (int i = 0; i < 8; ++i) {
        if (static_cast<u32>(back(i)) >= own.reach) of(i) = -infinity();
      }
    }
    float now = before;
    ARK_UNROLL
    for (int i = 0; i < 8; ++i) now = dev::max(now, of(i));
    now = dev::max(now, dev::shfl_xor(now, 1));
    now = dev::max(now, dev::shfl_xor(now, 2));
    const bool none = now == -infinity();  // weights are 0 then, not NaN
    const float factor = none ? 1.0f : dev::exp2(before - now), from = none ? 0.0f : now;
    float sum = 0;
    ARK_UNROLL
    for (int i = 0; i < 8; ++i) {
      float& s = of(i);
      s = dev::exp2(s - from);
      sum += s;
      s *= kWeights;
    }
    return {now, factor, sum};
  }

  // Weights of sixteen of the keys, from number 16 `u` on, as two parts.
  ARK_DEVICE static void split_weights(const Scores& scores, int u, u32 (&high)[1][4], u32 (&low)[1][4]) {
    ARK_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float* w = scores[2 * u + i / 2] + i % 2 * 2;
      high[0][i] = dev::pack<E>(w[0], w[1]);
      const dev::f32x2 two = dev::unpack<E>(high[0][i]);
      low[0][i] = dev::pack<E>(w[0] - two.x, w[1] - two.y);
    }
  }
};

}  // namespace ark::cuda
