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

// What of a tile's rows, which lie in memory `pitch` floats apart, comes into scratch at once: columns by runs, of
// which run n begins at borders[n * step] and has a room of its own.
struct XBatch {
  const float* start;  // of the rows
  i32 pitch;
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
    run = all == of_run ? 0 : by_run.divide(i);  // without it loops with heads of 128 spill more
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
      const float* here = x.start + static_cast<i64>(row) * x.pitch + first + k;
      if ((x.pitch % 4 | first % 4) == 0) {  // then whole quarters are there, if of the next piece
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
    const X* const from = part_at<const X>(x.start + static_cast<i64>(row) * x.pitch, first + k);
    X* const part = row_of<X>(room_of(to, run * x.apart), row) + k;
    dev::cp_async16(part, from);
    dev::cp_async16(part + to.rests, from + kPartsTogether);
  }
  dev::cp_async_commit();
}
// Rows that are told (engine/cuda/lamport.h), once they are there: parts of X, from column `start` of the first row on,
// rows `pitch` floats apart. Columns are multiples of eight, or, like where they begin, of sixteen. Apart: products
// have no register left.
template <class X>
ARK_APART void take_told_parts(const LoopParameters& p, const float* start, i32 pitch, i32 columns,
                               XRows to) {
  constexpr int kEach = 8, kCount = 2;
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
    for (int n = 0; n < kCount; ++n)
      from[n] = reinterpret_cast<const dev::u32x4*>(
          part_at<const X>(start + static_cast<i64>(row_at(item(n))) * pitch, column_at(item(n))));
    dev::u32x4 v[kCount][2];
    const auto are_there = [&] {
      bool there = true;
      ARK_UNROLL
      for (int n = 0; n < kCount * 2; ++n)
        v[n / 2][n % 2] = dev::ld_words(from[n / 2] + n % 2 * (kPartsTogether * 2 / 16));
      ARK_UNROLL
      for (int n = 0; n < kCount * 2; ++n) there = there && is_there(v[n / 2][n % 2]);
      return there || ARK_BUG(x_not_awaited);
    };
    wait_without_calls(b, from[0], 0, are_there);
    ARK_UNROLL
    for (int n = 0; n < kCount; ++n) {
      X* const part = row_of<X>(to, row_at(item(n))) + column_at(item(n));
      *reinterpret_cast<dev::u32x4*>(part) = v[n][0];
      *reinterpret_cast<dev::u32x4*>(part + to.rests) = v[n][1];
    }
  }
  dev::sync_warp();  // lanes have waited each for itself; barriers are for whole warps
}
// The same of floats, of which X are made; runs are multiples of four columns.
template <class X>
ARK_APART void take_told(const LoopParameters& p, XBatch x, XRows to) {
  constexpr int kCount = 4;
  const Block b = open_block(p, 0, 0);
  to.start = in_shared(to.start);
  x.borders = in_shared(x.borders);
  const XItems<4> items(x, to.rows);
  ARK_ROLLED
  for (i32 begin = b.thread; begin < items.all; begin += kCount * kConsumers) {
    const dev::f32x4* from[kCount];  // null: there is no such item
    ARK_UNROLL
    for (int n = 0; n < kCount; ++n) {
      from[n] = nullptr;
      const i32 i = begin + n * kConsumers;
      if (i >= items.all) continue;
      i32 run, row, k;
      items.find(i, run, row, k);
      const i32 column = x.first(run) + k;
      if (column < x.first(run + 1))
        from[n] = reinterpret_cast<const dev::f32x4*>(x.start + static_cast<i64>(row) * x.pitch + column);
    }
    dev::f32x4 v[kCount];
    const auto are_there = [&] {
      bool there = true;
      ARK_UNROLL
      for (int n = 0; n < kCount; ++n) {
        v[n] = {};
        if (from[n] != nullptr) v[n] = dev::ld_words(from[n]);
      }
      ARK_UNROLL
      for (int n = 0; n < kCount; ++n) there = there && is_there(v[n]);
      return there || ARK_BUG(x_not_awaited);
    };
    wait_without_calls(b, x.start, 0, are_there);
    ARK_UNROLL
    for (int n = 0; n < kCount; ++n) {
      if (from[n] == nullptr) continue;
      i32 run, row, k;
      items.find(begin + n * kConsumers, run, row, k);
      put_x<X>(room_of(to, run * x.apart), row, k, v[n]);
    }
  }
  dev::sync_warp();
}
// Waits for those that this thread has begun to copy.
ARK_DEVICE void wait_for_parts() {
  if (!ARK_BUG(missing_x_wait)) dev::cp_async_wait<0>();
}
// What of a tile's rows lies in scratch piece by piece: from border number `border` on `count` pieces of `longest`
// columns at most, their rows `pitch` floats apart, the pieces `apart`.
struct XPieces {
  float* start;
  i32 row0, rows, border, count, longest, pitch, apart;
};
// The same of rows that are told. Copies may come before what they copy: its words are looked at where they have
// arrived, and those that were not there are copied once more. (A copy is a weak load beside a relaxed store, which PTX
// allows: it brings what the word was or what it is. A Formal Analysis of the NVIDIA PTX Memory Consistency Model,
// ASPLOS 2019.) Behind the first word that was not there, which is waited for, the others mostly are.
template <class X>
ARK_APART void await_told_parts(const LoopParameters& p, XPieces x) {
  const Block b = open_block(p, 0, 0);
  const i32* const borders = reinterpret_cast<const i32*>(b.scratch) + x.border;
  const auto start = static_cast<u32>(reinterpret_cast<const u8*>(x.start) - dev::shared());
  const i32 rests = by_eights(x.longest) / 2;  // floats
  const XItems<8> items({nullptr, 0, borders, 1, x.count, x.longest, x.apart}, x.rows);
  bool waits = true;
  while (waits) {
    wait_for_parts();
    waits = false;
    ARK_ROLLED
    for (i32 i = b.thread; i < items.all && !ARK_BUG(copies_not_looked_at); i += kConsumers) {
      i32 run, row, k;
      items.find(i, run, row, k);
      const i32 column = borders[run] + k;
      if (column >= borders[run + 1]) continue;
      float* const part = reinterpret_cast<float*>(
          dev::shared() + start + static_cast<u32>(run * x.apart + row * x.pitch + k / 2) * 4);
      if (is_there(*reinterpret_cast<const dev::u32x4*>(part)) &&
          is_there(*reinterpret_cast<const dev::u32x4*>(part + rests)))
        continue;
      const auto* const from = reinterpret_cast<const dev::u32x4*>(part_at<const X>(
          at<const float>(b.words->x) + static_cast<i64>(x.row0 + row) * b.words->x_pitch, column));
      constexpr int kRests = kPartsTogether * 2 / 16;
      if (!waits) {
        const auto are_there = [&] {
          const dev::u32x4 own = dev::ld_words(from), rest = dev::ld_words(from + kRests);
          return is_there(own) && is_there(rest);
        };
        if (!wait_without_calls(b, from, 0, are_there)) break;
        waits = true;
      }
      dev::cp_async16(part, from);
      dev::cp_async16(part + rests, from + kRests);
    }
    dev::cp_async_commit();
  }
  dev::sync_warp();
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
  ARK_DEVICE void advance(i32 columns = 16) { at += static_cast<u32>(columns) * sizeof(X); }
  ARK_DEVICE void load(u32 (&high)[2], u32 (&low)[2]) const {
    u32 all[4];
    dev::ldmatrix_x4(all, dev::shared() + at);
    high[0] = all[0], high[1] = all[1], low[0] = all[2], low[1] = all[3];
  }
};

}  // namespace ark::cuda
