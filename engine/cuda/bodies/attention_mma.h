// Attention on tensor cores (bodies/attention.h): sixteen rows at a time, keys and values of 16 bits.
// Longer than most: one body, from tiles to rows' outputs.
//
// A warp's lanes load keys and values into the fragments' registers (bodies/attention_fragments.h), 16 bytes each, and
// nothing goes through shared memory: which of a value's elements is which column of a product is free, too.
//
// The rows of a decode step's tile are few, and so may be its keys. So a block takes several tiles at once, a bundle:
// each has its own rows of the sixteen, and all tiles' runs of keys are dealt to the warps. What a run comes to waits
// in scratch, and behind one barrier all rows are merged. A run is what one of eight warps takes of one tile, whoever
// takes it: a row's bits do not depend on the bundle. Where rows are many, warps share keys instead
// (bodies/attention_strips.h).
#pragma once

#include "engine/cuda/bodies/attention_fragments.h"

namespace ark::cuda {

// A warp works out which tiles are run together, from number `n` of the block's on: the first ones before the wait.
template <class Way>
ARK_APART void find_bundle(const LoopParameters& p, u32 instance, int n, i32 row0) {
  Block b = open_turn_block(p);
  const Call call{b, instance_at(instance), nullptr};
  Way(call).find_bundle(n, row0);
}

template <class E, int kKey, int kValue, class X>
struct AttentionByMma : AttentionFragments<E, kKey, kValue, X, kStripRows> {
  using Fragments = AttentionFragments<E, kKey, kValue, X, kStripRows>;
  using Rows = AttentionRows<kValue, X>;
  using Fragments::call, Fragments::task, Fragments::scratch, Fragments::rule, Fragments::target;
  using Fragments::kCapped, Fragments::kWeights, Fragments::row_of_key;
  using typename Fragments::Place, typename Fragments::Query, typename Fragments::Scores,
      typename Fragments::Words;
  static_assert(kAttentionBlock == kConsumerWarps * 32 && kKey % 8 == 0 && kValue % 8 == 0);

  // A value's elements are taken by parts, whose sums a warp has registers for, and these by chunks; of a chunk the
  // values of 16 keys are loaded at once, or of all 32 where there are registers, of keys 32 elements.
  static constexpr int kChunk = kValueChunk, kPart = kValue < 128 ? kValue : 128;
  static constexpr int kChunks = value_chunks(kValue),
                       kValuesAtOnce = values_at_once(dev::kMovesRegisters, kKey, kValue);

  // Tiles of a bundle: while half of the open ones are taken, others are opened.
  static constexpr int kMostTiles = kTilesAhead / 2;
  static_assert(kConsumerWarps == 8 && kMostTiles * kConsumerWarps <= 32 && kMostTiles * 4 <= kStripRows,
                "bytes of a mask; lanes; rows");

  // Scratch of a block, in floats. A room has a part's elements; those of a tile that is alone are where its
  // warps cap scores before.
  static constexpr int kBundles = Fragments::kBehindTargets,
                       kKeyRows = kBundles + kConsumerWarps * kBundleFloats,
                       kMaxima = kKeyRows + kConsumerWarps * 32, kSums = kMaxima + kMostRooms,
                       kValues = kSums + kMostRooms;
  static constexpr int kPieces = kChunks * kChunk / 4;  // of four floats, of a room
  static constexpr int kRooms = attention_rooms(kKey, kValue, kRowsScratch),
                       kAllRooms = attention_rooms(
                           kKey, kValue, static_cast<int>(kScratchBytes - open_bytes(kScratchBytes)));
  static_assert(kValues == before_rooms(kKey));
  static_assert(kRooms >= kConsumerWarps * 4 && fewest_rows(kRooms) * kPieces * 4 >= kCapped);

  ARK_DEVICE explicit AttentionByMma(const Call& c) : Fragments(c) {}

  // ---- bundles

  // The block's tiles [first, first + tiles); of one tile, its rows from `row0` on.
  struct Bundle {
    int first, tiles;
    i32 row0;
    i32 shift;   // each tile has 2^shift of the strip's rows, its slot
    u32 runs;    // bit 8k + w: of tile number k the keys of warp w
    u32 filled;  // bits 8k to 8k + 7: tile number k has rows, which may see none of its keys
    // The rows' number before a run's: runs' rows lie one run behind the other.
    ARK_DEVICE int rooms_before(u32 run) const { return dev::popcount(runs & ((1u << run) - 1)) << shift; }
    ARK_DEVICE int tile_of(i32 row) const { return row >> shift; }
    ARK_DEVICE i32 first_row(int tile) const { return tile << shift; }
    ARK_DEVICE i32 rows_of(const AttentionTask& tile) const { return dev::min(1 << shift, tile.rows - row0); }
  };
  // Of the rows of a tile: the oldest key that they see, and behind the split's last one.
  struct Reach {
    i32 oldest, end;
  };
  ARK_DEVICE Reach reach_of(const AttentionTask& tile, i32 row0, i32 rows) const {
    const i32 window = call.size(call.i.attention.window), position = tile.item.position,
              newest = position + divide(row0 + rows - 1, tile.group).quotient;
    return {window > 0 ? position + divide(row0, tile.group).quotient - window + 1 : 0,
            dev::min((tile.split + 1) * split_keys(position), newest + 1)};
  }
  // How many tiles, from the first one on, say yes.
  ARK_DEVICE static int leading_tiles(bool yes) {
    const u32 all = dev::ballot(yes);
    return dev::popcount(all & ~(all + 1)) / kConsumerWarps;
  }
  // Tiles of four rows or fewer by fours, of eight or fewer by twos; one of more, as many rows as have rooms. Each lane
  // has a run.
  ARK_DEVICE Bundle bundle_from(int first, i32 row0) const {
    const int k = call.b.lane / kConsumerWarps;
    const bool is_there = k < kMostTiles && !is_behind_tiles(call.b, first + k);
    const AttentionTask& tile = open_tile(call.b, first + (is_there ? k : 0)).task;
    const int fours = leading_tiles(is_there && tile.rows <= 4),
              eights = leading_tiles(is_there && tile.rows <= 8);
    // Further rows of one tile are taken by themselves; and scores are capped in the rooms of a warp's own rows.
    const bool is_alone = kMostTiles == 1 || row0 > 0 || call.i.attention.softcap > 0;
    i32 tiles = is_alone ? 1 : bundle_tiles(fours, eights);
    const i32 rooms = leaves_all_scratch(call.b) ? kAllRooms : kRooms;
    i32 slot = bundle_slot(tiles, fours);
    ARK_ROLLED
    for (;;) {
      const bool has_rows = k < tiles && is_there && tile.rows > row0;
      bool has_keys = false;
      if (has_rows) {
        const Reach reach = reach_of(tile, row0, dev::min(slot, tile.rows - row0));
        has_keys = first_key(tile, call.size(call.i.attention.window), call.b.lane % kConsumerWarps,
                             reach.oldest) < reach.end;
      }
      const u32 runs = dev::ballot(has_keys);
      if (dev::popcount(runs) * slot <= rooms)
        return {first, tiles, row0, log2_of(static_cast<u32>(slot)), runs, dev::ballot(has_rows)};
      tiles > 1 ? slot = bundle_slot(--tiles, fours) : slot /= 2;
    }
  }
  // The one at hand: each warp has it in scratch, since registers are few.
  ARK_DEVICE Bundle& bundle() const {
    static_assert(sizeof(Bundle) <= kBundleFloats * sizeof(float));
    return *reinterpret_cast<Bundle*>(scratch(kBundles + call.b.warp * kBundleFloats));
  }
  ARK_DEVICE void find_bundle(int first, i32 row0) const {
    const Bundle found = bundle_from(first, row0);
    dev::sync_warp();  // the one before is read
    if (call.b.lane == 0) bundle() = found;
    dev::sync_warp();
  }
  // Of a row of the strip; not of a bundle without rows.
  ARK_DEVICE Query query_of(const Bundle& of, i32 row) const {
    const int k = of.tile_of(row);
    const i32 in_slot = row - of.first_row(k);
    if (k < of.tiles && in_slot < of.rows_of(open_tile(call.b, of.first + k).task))
      return {of.first + k, of.row0 + in_slot, true};
    const int some = lowest_bit(of.filled) / kConsumerWarps;  // a tile that has rows
    return {of.first + some, of.row0, false};
  }

  // ---- a run's 32 keys

  // What a warp takes at a time: of a tile the keys that are warp `warp`'s.
  struct Run {
    int warp;
    i32 first_row, last_row;  // of the strip, the tile's
    int rooms;                // the first row's, less its number in the strip
    ARK_DEVICE bool has_half(int r) const { return first_row < (r + 1) * 8 && last_row >= r * 8; }
    ARK_DEVICE bool has_row(i32 row) const { return row >= first_row && row <= last_row; }
  };

  // Of the lane's own key; behind the last key: that one's, whose weight is 0 then.
  ARK_DEVICE Place place_of_own_key(i32 first, i32 end, bool is_first, int warp) const {
    return Fragments::place_of_key(dev::min(first + call.b.lane, end - 1), is_first, warp);
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

  ARK_DEVICE static Words load(const E* from) {
    const dev::u32x4 v = dev::ld_global(reinterpret_cast<const dev::u32x4*>(from));
    return {{v.x, v.y, v.z, v.w}};
  }

  ARK_DEVICE void load_keys(int from_element, Words (&keys)[4]) const {
    const int d = from_element + call.b.lane % 4 * 8;
    const E* from = at<const E>(call.i.attention.keys) + d;
    const u32* rows = rows_of_keys() + call.b.lane / 4;
    const bool is_there = kKey % 32 == 0 || d < kKey;
    ARK_UNROLL
    for (int n = 0; n < 4; ++n)
      keys[n] = is_there ? load(from + static_cast<i64>(rows[n * 8]) * kKey) : Words{};
  }
  // With g = lane / 4, t = lane % 4: of keys 16u + 2t, + 1, + 8, + 9 the elements 8g.. of the chunk, for kValuesAtOnce
  // numbers u.
  struct Values {
    Words of[kValuesAtOnce][4];
  };
  ARK_DEVICE void load_values(int first_u, int from_element, Values& values) const {
    const int d = from_element + call.b.lane / 4 * 8;
    const E* from = at<const E>(call.i.attention.values) + d;
    const u32* rows = rows_of_keys() + call.b.lane % 4 * 2;
    const bool is_there = (kValue % kPart == 0 && kPart % kChunk == 0) || d < kValue;
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

  // A run's state, and 32 keys' scores; of rows g and g + 8 the columns' sums, of which a value's element
  // 16t + 8i + 4f + j of a chunk is of[chunk][f][0][j][i] (row g + 8: [2 + i]). Sums of weights: of the lane's keys.
  using Sums = float[2][1][4][4];
  struct State {
    float maximum[2] = {-infinity(), -infinity()}, sum[2] = {0, 0};
    Sums of[kChunks] = {};
    Scores scores;
  };

  // Scores -> weights; `key`: the lane's first one. Rescales the state.
  ARK_DEVICE void weigh(const Run& run, i32 key, State& state) const {
    const float most = call.i.attention.softcap;
    const int row = call.b.lane / 4;
    if (most > 0) Fragments::cap(most, row, room_four(run.rooms, 0), state.scores);
    ARK_UNROLL
    for (int r = 0; r < 2; ++r) {
      if (!run.has_half(r)) continue;
      const auto now = Fragments::weigh_row(rule(row + r * 8), r, key, state.maximum[r], state.scores);
      state.maximum[r] = now.maximum;
      state.sum[r] = dev::fma(state.sum[r], now.factor, now.sum);
      ARK_UNROLL
      for (int c = 0; c < kChunks; ++c) {
        ARK_UNROLL
        for (int j = 0; j < 8; ++j) {
          float(&of)[4] = state.of[c][j / 4][0][j % 4];
          of[2 * r] *= now.factor, of[2 * r + 1] *= now.factor;
        }
      }
    }
  }

  ARK_DEVICE static void add_values(const Values& values, int first_u, State& state, int chunk) {
    ARK_UNROLL
    for (int u = 0; u < kValuesAtOnce; ++u) {
      u32 high[1][4], low[1][4];
      Fragments::split_weights(state.scores, first_u + u, high, low);
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
        dev::mma_tile<E>(state.of[chunk][f], high, b);
        dev::mma_tile<E>(state.of[chunk][f], low, b);
      }
    }
  }

  // Of the warp's task.
  ARK_DEVICE void take(const Run& run, i32 row0, int part, State& state) const {
    const Reach reach = reach_of(task(), row0, run.last_row - run.first_row + 1);
    const i32 end = dev::uniform(reach.end);
    i32 first = dev::uniform(first_key(task(), call.size(call.i.attention.window), run.warp, reach.oldest));
    tell(row_of_key(place_of_own_key(first, end, row0 == 0, run.warp)));
    ARK_ROLLED
    for (;;) {
      // A page is looked up one turn ahead, and what lies there asked for in L2. Nothing of the next keys is loaded
      // ahead: the other warp of the processor's quarter works meanwhile.
      const Place next = place_of_own_key(first + kAttentionBlock, end, false, run.warp);
      ARK_UNROLL
      for (int n = 0; n < 16; ++n) state.scores[n / 4][n % 4] = 0;
      ARK_ROLLED
      for (int d = 0; d < kKey; d += 32) {
        Words keys[4];
        load_keys(d, keys);
        Fragments::template score<0>(0, keys, d / 32, false, state.scores);
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
      weigh(run, first + call.b.lane % 4 * 2, state);
      ARK_UNROLL
      for (int c = 0; c < kChunks; ++c) {
        ARK_UNROLL
        for (int u = 0; u < 2; u += kValuesAtOnce) {
          if (c + u > 0) load_values(u, part * kPart + c * kChunk, values);
          dev::sync_warp();
          add_values(values, u, state, c);
        }
      }
      first += kAttentionBlock;
      if (first >= end) break;
      tell(next_row);
    }
  }

  // ---- runs' states, merged in order

  // Where four elements of a room lie: no two of eight lanes that store or load at once meet in a bank.
  ARK_DEVICE float* room_four(int room, int piece) const {
    return scratch(kValues) + (room * kPieces + (piece ^ (piece >> 2 & 3) ^ (room & 1) << 2)) * 4;
  }
  ARK_DEVICE void put(const Run& run, const Sums& sums, int chunk) const {
    ARK_UNROLL
    for (int r = 0; r < 2; ++r) {
      const i32 row = call.b.lane / 4 + r * 8;
      if (!run.has_half(r) || (!run.has_row(row) && !ARK_BUG(rows_of_other_tiles))) continue;
      ARK_UNROLL
      for (int i = 0; i < 2; ++i) {
        ARK_UNROLL
        for (int f = 0; f < 2; ++f) {
          const float(&of)[4][4] = sums[f][0];
          const int k = 2 * r + i, piece = chunk * kChunk / 4 + (call.b.lane % 4 * 2 + i) * 2 + f;
          constexpr float by = 1 / kWeights;
          *reinterpret_cast<dev::f32x4*>(room_four(run.rooms + row, piece)) = {of[0][k] * by, of[1][k] * by,
                                                                               of[2][k] * by, of[3][k] * by};
        }
      }
    }
  }
  ARK_DEVICE void put_sums(const Run& run, const State& state) const {
    ARK_UNROLL
    for (int r = 0; r < 2; ++r) {
      float sum = state.sum[r];  // of four lanes' keys
      sum += dev::shfl_xor(sum, 1);
      sum += dev::shfl_xor(sum, 2);
      const i32 row = call.b.lane / 4 + r * 8;
      if (call.b.lane % 4 != 0 || !run.has_row(row)) continue;
      scratch(kMaxima)[run.rooms + row] = state.maximum[r], scratch(kSums)[run.rooms + row] = sum;
    }
  }
  // Of all rows.
  ARK_DEVICE void merge(const Bundle& of, int part) const {
    const i32 rows = of.tiles > 1 ? of.first_row(of.tiles) : of.rows_of(task());
    ARK_ROLLED
    for (int e = call.b.thread; e < rows * kPieces; e += kConsumers) {
      const int row = e / kPieces, piece = e % kPieces, d = part * kPart + piece * 4;
      const int k = of.tile_of(row), in_slot = row - of.first_row(k);
      const AttentionTask& own = open_tile(call.b, of.first + k).task;
      if (in_slot >= of.rows_of(own) || d >= kValue) continue;
      RowPart parts[kConsumerWarps];
      ARK_UNROLL
      for (int w = 0; w < kConsumerWarps; ++w) {
        const auto run = static_cast<u32>(k * kConsumerWarps + w);
        if ((of.runs >> run & 1) == 0) continue;
        const int room = of.rooms_before(run) + in_slot;
        parts[w].maximum = scratch(kMaxima)[room], parts[w].sum = scratch(kSums)[room];
        parts[w].values = *reinterpret_cast<const dev::f32x4*>(room_four(room, piece));
      }
      Rows::hand_in(own, target(row), d, merged(parts));
    }
  }

  // Which runs are the warp's: one of each eight.
  ARK_DEVICE u32 own_runs(const Bundle& of) const {
    const bool has = (of.runs >> call.b.lane & 1) != 0;
    const int turn = dev::popcount(of.runs & ((1u << call.b.lane) - 1));
    return dev::ballot(has && turn % kConsumerWarps == call.b.warp);
  }
  // The first of some, whose tile becomes the warp's task.
  ARK_DEVICE Run begin_run(const Bundle& of, u32 some) const {
    const auto number = static_cast<u32>(lowest_bit(some));
    const int k = static_cast<int>(number) / kConsumerWarps;
    Rows::open(of.first + (ARK_BUG(run_of_another_tile) ? 0 : k));
    const i32 first_row = of.first_row(k), rows = dev::uniform(of.rows_of(task()));
    return {static_cast<int>(number) % kConsumerWarps, first_row, first_row + rows - 1,
            of.rooms_before(number) - first_row};
  }

  // ---- tiles

  // bodies/attention.h: attend(). A bundle.
  ARK_DEVICE int attend(int n, int before) const {
    Rows::open(n);
    int tiles;
    i32 row0 = 0;
    ARK_ROLLED
    do {
      run(n, row0, before);
      before = n, row0 += bundle().first_row(1), tiles = bundle().tiles;
    } while (tiles == 1 && row0 < task().rows);
    const AttentionTask& tile = open_tile(call.b, n + dev::min(call.b.lane, tiles - 1)).task;
    if (dev::ballot(tile.rows > 0 && tile.split_count > 1) != 0)
      join_splits<kValue, X>(call.b.p, instance_offset(call), n, tiles);
    return tiles;
  }
  ARK_DEVICE void run(int n, i32 row0, int before) const {
    dev::sync_warp();
    // Whose targets: those of the rows before may still be read.
    if (call.b.lane == 0 && !ARK_BUG(targets_in_use)) task().turn ^= 1;
    dev::sync_warp();
    if (n > 0 || row0 > 0) cuda::find_bundle<AttentionByMma>(call.b.p, instance_offset(call), n, row0);
    const Bundle& of = bundle();
    if (of.filled != 0)
      Fragments::template split_queries<2, kConsumerWarps>(
          call.b.warp, [&](i32 row) -> Query { return query_of(of, row); });
    // Behind it nobody reads what is merged, of rows before these, any more.
    if (!ARK_BUG(queries_without_barrier)) consumers_sync();
    Fragments::open_next(n, before);
    ARK_ROLLED
    for (int part = 0; part * kPart < kValue; ++part) {
      if (part > 0) consumers_sync();  // the ones before are merged
      ARK_ROLLED
      for (u32 own = own_runs(of); own != 0; own &= own - 1) {
        const Run run = begin_run(of, own);
        State state;
        take(run, of.row0, part, state);
        if (part == 0) put_sums(run, state);
        ARK_UNROLL
        for (int c = 0; c < kChunks; ++c) put(run, state.of[c], c);
      }
      if (!ARK_BUG(merged_without_barrier)) consumers_sync();
      if (part == 0) Fragments::ask_for_next(n, before);
      merge(of, part);
    }
  }
};

}  // namespace ark::cuda
