// Wide tiles of a matrix product, for steps of more than kFewRows rows: up to kWideRows of x times two panels, so that
// weights and x are read from L2 half as often as by tiles of kRowBlock rows times one panel, or a quarter as often.
//
// A warp takes a quarter of the rows, in eights, times one of the panels (the half), piece after piece, with the sums
// in its registers. x is there in 16-bit parts (bodies/parts.h). Of each slice of a piece, which is all of it but where
// codes are long (slice_bits()), x is copied ahead into one of the rooms; one barrier a slice says that its x is there,
// and that the room of the slice before is free.
//
// Exact tiles (kExactWideRows) multiply both parts, and add up pieces in the tree of bodies/matmul.h, so that a row has
// the bits that it has in a step of few: sums that wait for their right neighbours are in registers (of two levels
// where consumers have taken others' registers and weights are numbers, else of one), then in scratch, then in memory,
// where each thread finds its own. Others (kRoundedWideRows, Numerics::kFast) leave the rests out, so that x is rounded
// to the weights' 16 bits, of codes to bf16, and go on with the sums of the piece before: other bits.
#pragma once

#include "engine/cuda/bodies/weights.h"
#include "engine/cuda/bodies/wide_slices.h"
#include "engine/cuda/ring.h"

namespace ark::cuda {

// The sums of a tile. W: 16-bit numbers, or codes, in panels of 64 columns, whose pieces begin at multiples of 16 rows.
template <class W>
struct WidePieces : WideSlices<Weights<W, 64>> {
  using Own = Weights<W, 64>;
  using X = typename Own::X;
  static_assert(Own::kTakesWideTiles && sizeof(X) == 2);
  // Levels of the tree whose sums wait in registers, of codes fewer, which take registers until their terms multiply
  // them; beside them those of a piece, of all columns, or, of numbers, whose operands take more, of half of them at a
  // time.
  static constexpr int kOwnLevels = kWideIsExact && dev::kMovesRegisters && !Own::kAreCodes ? 2 : 1,
                       kColumnGroups = 64 / 16,
                       kGroupsAtOnce = kWideIsExact && kOwnLevels == 1 && !Own::kAreCodes ? kColumnGroups / 2
                                                                                          : kColumnGroups;
  static_assert(kWideParts * kWideOctets % 2 == 0);  // two of both are loaded at once

  using Slices = WideSlices<Own>;
  using Slices::b, Slices::instance, Slices::rows, Slices::pieces;
  const i32 halves;
  Sum sums[kWideOctets][kGroupsAtOnce];
  Sum waiting[kOwnLevels][kWideOctets][kWideIsExact ? kColumnGroups : 1];  // in the end [0]: the tile's

  ARK_DEVICE WidePieces(Block& block, u32 at_instance, const StreamTiles& tiles, const StreamTile& tile)
      : Slices(block, at_instance, tiles, tile),
        halves(WideHalves(instance_at(instance).stream, tile).count) {}
  using Slices::octets, Slices::part_of, Slices::slice_bits, Slices::columns_of, Slices::room_of,
      Slices::copy_x, Slices::look_at_x;

  ARK_DEVICE int half() const { return b.warp / kWideReaders; }
  // Of one eight of rows a warp, where columns are taken by halves: sums of the second half are where those of a second
  // eight are.
  ARK_DEVICE bool is_alone() const { return kGroupsAtOnce < kColumnGroups && rows <= 8 * kWideReaders; }
  ARK_DEVICE i32 first_row() const { return b.warp % kWideReaders * octets() * 8; }

  // ---- a piece's products

  // Where a lane finds its lines of sixteen columns of a stage; and in a room of the warp's rows of x: of both parts of
  // eight, or of two eights, of which the second may be the first once more.
  ARK_DEVICE u32 weights_at(const u8* stage) const {
    const int matrix = b.lane / 8, line = b.lane % 8;
    return static_cast<u32>(stage - dev::shared()) +
           ((matrix / 2 * 8 + line) * 64 + (matrix % 2 ^ line) * 8) * static_cast<u32>(sizeof(W));
  }
  ARK_DEVICE u32 x_at(i32 slice, int octet, i32 count) const {
    const int matrix = b.lane / 8;
    const i32 own = kWideIsExact ? octet : dev::min(octet + matrix / 2, count - 1);
    const i32 row = first_row() + own * 8 + b.lane % 8;
    const X* const line = row_of<X>(room_of(slice), row) + (kWideIsExact ? matrix : matrix % 2) * 8;
    return static_cast<u32>(reinterpret_cast<const u8*>(line) - dev::shared());
  }
  // Of four matrices: of two eights, or of both parts of one.
  template <int kOctets>
  static constexpr int kLoads = kOctets* kWideParts / 2;
  template <int kCount>
  ARK_DEVICE void find_x(u32 (&from)[kCount], i32 slice, i32 count) const {
    ARK_UNROLL
    for (int n = 0; n < kCount; ++n)
      from[n] = kWideIsExact ? x_at(slice, 0, count) + n * 8 * kWidePitch * 4 : x_at(slice, n * 2, count);
  }
  template <int kCount>
  ARK_DEVICE static void load_x(u32 (&to)[kCount][4], const u32 (&from)[kCount], int step, i32 count) {
    ARK_UNROLL
    for (int n = 0; n < kCount; ++n)
      if (n * 2 / kWideParts < count)
        dev::ldmatrix_x4(to[n], dev::shared() + from[n] + step * kWideParts * sizeof(X));
  }
  template <int kGroups>
  ARK_DEVICE static void load_weights(u32 (&to)[kGroups][4], u32 from, int step) {
    ARK_UNROLL
    for (int g = 0; g < kGroups; ++g)
      dev::ldmatrix_x4_trans(to[g], dev::shared() + (from ^ g * 16 * sizeof(W)) + step * 64 * sizeof(W));
  }

  // Columns from group `first` on of as many groups as sums are kept of; kAlone: all columns of the warp's one eight of
  // rows. For sixteen rows of the weight a warp waits, while the other one of its quarter of the processor multiplies.
  template <bool kAlone>
  ARK_DEVICE void multiply_piece(i32 piece, const u8* stage, i32 piece_rows, i32 count, int first) {
    constexpr int kOctets = kAlone ? 1 : kWideOctets, kGroups = kAlone ? kColumnGroups : kGroupsAtOnce;
    const u32 weights_from = weights_at(stage) ^ static_cast<u32>(first * 16 * sizeof(W));
    u32 x_from[kLoads<kOctets>];
    find_x(x_from, piece, count);
    ARK_ROLLED
    for (int step = 0; step < piece_rows; step += 16) {
      u32 weights[kGroups][4], x[kLoads<kOctets>][4];
      load_weights(weights, weights_from, step);
      load_x(x, x_from, step, count);
      // Part by part: of products in a row none adds to the sums of the one before.
      ARK_UNROLL
      for (int part = 0; part < kWideParts - ARK_BUG(wide_rests_left_out); ++part) {
        ARK_UNROLL
        for (int o = 0; o < kOctets; ++o) {
          if (o >= count) break;
          const int matrix = o * kWideParts + part;
          const u32 of_rows[2] = {x[matrix / 2][matrix % 2 * 2], x[matrix / 2][matrix % 2 * 2 + 1]};
          ARK_UNROLL
          for (int g = 0; g < kGroups; ++g)
            dev::mma_m16n8k16<W>(sums[o + g / kGroupsAtOnce][g % kGroupsAtOnce].of, weights[g], of_rows);
        }
      }
    }
  }

  // The same of codes, all columns: rows [first, end) of the stage. Eights of rows beyond `count` are the last one's.
  template <int kOctets>
  ARK_DEVICE void multiply_slice(i32 slice, const u8* stage, i32 first, i32 end, i32 count) {
    u32 x_from[kLoads<kOctets>];
    find_x(x_from, slice, count);
    const auto load = [&](i32 row, u32(&x)[kWideParts][kOctets][2]) {
      u32 all[kLoads<kOctets>][4];
      load_x(all, x_from, row - first, kOctets);
      ARK_UNROLL
      for (int part = 0; part < kWideParts; ++part) {
        ARK_UNROLL
        for (int o = 0; o < kOctets; ++o) {
          const int matrix = o * kWideParts + part;
          x[part][o][0] = all[matrix / 2][matrix % 2 * 2],
          x[part][o][1] = all[matrix / 2][matrix % 2 * 2 + 1];
        }
      }
    };
    Own::with_runs(instance_at(instance).stream, stage, first, end, [&](const typename Own::Run& run) {
      Own::template multiply_run<kWideParts, kOctets, dev::kMovesRegisters && kOctets <= 2 ? 2 : 1>(
          b.lane, run, load, sums);
    });
  }

  // ---- exact: a piece's sums into the tree

  // Where a thread's sums of a level wait that registers do not hold: four of them; the next ones of the level lie
  // kConsumers times four floats behind.
  ARK_DEVICE float* near_level(int level) const {
    return wide_scratch(b) + (kWideRooms - ARK_BUG(wide_waiting_in_rooms)) * part_of(kWideRoomFloats) +
           static_cast<u32>(level) * part_of(kWideLevelFloats) + b.thread * 4;
  }
  ARK_DEVICE float* far_level(int level) const {
    const i64 own = ARK_BUG(wide_waiting_of_others) ? 0 : b.words->processor;
    const i64 place = own * b.rank->waiting_levels + level - kWideSharedLevels;
    return at<float>(b.rank->waiting) + place * kWideLevelFloats + b.thread * 4;
  }
  ARK_DEVICE static void add(Sum& sum, const dev::f32x4& left) {
    sum = {{left.x + sum.of[0], left.y + sum.of[1], left.z + sum.of[2], left.w + sum.of[3]}};
  }
  ARK_DEVICE static dev::f32x4 words_of(const Sum& s) { return {s.of[0], s.of[1], s.of[2], s.of[3]}; }
  // Of each warp, whose sums wait behind the registers: of rows that are there, unless half the columns of one eight
  // lie where others' second eight does.
  ARK_DEVICE i32 octets_kept() const {
    return kGroupsAtOnce == kColumnGroups ? dev::uniform(octets()) : kWideOctets;
  }
  // use(sum, octet, group) of all sums in registers: of eight rows, and sixteen of the columns at hand. kThere: of
  // those that are kept.
  template <bool kThere = false, class Use>
  ARK_DEVICE void with_each(const Use& use) {
    const i32 count = kThere ? octets_kept() : kWideOctets;
    ARK_UNROLL
    for (int o = 0; o < kWideOctets; ++o) {
      if (o >= count) break;
      ARK_UNROLL
      for (int g = 0; g < kGroupsAtOnce; ++g) use(sums[o][g], o, g);
    }
  }
  // Columns from group `first` on are at hand.
  ARK_DEVICE int place_of(int octet, int group) const {
    const int groups = is_alone() ? kGroupsAtOnce : kColumnGroups;
    return (octet * groups + group) * kConsumers * 4;
  }
  // Eight rows after the other, as far as registers hold no more.
  template <class Fetch>
  ARK_DEVICE void add_each(int first, const Fetch& fetch) {
    const i32 count = octets_kept();
    ARK_UNROLL
    for (int o = 0; o < kWideOctets; ++o) {
      if (o >= count) break;
      dev::f32x4 left[kGroupsAtOnce];
      ARK_UNROLL
      for (int g = 0; g < kGroupsAtOnce; ++g) left[g] = fetch(place_of(o, first + g));
      ARK_UNROLL
      for (int g = 0; g < kGroupsAtOnce; ++g) add(sums[o][g], left[g]);
    }
  }
  // Behind the registers' levels: takes up what waits, up to the first level where nothing does, and waits there.
  ARK_DEVICE void fold_beyond(i32 piece, int first) {
    ARK_ROLLED
    for (int level = 0;; ++level) {
      const bool takes = (piece >> (kOwnLevels + level)) % 2 != ARK_BUG(wide_waits_for_right);
      if (!takes && piece + 1 == pieces) return;  // of the whole tile
      if (level < kWideSharedLevels) {
        float* const all = near_level(level);
        if (takes) {
          add_each(first, [&](int place) { return *reinterpret_cast<const dev::f32x4*>(all + place); });
        } else {
          with_each<true>([&](Sum& s, int o, int g) {
            *reinterpret_cast<dev::f32x4*>(all + place_of(o, first + g)) = words_of(s);
          });
        }
      } else {
        float* const all = far_level(level);
        if (takes) {
          add_each(first, [&](int place) {
            return dev::ld_global(reinterpret_cast<const dev::f32x4*>(all + place));
          });
        } else {
          with_each<true>([&](Sum& s, int o, int g) {
            dev::st_global(reinterpret_cast<dev::f32x4*>(all + place_of(o, first + g)), words_of(s));
          });
        }
      }
      if (!takes) return;
    }
  }
  template <int kLevel>
  ARK_DEVICE void wait_at(int first) {
    with_each([&](const Sum& s, int o, int g) { waiting[kLevel][o][first + g] = s; });
  }
  template <int kLevel = 0>
  ARK_DEVICE void fold(i32 piece, int first) {
    if constexpr (kLevel < kOwnLevels) {
      if ((piece >> kLevel) % 2 == 0) return piece + 1 == pieces ? wait_at<0>(first) : wait_at<kLevel>(first);
      with_each([&](Sum& s, int o, int g) { add(s, words_of(waiting[kLevel][o][first + g])); });
      fold<kLevel + 1>(piece, first);
    } else {
      fold_beyond(piece, first);
      if (piece + 1 == pieces) wait_at<0>(first);
    }
  }

  ARK_DEVICE void clear() {
    with_each([](Sum& s, int, int) { s = {}; });
  }

  // The piece at the cursor, or a slice of one of codes, whose stage is in use until the last one.
  ARK_DEVICE void take_numbers(i32 piece) {
    const bool is_there = acquire_stage_without_calls(b, b.cursor);
    const i32 piece_rows = dev::uniform(is_there && first_row() < rows ? columns_of(piece) : 0);
    const u8* const stage = stage_at(b, b.cursor);
    ARK_UNROLL
    for (int first = 0; first < kColumnGroups; first += kGroupsAtOnce) {
      if (kWideIsExact && !ARK_BUG(wide_sums_kept)) clear();
      if (piece_rows > 0 && first == 0 && is_alone()) {
        if constexpr (kWideIsExact) multiply_piece<true>(piece, stage, piece_rows, 1, first);
      } else if (piece_rows > 0) {
        multiply_piece<false>(piece, stage, piece_rows, dev::uniform(octets()), first);
      }
      const bool is_last = is_alone() || first + kGroupsAtOnce == kColumnGroups;
      if (is_last) release_stage(b, b.cursor, kWideReaders);
      if constexpr (kWideIsExact) fold(piece, first);
      if (is_last) break;
    }
  }
  ARK_DEVICE void take_codes(i32 slice) {
    const int number = slice & slice_bits();  // of the piece's
    const bool is_there = acquire_stage_without_calls(b, b.cursor);
    const i32 columns = dev::uniform(is_there && first_row() < rows ? columns_of(slice) : 0);
    if (kWideIsExact && number == 0 && !ARK_BUG(wide_sums_kept)) clear();
    const i32 first = ARK_BUG(wide_first_slice_again) ? 0 : number * kLongestSlice,
              count = dev::uniform(octets());
    const u8* const stage = stage_at(b, b.cursor);
    if (columns > 0 && count <= kWideOctets / 2) {
      multiply_slice<kWideOctets / 2>(slice, stage, first, first + columns, count);
    } else if (columns > 0) {
      multiply_slice<kWideOctets>(slice, stage, first, first + columns, count);
    }
    if (number == slice_bits() || ARK_BUG(wide_stage_left_early)) release_stage(b, b.cursor, kWideReaders);
    if constexpr (kWideIsExact) {
      if (number == slice_bits()) fold(slice >> slice_bits(), 0);
    }
  }

  ARK_DEVICE void run() {
    const int stages = b.stages;
    clear();
    ARK_UNROLL
    for (int slice = 0; slice < kWideRooms - 1; ++slice) copy_x(slice);
    b.cursor.advance(half(), stages);
    ARK_ROLLED
    for (i32 slice = 0; slice < pieces << slice_bits(); ++slice) {
      if (!ARK_BUG(wide_missing_x_wait)) dev::cp_async_wait<kWideRooms - 2>();
      if (b.words->x_told != 0 && !ARK_BUG(wide_copies_not_looked_at)) look_at_x(slice);
      if (!ARK_BUG(wide_missing_barrier)) consumers_sync();
      copy_x(slice + kWideRooms - 1);
      if (half() < halves) {
        if constexpr (Own::kAreCodes) {
          take_codes(slice);
        } else {
          take_numbers(slice);
        }
      }
      if ((slice & slice_bits()) == slice_bits()) b.cursor.advance(halves, stages);
    }
    b.cursor.rewind(half(), stages);
    consumers_sync();  // all are through with x
    put_sums();
    consumers_sync();
  }
  ARK_DEVICE dev::f32x4 sum_of(int octet, int group) const {
    if constexpr (!kWideIsExact) return words_of(sums[octet][group % kGroupsAtOnce]);
    const int other = octet == 0 ? group / kGroupsAtOnce : octet;
    return is_alone() ? words_of(waiting[0][other][group % kGroupsAtOnce])
                      : words_of(waiting[0][octet][group]);
  }
  ARK_DEVICE void put_sums() const {
    if (half() >= halves) return;
    float* const to = wide_sums(b, instance_at(instance).stream, half(), rows);
    ARK_UNROLL
    for (int r = 0; r < 2 * kWideOctets; ++r) {
      const i32 row = first_row() + r / 2 * 8 + b.lane % 4 * 2 + r % 2;
      if ((r / 2 >= octets() && !ARK_BUG(wide_rows_of_others)) || row >= rows) continue;
      float* const line = to + row * 64 + b.lane / 4;
      ARK_UNROLL
      for (int g = 0; g < kColumnGroups; ++g) {
        const dev::f32x4 own = sum_of(r / 2, g);
        line[g * 16] = r % 2 == 0 ? own.x : own.y, line[g * 16 + 8] = r % 2 == 0 ? own.z : own.w;
      }
    }
  }
};

// All of a tile's pieces: its sums are in scratch.
template <class W>
ARK_APART void wide_pieces(const LoopParameters& p, u32 instance, i32 number) {
  Block b = open_turn_block(p);
  take_ring(b);
  const Instance& i = instance_at(instance);
  const StreamTiles tiles(i.stream, Call{b, i, nullptr}.size(i.stream.m));
  WidePieces<W>(b, instance, tiles, StreamTile(tiles, number)).run();
  leave_cursor(b);
}

}  // namespace ark::cuda
