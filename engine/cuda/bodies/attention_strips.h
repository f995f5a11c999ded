// Attention of many rows on tensor cores (bodies/attention.h), of prompts: each warp has a strip of them, and all warps
// the same keys, which are copied to shared memory for all. Long values are taken in two parts, each with all keys.
//
// A row comes to the same bits as where each warp has keys of its own (bodies/attention_mma.h). What one warp would
// have there, every eighth run of 32 keys, is taken up without a pause, from nothing on, and merged with what the
// warps before have come to; then the next one's is. So a warp here holds two states of its rows: all keys', and those
// of the warp whose turn it is.
#pragma once

#include "engine/cuda/bodies/attention_fragments.h"

namespace ark::cuda {

template <class E, int kKey, int kValue, class X>
struct AttentionByStrips : AttentionFragments<E, kKey, kValue, X, kRowsOfStrips> {
  using Fragments = AttentionFragments<E, kKey, kValue, X, kRowsOfStrips>;
  using Rows = AttentionRows<kValue, X>;
  using Fragments::call, Fragments::task, Fragments::scratch, Fragments::rule, Fragments::target;
  using Fragments::kRows, Fragments::kWeights;
  using typename Fragments::Place, typename Fragments::Scores, typename Fragments::Target,
      typename Fragments::Words;

  static constexpr int kParts = strip_parts(kValue), kPart = kValue / kParts;  // of a value's elements
  static_assert(kRows == kConsumerWarps * kStripRows && kValue % (kParts * 16) == 0);

  // Keys that are taken between two barriers: whose of eight warps they would be (kConsumerWarps: no keys are left),
  // and the first one.
  struct Run {
    int warp;
    i32 first;
  };
  // A pass's way through the keys, in scratch: registers are few. Of the warps: the newest key that a strip sees, and
  // its rows. Behind the last key; the oldest one that the pass sees. And by turn % 4 the runs of three turns, with
  // their keys' rows among all rows of pages.
  struct alignas(16) Walk {
    i32 newest[kConsumerWarps], rows[kConsumerWarps];
    i32 end, oldest;
    Run runs[4];
    u32 keys[4][32];
  };

  // Two rooms for 32 keys and values. Keys have a pitch in elements; where that is an even number of runs of 64 bytes,
  // every other key has its pairs of runs the other way round, so that two keys' runs are in different banks. Values
  // lie an odd number of 16 bytes from each other, so that eight keys' 16 bytes, which are loaded together, are, too.
  static constexpr int kKeyPitch = Fragments::kPairs * 32, kTurned = Fragments::kPairs % 2 == 0 ? 32 : 0;
  static constexpr int kPieces = kPart / 8, kValuePitch = kPieces | 1;       // of 16 bytes
  static constexpr int kRoom = 32 * (kKeyPitch * 2 + kValuePitch * 16) / 4,  // in floats
      kRooms = Fragments::kBehindTargets, kMerged = kRooms + 2 * kRoom, kWalk = kMerged + kRows * 2;
  static_assert(open_bytes(kScratchBytes) + kWalk * 4 + sizeof(Walk) <= kScratchBytes && kWalk % 4 == 0);

  ARK_DEVICE explicit AttentionByStrips(const Call& c) : Fragments(c) {}

  ARK_DEVICE E* key_at(int room, int key, int d) const {
    return reinterpret_cast<E*>(scratch(kRooms + room * kRoom)) + key * kKeyPitch + (d ^ key % 2 * kTurned);
  }
  ARK_DEVICE E* value_at(int room, int key, int piece) const {
    return reinterpret_cast<E*>(scratch(kRooms + room * kRoom)) + 32 * kKeyPitch +
           (key * kValuePitch + piece) * 8;
  }

  // ---- keys, by 32

  ARK_DEVICE Walk& walk() const { return *reinterpret_cast<Walk*>(scratch(kWalk)); }
  ARK_DEVICE const Run& run_at(int turn) const { return walk().runs[turn % 4]; }
  // A warp: the run of a turn, from keys of `warp`, number `first` on; where the lane's key of it lies.
  ARK_DEVICE Place find_run(int turn, int warp, i32 first) const {
    const i32 end = walk().end, oldest = walk().oldest;
    ARK_ROLLED
    while (first >= end && ++warp < kConsumerWarps)
      first = first_key(task(), call.size(call.i.attention.window), warp, oldest);
    if (call.b.lane == 0) walk().runs[turn % 4] = {warp, first};
    // Behind the last key: that one, whose weight is 0 then.
    return Fragments::place_of_key(dev::min(first + call.b.lane, end - 1), false, warp);
  }
  ARK_DEVICE Place find_behind(int turn) const {
    const Run before = run_at(turn - 1);
    return find_run(turn, before.warp, before.first + kAttentionBlock);
  }
  ARK_DEVICE void tell(int turn, const Place& place) const {
    walk().keys[turn % 4][call.b.lane] = Fragments::row_of_key(place);
  }
  // Eight threads copy a key of a turn's and its value.
  ARK_DEVICE void copy(int part, int turn) const {
    const int key = call.b.thread / 8, own = call.b.thread % 8, room = turn % 2;
    const auto row = static_cast<i64>(walk().keys[turn % 4][key]);
    const E* keys = at<const E>(call.i.attention.keys) + row * kKey;
    const E* values = at<const E>(call.i.attention.values) + row * kValue + part * kPart;
    ARK_UNROLL
    for (int i = 0; i < (kKey / 8 + 7) / 8; ++i) {
      const int piece = i * 8 + own;
      if (kKey % 64 == 0 || piece < kKey / 8) dev::cp_async16(key_at(room, key, piece * 8), keys + piece * 8);
    }
    ARK_UNROLL
    for (int i = 0; i < (kPieces + 7) / 8; ++i) {
      const int piece = i * 8 + own;
      if (kPieces % 8 == 0 || piece < kPieces)
        dev::cp_async16(value_at(room, key, piece), values + piece * 8);
    }
    dev::cp_async_commit();
  }

  // ---- a strip

  // Of rows g and g + 8 the values' elements 16p + 8i + 2t and + 1: [p][0][i].
  using Sums = float[kPart / 16][1][2][4];
  // Of some keys of a strip: the largest scores, sums of weights of the lane's keys, and of values.
  struct State {
    float maximum[2] = {-infinity(), -infinity()}, sum[2] = {0, 0};
    Sums of = {};
  };
  // Of all keys so far, but for their sums of values: a row's are those of its four lanes. In scratch, registers are
  // few.
  struct Merged {
    float maximum, sum;
  };
  ARK_DEVICE Merged& merged_row(int row) const { return reinterpret_cast<Merged*>(scratch(kMerged))[row]; }

  ARK_DEVICE void take(i32 first_key, int room, State& state) const {
    const int first_row = call.b.warp * kStripRows;
    Scores scores = {};
    ARK_ROLLED
    for (int d = 0; d < kKey; d += 32) {
      const int own = d + call.b.lane % 4 * 8;
      const auto load = [&](int n) -> Words {
        if (kKey % 32 != 0 && own >= kKey) return {};
        const auto v = *reinterpret_cast<const dev::u32x4*>(key_at(room, n * 8 + call.b.lane / 4, own));
        return {{v.x, v.y, v.z, v.w}};
      };
      const Words first[2] = {load(0), load(1)};
      Fragments::template score<0>(call.b.warp, first, d / 32, true, scores);
      const Words second[2] = {load(2), load(3)};
      Fragments::template score<2>(call.b.warp, second, d / 32, true, scores);
    }
    const int row = first_row + call.b.lane / 4;
    ARK_UNROLL
    for (int r = 0; r < 2; ++r) {
      const auto now = Fragments::weigh_row(rule(row + r * 8), r, first_key + call.b.lane % 4 * 2,
                                            state.maximum[r], scores);
      state.maximum[r] = now.maximum;
      state.sum[r] = dev::fma(state.sum[r], now.factor, now.sum);
      ARK_UNROLL
      for (auto& sixteen : state.of) {
        ARK_UNROLL
        for (auto& of : sixteen[0]) of[2 * r] *= now.factor, of[2 * r + 1] *= now.factor;
      }
    }
    ARK_UNROLL
    for (int u = 0; u < 2; ++u) {
      u32 high[1][4], low[1][4];
      Fragments::split_weights(scores, u, high, low);
      ARK_UNROLL
      for (int p = 0; p < kPart / 16; ++p) {
        u32 four[4];  // keys' halves of the first eight elements, then of the others
        dev::ldmatrix_x4_trans(four, value_at(room, u * 16 + call.b.lane % 16, 2 * p + call.b.lane / 16));
        const u32 b[2][2] = {{four[0], four[1]}, {four[2], four[3]}};
        dev::mma_tile<E>(state.of[p], high, b);
        dev::mma_tile<E>(state.of[p], low, b);
      }
    }
  }

  // What a warp would have come to, behind those before it.
  ARK_DEVICE void merge(State& state, Sums& all) const {
    ARK_UNROLL
    for (int r = 0; r < 2; ++r) {
      float sum = state.sum[r];
      sum += dev::shfl_xor(sum, 1);
      sum += dev::shfl_xor(sum, 2);
      Merged& row = merged_row(call.b.warp * kStripRows + call.b.lane / 4 + r * 8);
      const Merged before = row;
      const Merge merge(before.maximum, state.maximum[r]);
      dev::sync_warp();  // all have read it
      if (call.b.lane % 4 == 0) row = {merge.maximum, merge.of(before.sum, sum)};
      constexpr float by = 1 / kWeights;
      ARK_UNROLL
      for (int p = 0; p < kPart / 16; ++p) {
        ARK_UNROLL
        for (int i = 0; i < 4; ++i) {
          float& to = all[p][0][i / 2][2 * r + i % 2];
          to = merge.of(to, state.of[p][0][i / 2][2 * r + i % 2] * by);
        }
      }
    }
    state = {};
    dev::sync_warp();
  }

  ARK_DEVICE void hand_in(int part, i32 rows, Sums& all) const {
    // Of each sixteen elements the lanes of a pair then have four of the first eight, or of the others.
    const bool odd = call.b.lane % 2 != 0;
    ARK_UNROLL
    for (int p = 0; p < kPart / 16; ++p) {
      float(&of)[2][4] = all[p][0];
      ARK_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float others = dev::shfl_xor(odd ? of[0][i] : of[1][i], 1);
        (odd ? of[0][i] : of[1][i]) = others;
      }
    }
    const int d = part * kPart + (odd ? 8 : 0) + call.b.lane % 4 / 2 * 4;
    ARK_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int own = call.b.lane / 4 + r * 8;
      if (own >= rows) break;
      const Target to = target(call.b.warp * kStripRows + own);
      const Merged merged = merged_row(call.b.warp * kStripRows + own);
      const auto four = [&](int p) {
        const float(&of)[2][4] = all[p][0];
        return dev::f32x4{of[0][2 * r], of[0][2 * r + 1], of[1][2 * r], of[1][2 * r + 1]};
      };
      if (task().split_count == 1) {
        const auto out = Rows::outputs(to);
        const float by = last_factor(to.sink, merged.maximum, merged.sum);
        ARK_UNROLL
        for (int p = 0; p < kPart / 16; ++p) out.store(p * 16 + d, four(p), by);
      } else {
        float* sums = Rows::partial(to.place, task().split);
        ARK_UNROLL
        for (int p = 0; p < kPart / 16; ++p)
          dev::st_global(reinterpret_cast<dev::f32x4*>(sums + p * 16 + d), four(p));
        if (part == 0 && call.b.lane % 4 == 0)
          dev::st_global(reinterpret_cast<dev::f32x2*>(sums + kValue), {merged.maximum, merged.sum});
      }
    }
  }

  // Of kRows rows of the tile, or fewer, some of the values' elements. Pages are looked up two turns ahead, by the
  // warps in turn; copies begin one ahead.
  ARK_DEVICE void run_part(int part, i32 row0, i32 all_rows) const {
    const int first_row = call.b.warp * kStripRows;
    if (call.b.warp == 0) {
      const Place first =
          find_run(0, 0, first_key(task(), call.size(call.i.attention.window), 0, walk().oldest));
      dev::sync_warp();
      const Place second = find_behind(1);
      tell(0, first), tell(1, second);
    }
    if (call.b.lane < kStripRows) merged_row(first_row + call.b.lane) = {-infinity(), 0};
    ARK_ROLLED
    for (i32 row = 0; part == 0 && walk().rows[call.b.warp] > 0 && row < kStripRows; row += 8)  // all sixteen
      Fragments::template split_queries<8, 1>(first_row + row, [&](i32 own) -> typename Fragments::Query {
        return {task().number, row0 + dev::min(own, all_rows - 1), own < all_rows};
      });
    if (!ARK_BUG(first_run_not_told)) consumers_sync();
    if (run_at(0).warp < kConsumerWarps) copy(part, 0);
    State state;
    Sums all = {};
    ARK_ROLLED
    for (int turn = 0; dev::uniform(run_at(turn).warp) < kConsumerWarps; ++turn) {
      if (!ARK_BUG(strips_without_wait)) dev::cp_async_wait<0>();
      // All copies are there, all are through with the other room, and what was found is told.
      if (!ARK_BUG(rooms_without_barrier)) consumers_sync();
      if (run_at(turn + 1).warp < kConsumerWarps) copy(part, turn + 1);
      const bool finds = call.b.warp == turn % kConsumerWarps;
      Place place{};
      if (finds) place = find_behind(turn + 2);
      const Run run = run_at(turn);
      const bool sees = dev::uniform(static_cast<u32>(run.first <= walk().newest[call.b.warp])) != 0;
      if (sees) take(run.first, turn % 2, state);
      const bool is_last = dev::uniform(run_at(turn + 1).warp) != run.warp;
      if (is_last && !(ARK_BUG(warps_not_parted) && run.warp == 0)) merge(state, all);
      if (finds) tell(turn + 2, place);
    }
    const i32 rows = walk().rows[call.b.warp];
    if (rows > 0) hand_in(part, rows, all);
  }

  // bodies/attention.h: attend(). Of one tile, which has rows.
  ARK_DEVICE int attend(int n, int before) const {
    Rows::open(n);
    ARK_ROLLED
    for (i32 row0 = 0; row0 < task().rows; row0 += kRows) run_rows(row0, dev::min(kRows, task().rows - row0));
    Fragments::open_next(n, before);
    if (!ARK_BUG(strips_left_early)) consumers_sync();  // all are through with the scratch
    Fragments::ask_for_next(n, before);
    if (task().split_count > 1) join_splits<kValue, X>(call.b.p, instance_offset(call), n, 1);
    return 1;
  }
  // kRows rows of the tile, or fewer.
  ARK_DEVICE void run_rows(i32 row0, i32 all_rows) const {
    ARK_ROLLED
    for (int part = 0; part < kParts; ++part) {
      if (!ARK_BUG(strips_without_barrier)) consumers_sync();  // all are through with the scratch
      if (part == 0) begin_walk(row0, all_rows);
      run_part(part, row0, all_rows);
    }
  }
  ARK_DEVICE void begin_walk(i32 row0, i32 all_rows) const {
    if (call.b.lane == 0) {
      const int first_row = call.b.warp * kStripRows;
      const i32 rows = dev::min(kStripRows, all_rows - first_row);
      walk().rows[call.b.warp] = rows;
      walk().newest[call.b.warp] = rows > 0 ? Rows::position_of(row0 + first_row + rows - 1) : -1;
    }
    if (call.b.thread == 0) {
      const i32 window = call.size(call.i.attention.window), of_split = split_keys(task().item.position);
      walk().end = dev::min((task().split + 1) * of_split, Rows::position_of(row0 + all_rows - 1) + 1);
      walk().oldest = window > 0 ? Rows::position_of(row0) - window + 1 : 0;
    }
    dev::sync_warp();
  }
};

}  // namespace ark::cuda
