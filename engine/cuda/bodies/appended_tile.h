// Queries, keys and values that whoever finishes a product's tile rotates and puts into their pages
// (engine/cuda/appended.h says when).
#pragma once

#include "engine/cuda/bodies/append.h"

namespace ark::cuda {

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
