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
  // put(d, v) for the elements that pair `j` of a head comes to.
  template <class Put>
  ARK_DEVICE void rotate(const float* x, i32 j, Put put) const {
    if (j >= half) return put(j + half, dev::ld_global(x + j + half));
    const i32 one = kInterleaved ? 2 * j : j, other = kInterleaved ? 2 * j + 1 : j + half;
    const float a = dev::ld_global(x + one), b = dev::ld_global(x + other);
    const float c = dev::ld_nc(cos + j), s = dev::ld_nc(sin + j);
    put(one, a * c - b * s);
    put(other, a * s + b * c);
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
        angles.rotate(at<const float>(a.x) + row, head.rest,
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
      numbers[i] = number(x + d + i);
      if constexpr (kHasScales) numbers[i] = factor == 0 ? 0.0f : numbers[i] * factor;
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

// Both, by token and KV head: a tile's key and value come through scratch.
template <bool kInterleaved, class Index, class E>
struct RotaryAppend : Quiet {
  using Store = KvStore<E, true>;

  ARK_DEVICE static void append(const Call& call, const float* x, u8* part, i32 dim, const RowPlace& to,
                                int warp) {
    if constexpr (Store::kHasScales) {
      if (call.b.warp == warp)
        Store::store_scaled(call.b.lane, x, part, call.size(call.i.rotary_append.page_size), to.row, dim);
    } else {
      ARK_ROLLED
      for (i32 d = call.b.thread * Store::Type::kPack; d < dim; d += kConsumers * Store::Type::kPack)
        Store::store(x, 1, part, to.row, dim, d);
    }
  }

  ARK_DEVICE static void run(const Call& call, Tiles tiles) {
    const RotaryAppendArguments& a = call.i.rotary_append;
    const i32 heads = call.size(a.heads), dim = call.size(a.turned.dim), kv_heads = call.size(a.kv_heads),
              size = call.size(a.page_size), value = call.size(a.value_dim);
    float* const key_here = reinterpret_cast<float*>(call.b.scratch);
    float* const value_here = key_here + dim;
    for (i64 tile = tiles.first; tile < tiles.last; ++tile) {
      const Division place = divide(static_cast<i32>(tile), kv_heads);
      const i64 t = place.quotient, head = place.rest;
      const RowPlace to = place_of(call.b, t);
      const Angles<kInterleaved, Index> angles(call, a.angles, a.turned, t);
      const i32 first = divide(heads * place.rest, kv_heads).quotient,
                last = divide(heads * (place.rest + 1), kv_heads).quotient;
      const i32 pairs = angles.pairs(), queries = (last - first) * pairs, all = queries + pairs + value;
      ARK_ROLLED
      for (i32 i = call.b.thread; i < all; i += kConsumers) {
        const i32 behind = i - queries;
        if (behind >= pairs) {
          const i32 d = behind - pairs;
          value_here[d] = dev::ld_global(at<const float>(a.v) + tile * value + d);
        } else if (behind >= 0) {
          angles.rotate(at<const float>(a.k) + tile * dim, behind, [&](i32 d, float v) { key_here[d] = v; });
        } else {
          const Division query = divide(i, pairs);
          const i64 row = (t * heads + first + query.quotient) * dim;
          angles.rotate(at<const float>(a.q) + row, query.rest,
                        [&](i32 d, float v) { dev::st_global(at<float>(a.out) + row + d, v); });
        }
      }
      consumers_sync();
      const auto part = [&](int which, i32 of) {
        return at<u8>(a.pages[which]) +
               (static_cast<i64>(to.page) * kv_heads + head) * Store::Type::kFormat.head_bytes(size, of);
      };
      append(call, key_here, part(kOfKeys, dim), dim, to, 0);
      append(call, value_here, part(kOfValues, value), value, to, 1);
      if (tile + 1 < tiles.last) consumers_sync();
    }
  }
};

// How queries and keys are turned: not at all, or which pairs of a head.
enum Rotation { kUnturned, kHalves, kInterleaved };

// A product's finished tile, of heads that lie whole in its panel: what Rotary and KvAppend would do behind it.
template <Rotation kRotation, class E>
struct AppendedTile {
  using Store = KvStore<E, true>;
  static constexpr int kPack = Store::Type::kPack;

  const Block b;
  const Instance& i;
  float* const outputs;
  const RowPlace* places;
  const i32 panel_bits, dim;
  i32 row0, rows, column, columns;  // that are there
  bool is_behind;                   // only the step's first rows' places were looked up before the wait

  ARK_DEVICE AppendedTile(const LoopParameters& p, FinishedTile tile)
      : b(open_block(p, 0, 0)),
        i(instance_at(tile.instance)),
        outputs(reinterpret_cast<float*>(b.scratch + kBorderBytes) + (kHasWideTiles ? tile.outputs : 0)),
        panel_bits(log2_of(static_cast<u32>(i.stream.panel))),
        dim(i.product.dim) {
    const StreamTiles tiles(i.stream, tile.rows);
    const StreamTile own(tiles, tile.number);
    is_behind = tile.rows > kRowBlock || tiles.wide;
    row0 = own.block * tiles.row_block + (kHasWideTiles ? tile.first_row : 0),
    rows = dev::min(dev::min(kRowBlock, tiles.row_block), tile.rows - row0);
    places = row_places(b.scratch) + (is_behind ? 0 : row0);
    column = (tiles.wide ? WideHalves(i.stream, own).panel_of(tile.half) : own.panel) << panel_bits;
    columns = dev::min(i.stream.panel, i.stream.n - column);
  }

  ARK_DEVICE bool is_rotated() const {
    return kRotation != kUnturned && (i.product.tile_use & kTileRotated) != 0;
  }
  ARK_DEVICE bool is_appended() const { return (i.product.tile_use & kTileAppended) != 0; }

  // How far the pairs are turned that elements of a head from `d` on are of.
  template <int kCount>
  struct Turns {
    float cos[kCount], sin[kCount];
  };
  ARK_DEVICE i32 pair_of(i32 d, i32 half) const {
    return kRotation == kInterleaved ? d / 2 : d < half ? d : d - half;
  }
  template <int kCount>
  ARK_DEVICE Turns<kCount> turns_of(i32 row, i32 d) const {
    const i32 half = i.product.pairs,
              position = dev::min(dev::max(places[row].position, 0), i.product.length - 1);
    Turns<kCount> turns;
    ARK_UNROLL
    for (int n = 0; n < kCount; ++n) {
      const bool is_turned = is_rotated() && d + n < 2 * half;
      const i64 angle = static_cast<i64>(position) * half + pair_of(d + n, half);
      turns.cos[n] = is_turned ? dev::ld_nc(at<const float>(i.product.cos) + angle) : 1.0f;
      turns.sin[n] = is_turned ? dev::ld_nc(at<const float>(i.product.sin) + angle) : 0.0f;
    }
    return turns;
  }
  // Element `d` of a head.
  ARK_DEVICE float turned(const float* head, i32 d, float cos, float sin) const {
    const i32 half = i.product.pairs;
    if (!is_rotated() || d >= 2 * half) return head[d];
    const bool interleaved = kRotation == kInterleaved, is_first = interleaved ? d % 2 == 0 : d < half;
    const i32 apart = interleaved ? 1 : half;
    const float one = head[is_first ? d : d - apart], other = head[is_first ? d + apart : d];
    return is_first ? one * cos - other * sin : one * sin + other * cos;
  }
  ARK_DEVICE u8* part(const RowPlace& place, i32 head) const {
    const i64 bytes = Store::Type::kFormat.head_bytes(i.product.page_size, dim);
    return at<u8>(i.product.pages) + (static_cast<i64>(place.page) * i.product.heads + head) * bytes;
  }
  ARK_DEVICE void put(i32 row, Division head, const float (&v)[kPack]) const {
    if (is_appended()) {
      const RowPlace place = places[row];
      const i32 first_head = divide(column, dim).quotient;
      E* const to = reinterpret_cast<E*>(part(place, first_head + head.quotient)) + place.row * dim;
      dev::st_global(reinterpret_cast<typename Store::Type::Pack*>(to + head.rest), Store::Type::narrow(v));
    } else {
      float* const to = at<float>(i.product.out) + static_cast<i64>(row0 + row) * i.stream.n + column +
                        head.quotient * dim + head.rest;
      ARK_UNROLL
      for (int k = 0; k < kPack; ++k) dev::st_global(to + k, v[k]);
    }
  }
  // Packs of elements, turned: eight loads are under way.
  ARK_DEVICE void put_all() const {
    const i32 each = columns / kPack;
    struct Where {
      i32 row;
      Division head;  // of the tile, and place in it
    };
    const auto where = [&](i32 n) {
      const Division row = divide(n, each);
      return Where{row.quotient, divide(row.rest * kPack, dim)};
    };
    in_turns<4 / kPack>(
        b, 0, rows * each,
        [&](i32 n) {
          const Where to = where(n);
          return turns_of<kPack>(to.row, to.head.rest);
        },
        [&](i32 n, const Turns<kPack>& turns) {
          const Where to = where(n);
          const float* const x = outputs + (to.row << panel_bits) + to.head.quotient * dim;
          float v[kPack];
          ARK_UNROLL
          for (int k = 0; k < kPack; ++k) v[k] = turned(x, to.head.rest + k, turns.cos[k], turns.sin[k]);
          put(to.row, to.head, v);
        });
  }
  // A warp takes a head, of no more elements than a panel has columns.
  ARK_DEVICE void append_scaled() const {
    const i32 heads = divide(columns, dim).quotient, first_head = divide(column, dim).quotient;
    ARK_ROLLED
    for (i32 n = b.warp; n < rows * heads; n += kConsumerWarps) {
      const Division row = divide(n, heads);
      float* const x = outputs + (row.quotient << panel_bits) + row.rest * dim;
      if (is_rotated()) turn(x, row.quotient);
      const RowPlace place = places[row.quotient];
      Store::store_scaled(b.lane, x, part(place, first_head + row.rest), i.product.page_size, place.row, dim);
    }
  }
  ARK_DEVICE void turn(float* x, i32 row) const {
    float v[kPanelWidth / 32];
    ARK_UNROLL
    for (int n = 0; n < kPanelWidth / 32; ++n) {
      const i32 d = b.lane + n * 32;
      if (d >= dim) continue;
      const Turns<1> turns = turns_of<1>(row, d);
      v[n] = turned(x, d, turns.cos[0], turns.sin[0]);
    }
    dev::sync_warp();
    ARK_UNROLL
    for (int n = 0; n < kPanelWidth / 32; ++n)
      if (b.lane + n * 32 < dim) x[b.lane + n * 32] = v[n];
    dev::sync_warp();
  }

  ARK_DEVICE static void run(const LoopParameters& p, FinishedTile t) {
    const AppendedTile own(p, t);
    if (own.is_behind) look_up_places(p, own.row0, own.rows);
    if (!ARK_BUG(appended_without_barrier)) consumers_sync();
    if constexpr (Store::kHasScales) {
      if (own.is_appended()) return own.append_scaled();
    }
    own.put_all();
  }
};

}  // namespace ark::cuda
