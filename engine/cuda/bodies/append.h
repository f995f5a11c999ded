// What comes between products and attention: positions for queries and keys, then keys and values into their pages.
#pragma once

#include "engine/cuda/bodies/finished_tile.h"
#include "engine/cuda/bodies/kv.h"
#include "engine/cuda/bodies/math.h"

namespace ark::cuda {

// A token's angles, and pairs that they rotate (arXiv:2104.09864).
template <bool kInterleaved, class Index>
struct Angles {
  const float *cos, *sin;
  i32 dim, half;
  ARK_DEVICE Angles(const Call& call, const AngleTables& tables, const AngleSizes& sizes, i64 token)
      : dim(call.size(sizes.dim)), half(call.size(sizes.pairs)) {
    i64 position = static_cast<i64>(dev::ld_global(at<const Index>(tables.positions) + token));
    position = dev::min(dev::max(position, i64{0}), static_cast<i64>(call.size(sizes.length)) - 1);
    cos = at<const float>(tables.cos) + position * half;
    sin = at<const float>(tables.sin) + position * half;
  }
  // What a head has for threads: a pair, or an element behind the rotated ones.
  ARK_DEVICE i32 pairs() const { return dim - half; }
  // Of pair `j` of a head at `x`: both elements, and how far they are turned; or the one element behind them.
  struct Pair {
    float a, b, cos, sin;
  };
  ARK_DEVICE Pair load(const float* x, i32 j) const {
    if (j >= half) return {dev::ld_global(x + j + half), 0, 1, 0};
    return {dev::ld_global(x + first(j)), dev::ld_global(x + second(j)), dev::ld_nc(cos + j),
            dev::ld_nc(sin + j)};
  }
  ARK_DEVICE i32 first(i32 j) const { return kInterleaved ? 2 * j : j; }
  ARK_DEVICE i32 second(i32 j) const { return kInterleaved ? 2 * j + 1 : j + half; }
  // put(d, v) for the elements that it comes to.
  template <class Put>
  ARK_DEVICE void turn(const Pair& pair, i32 j, Put put) const {
    if (j >= half) return put(j + half, pair.a);
    put(first(j), pair.a * pair.cos - pair.b * pair.sin);
    put(second(j), pair.a * pair.sin + pair.b * pair.cos);
  }
};

// All heads of a token.
template <bool kInterleaved, class Index>
struct Rotary : Quiet {
  ARK_DEVICE static void run(const Call& call, Tiles tiles) {
    const RotaryArguments& a = call.i.rotary;
    const i32 heads = call.size(a.heads);
    for (i64 t = tiles.first; t < tiles.last; ++t) {
      const Angles<kInterleaved, Index> angles(call, a.angles, a.turned, t);
      ARK_ROLLED
      for (i32 i = call.b.thread; i < heads * angles.pairs(); i += kConsumers) {
        const Division head = divide(i, angles.pairs());
        const i64 row = (t * heads + head.quotient) * angles.dim;
        angles.turn(angles.load(at<const float>(a.x) + row, head.rest), head.rest,
                    [&](i32 d, float v) { dev::st_global(at<float>(a.out) + row + d, v); });
      }
    }
  }
};

// How a head's part of a page [size, D] of E takes a row of numbers, which lie in scratch or in memory.
template <class E, bool kInScratch>
struct KvStore {
  using Type = Kv<E>;
  static constexpr bool kHasScales = Type::kFormat.largest > 0;

  ARK_DEVICE static float number(const float* x) {
    if constexpr (kInScratch) return *x;
    return dev::ld_global(x);
  }

  // Elements from `d` on, times `factor`, of a row of a head's part.
  ARK_DEVICE static void store(const float* x, float factor, u8* part, i32 row, i32 dim, i32 d) {
    float numbers[Type::kPack];
    ARK_UNROLL
    for (int i = 0; i < Type::kPack; ++i) {
      numbers[i] = factor == 0 ? 0.0f : number(x + d + i) * factor;
    }
    dev::st_global(reinterpret_cast<typename Type::Pack*>(reinterpret_cast<E*>(part) + row * dim + d),
                   Type::narrow(numbers));
  }

  // The size of the largest of a head's numbers, as bits: NaN is larger than infinity.
  ARK_DEVICE static u32 largest_bits(int lane, const float* x, i32 dim) {
    u32 most = 0;
    const auto take = [&most](u32 bits) { most = bits > most ? bits : most; };
    ARK_ROLLED
    for (i32 d = lane; d < dim; d += 32) take(dev::as_u32(dev::abs(number(x + d))));
    ARK_UNROLL
    for (int distance = 16; distance > 0; distance /= 2) take(dev::shfl_xor(most, distance));
    return most;
  }

  // A warp's.
  ARK_DEVICE static void store_scaled(int lane, const float* x, u8* part, i32 size, i32 row, i32 dim) {
    constexpr KvFormat format = Type::kFormat;
    const u32 bits = largest_bits(lane, x, dim);
    const float most = dev::as_f32(bits);
    const bool is_finite = bits < 0x7f800000u, is_zero = is_finite && most < kKvLeast;
    const float factor = is_finite && !is_zero ? format.largest / most : 0.0f;
    if (lane == 0)
      dev::st_global(reinterpret_cast<float*>(part + format.code_bytes(size, dim)) + row,
                     is_zero     ? 0.0f
                     : is_finite ? most / format.largest
                                 : most);
    ARK_ROLLED
    for (i32 d = lane * Type::kPack; d < dim; d += 32 * Type::kPack) store(x, factor, part, row, dim, d);
  }
};

// A token's keys and values, into pages of E.
template <class E>
struct KvAppend : Quiet {
  using Store = KvStore<E, false>;

  using Type = typename Store::Type;

  // x [KH, dim] of a token: a warp takes a head.
  ARK_DEVICE static void append_scaled(const Call& call, const float* x, u8* pages, i32 dim,
                                       const RowPlace& to) {
    const i32 heads = call.size(call.i.kv_append.heads), size = call.size(call.i.kv_append.page_size);
    const i64 each = Type::kFormat.head_bytes(size, dim);
    u8* const parts = pages + static_cast<i64>(to.page) * heads * each;
    ARK_ROLLED
    for (i32 h = call.b.warp; h < heads; h += kConsumerWarps)
      Store::store_scaled(call.b.lane, x + h * dim, parts + h * each, size, to.row, dim);
  }

  // Of a token: packs of its keys, then of its values.
  ARK_DEVICE static void append(const Call& call, i64 token, const RowPlace& to) {
    const KvAppendArguments& a = call.i.kv_append;
    const i32 heads = call.size(a.heads), size = call.size(a.page_size), key = call.size(a.dims[kOfKeys]),
              value = call.size(a.dims[kOfValues]);
    const i32 keys = heads * key / Type::kPack, values = heads * value / Type::kPack;
    struct Numbers {
      float of[Type::kPack];
    };
    in_turns<4>(
        call.b, 0, keys + values,
        [&](i32 i) {
          const float* const x = i < keys ? at<const float>(a.added[kOfKeys]) + token * heads * key
                                          : at<const float>(a.added[kOfValues]) + token * heads * value;
          const i32 first = (i < keys ? i : i - keys) * Type::kPack;
          Numbers numbers;
          ARK_UNROLL
          for (int n = 0; n < Type::kPack; ++n) numbers.of[n] = dev::ld_global(x + first + n);
          return numbers;
        },
        [&](i32 i, const Numbers& numbers) {
          const i32 dim = i < keys ? key : value;
          const Division head = divide(i < keys ? i : i - keys, dim / Type::kPack);
          u8* const part =
              at<u8>(a.pages[i < keys ? kOfKeys : kOfValues]) +
              (static_cast<i64>(to.page) * heads + head.quotient) * Type::kFormat.head_bytes(size, dim);
          dev::st_global(
              reinterpret_cast<typename Type::Pack*>(reinterpret_cast<E*>(part) + to.row * dim) + head.rest,
              Type::narrow(numbers.of));
        });
  }

  ARK_DEVICE static void run(const Call& call, Tiles tiles) {
    for (i64 t = tiles.first; t < tiles.last; ++t) {
      const RowPlace to = place_of(call.b, t);
      if constexpr (Store::kHasScales) {
        ARK_ROLLED
        for (int which = 0; which < 2; ++which) {
          const KvAppendArguments& a = call.i.kv_append;
          const i32 dim = call.size(a.dims[which]);
          append_scaled(call, at<const float>(a.added[which]) + t * call.size(a.heads) * dim,
                        at<u8>(a.pages[which]), dim, to);
        }
      } else {
        append(call, t, to);
      }
    }
  }
};

// Both, by token and KV head. A block's warps take tiles of their own, or, where these are few, some of them one
// together; but codes with scales are one warp's, which has a key and a value in scratch first.
template <bool kInterleaved, class Index, class E>
struct RotaryAppend : Quiet {
  using Store = KvStore<E, true>;
  static constexpr bool kHasScales = Store::kHasScales;
  static_assert(kConsumerWarps * 2 * kLongestHead * sizeof(float) <= kFewScratchBytes);
  static constexpr int kAtOnce = 4;  // pairs, or elements of a value, whose loads are under way together

  // Of tile `tile`, by warp number `member` of so many.
  ARK_DEVICE static void run_tile(const Call& call, i32 tile, int member, int warps) {
    const RotaryAppendArguments& a = call.i.rotary_append;
    const i32 heads = call.size(a.heads), dim = call.size(a.turned.dim), kv_heads = call.size(a.kv_heads),
              size = call.size(a.page_size), value = call.size(a.value_dim);
    const Division place = divide(tile, kv_heads);
    const i64 t = place.quotient;
    const i32 head = place.rest;
    const RowPlace to = place_of(call.b, t);
    const Angles<kInterleaved, Index> angles(call, a.angles, a.turned, t);
    const i32 first = divide(heads * head, kv_heads).quotient,
              last = divide(heads * (head + 1), kv_heads).quotient;
    const i32 pairs = angles.pairs(), queries = (last - first) * pairs, all = queries + pairs + value;
    const i64 first_query = (t * heads + first) * dim;
    const auto part = [&](int which, i32 of) {
      return at<u8>(a.pages[which]) +
             (static_cast<i64>(to.page) * kv_heads + head) * Store::Type::kFormat.head_bytes(size, of);
    };
    float* const key_here = reinterpret_cast<float*>(call.b.scratch) + call.b.warp * (dim + value);
    float* const value_here = key_here + dim;
    // An element of the key or the value, into its page or to where a warp looks for the largest.
    const auto put = [&](int which, i32 of, i32 d, float v) {
      if constexpr (kHasScales)
        (which == kOfKeys ? key_here : value_here)[d] = v;
      else
        dev::st_global(reinterpret_cast<E*>(part(which, of)) + to.row * of + d, dev::from_f32<E>(v));
    };
    using Pair = typename Angles<kInterleaved, Index>::Pair;
    const i32 apart = warps * 32;
    ARK_ROLLED
    for (i32 begin = member * 32 + call.b.lane; begin < all; begin += kAtOnce * apart) {
      Pair loaded[kAtOnce];
      i32 own[kAtOnce], query[kAtOnce];
      ARK_UNROLL
      for (int n = 0; n < kAtOnce; ++n) {
        const i32 i = dev::min(begin + n * apart, all - 1);
        const Division of = divide(i, pairs);
        query[n] = i < queries ? of.quotient : last - first;
        own[n] = i < queries ? of.rest : i - queries;
        if (i >= queries + pairs)
          loaded[n] = {
              dev::ld_global(at<const float>(a.v) + static_cast<i64>(tile) * value + own[n] - pairs)};
        else
          loaded[n] = angles.load(i < queries ? at<const float>(a.q) + first_query + query[n] * dim
                                              : at<const float>(a.k) + static_cast<i64>(tile) * dim,
                                  own[n]);
      }
      ARK_UNROLL
      for (int n = 0; n < kAtOnce; ++n) {
        if (begin + n * apart >= all) break;
        if (query[n] < last - first)
          angles.turn(loaded[n], own[n], [&](i32 d, float v) {
            dev::st_global(at<float>(a.out) + first_query + query[n] * dim + d, v);
          });
        else if (own[n] < pairs)
          angles.turn(loaded[n], own[n], [&](i32 d, float v) { put(kOfKeys, dim, d, v); });
        else
          put(kOfValues, value, own[n] - pairs, loaded[n].a);
      }
    }
    if constexpr (kHasScales) {
      if (!ARK_BUG(codes_without_sync_warp)) dev::sync_warp();
      Store::store_scaled(call.b.lane, key_here, part(kOfKeys, dim), size, to.row, dim);
      Store::store_scaled(call.b.lane, value_here, part(kOfValues, value), size, to.row, value);
      dev::sync_warp();
    }
  }

  ARK_DEVICE static void run(const Call& call, Tiles tiles) {
    const int warps = append_warps(tiles.last - tiles.first, kHasScales);
    ARK_ROLLED
    for (i64 tile = tiles.first + call.b.warp / warps; tile < tiles.last; tile += kConsumerWarps / warps)
      run_tile(call, static_cast<i32>(tile), call.b.warp % warps, warps);
  }
};

}  // namespace ark::cuda
