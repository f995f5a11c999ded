// Rows of x for a matrix product: from memory by quarters of four elements, or, where it holds the 16-bit parts, by
// eights of these; into scratch as f32 or as the parts, and out of it as operands of tensor cores.
#pragma once

#include "engine/cuda/bodies/parts.h"

namespace ark::cuda {

// Rows of x in scratch, all columns of a batch of pieces or of one piece. As f32; or split for tensor cores: of each
// row the 16-bit parts, then their rests.
struct XRows {
  float* start;
  i32 pitch;  // floats from row to row; keeps rows in different banks
  i32 rests;  // elements from a row's parts to their rests
  i32 rows;
};
template <class X>
ARK_DEVICE X* row_of(const XRows& x, i32 row) {
  return reinterpret_cast<X*>(x.start + row * x.pitch);
}

// Four elements; k is a multiple of four. X: float, or what they are split into.
template <class X>
ARK_DEVICE void put_x(const XRows& x, i32 row, i32 k, dev::f32x4 v) {
  X* const to = row_of<X>(x, row) + k;
  if constexpr (sizeof(X) == sizeof(float)) {
    *reinterpret_cast<dev::f32x4*>(to) = v;
  } else {
    *reinterpret_cast<dev::u32x2*>(to) = {dev::pack<X>(v.x, v.y), dev::pack<X>(v.z, v.w)};
    *reinterpret_cast<dev::u32x2*>(to + x.rests) = {dev::pack<X>(rest_of<X>(v.x), rest_of<X>(v.y)),
                                                    dev::pack<X>(rest_of<X>(v.z), rest_of<X>(v.w))};
  }
}

// i / by for i < 2^16.
struct Reciprocal {
  u32 value = 0;
  Reciprocal() = default;
  ARK_DEVICE explicit Reciprocal(i32 by) : value(by == 1 ? 0 : 0xffffffffu / static_cast<u32>(by) + 1) {}
  ARK_DEVICE i32 divide(i32 i) const {
    return value == 0 ? i : static_cast<i32>(dev::multiply_high(static_cast<u32>(i), value));
  }
};

// A pointer of which the compiler is to know that it is into shared memory.
template <class T>
ARK_DEVICE T* in_shared(T* p) {
  u8* const all = dev::shared();
  return reinterpret_cast<T*>(all + static_cast<u32>(reinterpret_cast<u64>(p) - reinterpret_cast<u64>(all)));
}

// What of a tile's rows, which lie in memory k floats apart, comes into scratch at once: columns by runs, of which
// run n begins at borders[n * step] and has a room of its own.
struct XBatch {
  const float* start;  // of the rows
  i32 k;
  const i32* borders;
  i32 step, runs;
  i32 columns;  // of the longest run
  i32 apart;    // floats from room to room
  ARK_DEVICE i32 first(i32 run) const { return borders[run * step]; }
};
ARK_DEVICE XRows room_of(const XRows& x, i32 floats) { return {x.start + floats, x.pitch, x.rests, x.rows}; }

// All of them by items of kEach columns, of which fewer than 2^16 go round the threads.
template <int kEach>
struct XItems {
  i32 of_row, of_run, all;
  Reciprocal by_row, by_run;
  ARK_DEVICE XItems(const XBatch& x, i32 rows)
      : of_row(dev::max(1, (x.columns + kEach - 1) / kEach)),
        of_run(rows * of_row),
        all(x.columns > 0 ? x.runs * of_run : 0),
        by_row(of_row),
        by_run(of_run) {}
  // Item `i`; k: of its run's columns, which may be fewer.
  ARK_DEVICE void find(i32 i, i32& run, i32& row, i32& k) const {
    run = by_run.divide(i);
    const i32 rest = i - run * of_run;
    row = by_row.divide(rest);
    k = (rest - row * of_row) * kEach;
  }
};

// Loads the rows, kCount quarters a thread under way at once. X: float, or what they are split into.
template <class X, int kCount>
ARK_DEVICE void load_x(XBatch x, XRows to) {
  const XItems<4> items(x, to.rows);
  const int thread = dev::thread_id();
  ARK_ROLLED
  for (i32 begin = thread; begin < items.all; begin += kCount * kConsumers) {
    dev::f32x4 v[kCount];
    ARK_UNROLL
    for (int j = 0; j < kCount; ++j) {
      v[j] = {0, 0, 0, 0};
      const i32 i = begin + j * kConsumers;
      if (i >= items.all) continue;
      i32 run, row, k;
      items.find(i, run, row, k);
      const i32 first = x.first(run), columns = x.first(run + 1) - first;
      const float* here = x.start + static_cast<i64>(row) * x.k + first + k;
      if ((x.k % 4 | first % 4) == 0) {  // then whole quarters are there, if of the next piece
        if (k < columns) v[j] = dev::ld_global(reinterpret_cast<const dev::f32x4*>(here));
      } else {
        if (k < columns) v[j].x = dev::ld_global(here);
        if (k + 1 < columns) v[j].y = dev::ld_global(here + 1);
        if (k + 2 < columns) v[j].z = dev::ld_global(here + 2);
        if (k + 3 < columns) v[j].w = dev::ld_global(here + 3);
      }
    }
    ARK_UNROLL
    for (int j = 0; j < kCount; ++j) {
      const i32 i = begin + j * kConsumers;
      if (i >= items.all) continue;
      i32 run, row, k;
      items.find(i, run, row, k);
      put_x<X>(room_of(to, run * x.apart), row, k, v[j]);
    }
  }
}

// Starts copying the rows, which memory holds as parts of X; columns are multiples of 8.
template <class X>
ARK_DEVICE void copy_parts(XBatch x, XRows to) {
  const XItems<8> items(x, to.rows);
  const int thread = dev::thread_id();
  ARK_ROLLED
  for (i32 i = thread; i < items.all; i += kConsumers) {
    i32 run, row, k;
    items.find(i, run, row, k);
    const i32 first = x.first(run);
    if (first + k >= x.first(run + 1)) continue;
    const X* const from = part_at<const X>(x.start + static_cast<i64>(row) * x.k, first + k);
    X* const part = row_of<X>(room_of(to, run * x.apart), row) + k;
    dev::cp_async16(part, from);
    dev::cp_async16(part + to.rests, from + kPartsTogether);
  }
  dev::cp_async_commit();
}
// Columns of rows that are told (engine/cuda/lamport.h), once they are there: floats, of which X are made, or parts of
// X. From `start` on, rows `pitch` floats apart; columns are multiples of four, or, like where they begin, of sixteen.
// Apart: products have no register left.
template <class X, bool kAreParts>
ARK_APART void take_told(const LoopParameters& p, const float* start, i32 pitch, i32 columns, XRows to) {
  constexpr int kEach = kAreParts ? 8 : 4, kLoads = kAreParts ? 2 : 1, kCount = 4 / kLoads;
  const Block b = open_block(p, 0, 0);
  to.start = in_shared(to.start);
  const i32 of_row = columns / kEach, all = to.rows * of_row;
  const Reciprocal by_row(dev::max(1, of_row));
  const auto row_at = [&](i32 i) { return by_row.divide(i); };
  const auto column_at = [&](i32 i) { return (i - row_at(i) * of_row) * kEach; };
  ARK_ROLLED
  for (i32 first = b.thread; first < all; first += kCount * kConsumers) {
    const auto item = [&](int n) { return first + n * kConsumers < all ? first + n * kConsumers : first; };
    const dev::u32x4* from[kCount];
    ARK_UNROLL
    for (int n = 0; n < kCount; ++n) {
      const float* const row = start + static_cast<i64>(row_at(item(n))) * pitch;
      if constexpr (kAreParts) {
        from[n] = reinterpret_cast<const dev::u32x4*>(part_at<const X>(row, column_at(item(n))));
      } else {
        from[n] = reinterpret_cast<const dev::u32x4*>(row + column_at(item(n)));
      }
    }
    dev::u32x4 v[kCount][kLoads];
    const auto are_there = [&] {
      bool there = true;
      ARK_UNROLL
      for (int n = 0; n < kCount * kLoads; ++n)
        v[n / kLoads][n % kLoads] = dev::ld_words(from[n / kLoads] + n % kLoads * (kPartsTogether * 2 / 16));
      ARK_UNROLL
      for (int n = 0; n < kCount * kLoads; ++n) there = there && is_there(v[n / kLoads][n % kLoads]);
      return there || ARK_BUG(x_not_awaited);
    };
    wait_without_calls(b, from[0], 0, are_there);
    ARK_UNROLL
    for (int n = 0; n < kCount; ++n) {
      const i32 row = row_at(item(n)), k = column_at(item(n));
      if constexpr (kAreParts) {
        X* const part = row_of<X>(to, row) + k;
        *reinterpret_cast<dev::u32x4*>(part) = v[n][0];
        *reinterpret_cast<dev::u32x4*>(part + to.rests) = v[n][1];
      } else {
        put_x<X>(to, row, k, __builtin_bit_cast(dev::f32x4, v[n][0]));
      }
    }
  }
  dev::sync_warp();  // lanes have waited each for itself; barriers are for whole warps
}
// Those that this thread has begun to copy.
ARK_DEVICE void wait_for_parts() {
  if (!ARK_BUG(missing_x_wait)) dev::cp_async_wait<0>();
}

// Where a lane finds its lines of eight rows of x, from row `first` and column `k` (a multiple of 8) on, as a product's
// other operand: rows 0..7 and 8..15 of k, of the parts of x, then of their rests. Rows that are not there: the last
// one's, whose products nobody reads.
template <class X>
struct XLines {
  u32 at;  // behind dev::shared()
  ARK_DEVICE XLines(const Block& b, const XRows& x, i32 first, i32 k) {
    const int matrix = b.lane / 8, row = dev::min(first + b.lane % 8, x.rows - 1);
    const X* of = row_of<X>(x, row) + matrix / 2 * x.rests + matrix % 2 * 8 + k;
    at = static_cast<u32>(reinterpret_cast<const u8*>(of) - dev::shared());
  }
  ARK_DEVICE void advance() { at += 16 * sizeof(X); }
  ARK_DEVICE void load(u32 (&high)[2], u32 (&low)[2]) const {
    u32 all[4];
    dev::ldmatrix_x4(all, dev::shared() + at);
    high[0] = all[0], high[1] = all[1], low[0] = all[2], low[1] = all[3];
  }
};

}  // namespace ark::cuda
