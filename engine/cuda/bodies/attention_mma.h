// Attention on tensor cores (bodies/attention.h): sixteen or thirty-two rows at a time, keys and values of 16 bits.
//
// A warp's lanes load keys and values into the fragments' registers (bodies/attention_fragments.h), 16 bytes each, and
// nothing goes through shared memory: which of a value's elements is which column of a product is free, too.
//
// Each warp has keys of its own, and all the same few rows, as a decode step has no others. A block of keys is 64 KiB,
// 1,560 ns from L2 at 42 bytes a nanosecond, and the arithmetic of one strip about 1,000: so there are two strips where
// consumers have taken others' registers and heads are short enough. A decode step's rows are in one, and cost no more
// than eight would. Where rows are many, warps share keys instead (bodies/attention_strips.h).
#pragma once

#include "engine/cuda/bodies/attention_fragments.h"

namespace ark::cuda {

template <class E, int kKey, int kValue, class X>
using FragmentsOfMma =
    AttentionFragments<E, kKey, kValue, X, kStripRows * attention_strips(dev::kMovesRegisters, kKey, kValue)>;

template <class E, int kKey, int kValue, class X>
struct AttentionByMma : FragmentsOfMma<E, kKey, kValue, X> {
  using Fragments = FragmentsOfMma<E, kKey, kValue, X>;
  using Rows = AttentionRows<kValue, X>;
  using Fragments::call, Fragments::task, Fragments::scratch, Fragments::rule, Fragments::target;
  using Fragments::kRows, Fragments::kCapped, Fragments::kWeights, Fragments::row_of_key;
  using typename Fragments::Place, typename Fragments::Scores, typename Fragments::Words;
  static constexpr int kStrips = kRows / kStripRows;
  static_assert(kAttentionBlock == kConsumerWarps * 32 && kKey % 8 == 0 && kValue % 8 == 0);

  // A value's elements are taken by parts, whose sums a warp has registers for, and these by chunks; of a chunk the
  // values of 16 keys are loaded at once, or of all 32 where there are registers, of keys 32 elements.
  static constexpr int kChunk = 64, kPart = kValue < 128 ? kValue : 128;
  static constexpr int kChunks = (kPart + kChunk - 1) / kChunk,
                       kValuesAtOnce = values_at_once(dev::kMovesRegisters, kKey, kValue);

  // Scratch of a block, in floats.
  static constexpr int kMaxima = Fragments::kBehindTargets, kSums = kMaxima + kConsumerWarps * kRows,
                       kKeyRows = kSums + kConsumerWarps * kRows, kValues = kKeyRows + kConsumerWarps * 32;
  // Fours of each eight elements of a chunk that warps merge at once.
  static constexpr int kFours = (kValues + kConsumerWarps * kStripRows * kChunk) * 4 <= kRowsScratch ? 2 : 1;
  static constexpr int kPieces = kChunk / 8 * kFours;  // of four floats, of a row
  // A warp's part of what is merged later, in floats; those for cap(), behind which sums of weights wait where values
  // take the registers.
  static constexpr int kMerged = 4 * kStripRows * kPieces;
  static constexpr bool kSumsAside = kValuesAtOnce > 1;
  static_assert((kValues + kConsumerWarps * kMerged) * 4 <= kRowsScratch);
  static_assert(kMerged >= kCapped && (!kSumsAside || kCapped + kStrips * 2 * 32 <= kMerged));

  ARK_DEVICE explicit AttentionByMma(const Call& c) : Fragments(c) {}

  // ---- a warp's 32 keys

  // Of the lane's own key; behind the last key: that one's, whose weight is 0 then.
  ARK_DEVICE Place place_of_own_key(i32 first, i32 end, bool is_first) const {
    return Fragments::place_of_key(dev::min(first + call.b.lane, end - 1), is_first);
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

  // A warp's running state of a strip, but for its maxima, and 32 keys' scores; of rows g and g + 8 the columns' sums,
  // of which a value's element 16t + 8i + 4f + j of a chunk is of[chunk][f][0][j][i] (row g + 8: [2 + i]). Sums of
  // weights: of the lane's keys.
  using Sums = float[2][1][4][4];
  struct State {
    float sum[2] = {0, 0};
    Sums of[kChunks] = {};
    Scores scores;
  };
  // use(strip, state) of those that have rows.
  template <class Use>
  ARK_DEVICE static void with_each(i32 rows, State (&states)[kStrips], const Use& use) {
    ARK_UNROLL
    for (int strip = 0; strip < kStrips; ++strip) {
      if (strip == 0 || strip * kStripRows < rows) use(strip, states[strip]);
    }
  }

  // Of a row's scores, so far: registers are few.
  ARK_DEVICE float& maximum(int row) const { return scratch(kMaxima)[call.b.warp * kRows + row]; }

  // Of row g + 8r of a strip: the sum of the weights of the lane's keys.
  ARK_DEVICE float& sum_of_weights(int strip, State& state, int r) const {
    if constexpr (kSumsAside)
      return merged_four(call.b.warp, 0, 0)[kCapped + (strip * 2 + r) * 32 + call.b.lane];
    return state.sum[r];
  }

  // Scores -> weights; `key`: the lane's first one. Rescales the state. `rows`: of the strip.
  ARK_DEVICE void weigh(int strip, i32 rows, i32 key, State& state) const {
    const float most = call.i.attention.softcap;
    const int row = strip * kStripRows + call.b.lane / 4;
    if (most > 0) Fragments::cap(most, row, merged_four(call.b.warp, 0, 0), state.scores);
    ARK_UNROLL
    for (int r = 0; r < 2; ++r) {
      if (r == 1 && rows <= 8) break;
      dev::sync_warp();
      const auto now = Fragments::weigh_row(rule(row + r * 8), r, key, maximum(row + r * 8), state.scores);
      if (!ARK_BUG(maximum_in_use)) dev::sync_warp();  // all have read the one before
      if (call.b.lane % 4 == 0) maximum(row + r * 8) = now.maximum;
      float& all = sum_of_weights(strip, state, r);
      all = dev::fma(all, now.factor, now.sum);
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

  ARK_DEVICE static void add_values(const Values& values, int first_u, i32 rows, State (&states)[kStrips],
                                    int chunk) {
    ARK_UNROLL
    for (int u = 0; u < kValuesAtOnce; ++u) {
      u32 high[kStrips][1][4], low[kStrips][1][4];
      ARK_UNROLL
      for (int strip = 0; strip < kStrips; ++strip)
        Fragments::split_weights(states[strip].scores, first_u + u, high[strip], low[strip]);
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
        with_each(rows, states, [&](int strip, State& state) {
          dev::mma_tile<E>(state.of[chunk][f], high[strip], b);
          dev::mma_tile<E>(state.of[chunk][f], low[strip], b);
        });
      }
    }
  }

  // The warp's keys of the split.
  ARK_DEVICE void run_warp(i32 row0, i32 rows, int part, State (&states)[kStrips]) const {
    if (call.b.lane < kRows && !ARK_BUG(maxima_of_others)) maximum(call.b.lane) = -infinity();
    ARK_UNROLL
    for (int n = 0; kSumsAside && !ARK_BUG(weights_not_begun) && n < kStrips * 2; ++n)
      sum_of_weights(n / 2, states[n / 2], n % 2) = 0;
    const i32 window = call.size(call.i.attention.window);
    const i32 newest = Rows::position_of(row0 + rows - 1),
              oldest = window > 0 ? Rows::position_of(row0) - window + 1 : 0;
    const i32 of_split = split_keys(task().item.position);
    const i32 end = dev::uniform(dev::min((task().split + 1) * of_split, newest + 1));
    i32 first = dev::uniform(first_key(task(), window, call.b.warp, oldest));
    if (first >= end) return;
    tell(row_of_key(place_of_own_key(first, end, row0 == 0)));
    ARK_ROLLED
    for (;;) {
      // A page is looked up one turn ahead, and what lies there asked for in L2. Nothing of the next keys is loaded
      // ahead: the registers are not there, and the other warp of the processor's quarter works meanwhile.
      const Place next = place_of_own_key(first + kAttentionBlock, end, false);
      ARK_UNROLL
      for (State& state : states) {
        ARK_UNROLL
        for (int n = 0; n < 16; ++n) state.scores[n / 4][n % 4] = 0;
      }
      ARK_ROLLED
      for (int d = 0; d < kKey; d += 32) {
        Words keys[4];
        load_keys(d, keys);
        with_each(rows, states, [&](int strip, State& state) {
          const int own = ARK_BUG(queries_of_first_strip) ? 0 : strip;
          Fragments::template score<0>(own, keys, d / 32, kStrips > 1, state.scores);
        });
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
      with_each(rows, states, [&](int strip, State& state) {
        weigh(strip, rows - strip * kStripRows, first + call.b.lane % 4 * 2, state);
      });
      ARK_UNROLL
      for (int c = 0; c < kChunks; ++c) {
        ARK_UNROLL
        for (int u = 0; u < 2; u += kValuesAtOnce) {
          if (c + u > 0) load_values(u, part * kPart + c * kChunk, values);
          dev::sync_warp();
          add_values(values, u, rows, states, c);
        }
      }
      first += kAttentionBlock;
      if (first >= end) break;
      tell(next_row);
    }
  }

  // ---- the warps' states, merged in order

  // Where four elements of a warp's row of a strip lie: no two of eight lanes that store or load at once meet in a
  // bank.
  ARK_DEVICE float* merged_four(int warp, int row, int piece) const {
    const int turned = kFours == 2 ? piece ^ (piece >> 2 & 3) ^ (row & 1) << 2 : piece ^ (row & 1);
    return scratch(kValues) + ((warp * kStripRows + row) * kPieces + turned) * 4;
  }
  // Of each eight elements of a chunk the fours from number `four` on. `rows`: of the strip.
  ARK_DEVICE void put(i32 rows, const Sums& sums, int four) const {
    ARK_UNROLL
    for (int r = 0; r < 2; ++r) {
      if (r == 1 && rows <= 8) break;
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
  // Rows of a strip, from row `first` on.
  ARK_DEVICE void merge(i32 first, i32 rows, int from_element, int four) const {
    ARK_ROLLED
    for (int e = call.b.thread; e < rows * kPieces; e += kConsumers) {
      const int own = e / kPieces, row = first + own, piece = e % kPieces;
      const int d = from_element + (kFours == 2 ? piece : piece * 2 + four) * 4;
      if (d >= kValue) continue;
      RowPart parts[kConsumerWarps];
      ARK_UNROLL
      for (int w = 0; w < kConsumerWarps; ++w) {
        parts[w].maximum = scratch(kMaxima)[w * kRows + row], parts[w].sum = scratch(kSums)[w * kRows + row];
        parts[w].values = *reinterpret_cast<const dev::f32x4*>(merged_four(w, own, piece));
      }
      Rows::hand_in(target(row), d, merged(parts));
    }
  }

  ARK_DEVICE void put_sums(int strip, State& state) const {
    ARK_UNROLL
    for (int r = 0; r < 2; ++r) {
      float sum = sum_of_weights(strip, state, r);  // of four lanes' keys
      sum += dev::shfl_xor(sum, 1);
      sum += dev::shfl_xor(sum, 2);
      const int own = call.b.warp * kRows + strip * kStripRows + call.b.lane / 4 + r * 8;
      if (call.b.lane % 4 == 0) scratch(kSums)[own] = sum;
    }
  }

  ARK_DEVICE void run_rows(i32 row0, i32 row_count) const {
    const i32 rows = dev::uniform(row_count);
    dev::sync_warp();
    // Whose targets: those of the rows before may still be read.
    if (call.b.lane == 0 && !ARK_BUG(targets_in_use)) task().turn ^= 1;
    dev::sync_warp();
    ARK_ROLLED
    for (i32 first = 0; first < rows; first += kStripRows)
      Fragments::template split_queries<2, kConsumerWarps>(row0, rows, first + call.b.warp);
    // Behind it nobody reads what is merged, of rows before these, any more.
    if (!ARK_BUG(queries_without_barrier)) consumers_sync();
    ARK_ROLLED
    for (int part = 0; part * kPart < kValue; ++part) {
      if (part > 0) consumers_sync();  // the ones before are merged
      State states[kStrips];
      run_warp(row0, rows, part, states);
      with_each(rows, states, [&](int strip, State& state) {
        if (part == 0) put_sums(strip, state);
      });
      if (kSumsAside) dev::sync_warp();  // what is merged takes their place
      ARK_ROLLED
      for (i32 first = 0; first < rows; first += kStripRows) {
        ARK_UNROLL
        for (int c = 0; c < kChunks; ++c) {
          ARK_UNROLL
          for (int four = 0; four < 2; four += kFours) {
            if (first + c + four > 0) consumers_sync();
            ARK_UNROLL
            for (int strip = 0; strip < kStrips; ++strip) {
              if (strip * kStripRows == first) put(rows - first, states[strip].of[c], four);
            }
            if (!ARK_BUG(merged_without_barrier)) consumers_sync();
            merge(first, dev::min(kStripRows, rows - first), part * kPart + c * kChunk, four);
          }
        }
      }
    }
  }
};

}  // namespace ark::cuda
