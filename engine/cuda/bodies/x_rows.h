// Rows of x for a matrix product: from memory by quarters of four elements, or, where it holds the 16-bit parts, by
// eights of these; into scratch as f32 or as the parts, and out of it as operands of tensor cores.
#pragma once

#include "engine/cuda/bodies/parts.h"

namespace ark::cuda {

// Rows of x in scratch: columns of a batch of pieces. Split for tensor cores: 16-bit parts, then their rests.
struct XRows {
  void* start;
  i32 stride;  // elements; keeps rows in different banks
  i32 rows;
};

// Four elements; k is a multiple of four. As f32, or split in parts of X.
ARK_DEVICE void put_x(const XRows& x, int row, int k, dev::f32x4 v) {
  *reinterpret_cast<dev::f32x4*>(static_cast<float*>(x.start) + row * x.stride + k) = v;
}
template <class X>
ARK_DEVICE void put_split_x(const XRows& x, int row, int k, dev::f32x4 v) {
  X* high = static_cast<X*>(x.start) + row * x.stride + k;
  *reinterpret_cast<dev::u32x2*>(high) = {dev::pack<X>(v.x, v.y), dev::pack<X>(v.z, v.w)};
  *reinterpret_cast<dev::u32x2*>(high + x.rows * x.stride) = {dev::pack<X>(rest_of<X>(v.x), rest_of<X>(v.y)),
                                                              dev::pack<X>(rest_of<X>(v.z), rest_of<X>(v.w))};
}

// Where a tile's rows lie in memory: k floats each.
struct XSource {
  const float* start;
  i32 k, rows;
};

// i / by for i < 2^16.
struct Reciprocal {
  u32 value = 0;
  Reciprocal() = default;
  ARK_DEVICE explicit Reciprocal(i32 by) : value(by == 1 ? 0 : 0xffffffffu / static_cast<u32>(by) + 1) {}
  ARK_DEVICE i32 divide(i32 i) const {
    return value == 0 ? i : static_cast<i32>(dev::multiply_high(static_cast<u32>(i), value));
  }
};

// Columns [first, last) of a tile's rows by quarters: kCount of a thread at once, kConsumers apart.
template <int kCount>
struct XQuarters {
  dev::f32x4 v[kCount];
  i32 first, columns, each, all;  // quarters of a row, and of all: fewer than 2^16
  Reciprocal rows;

  XQuarters() = default;
  ARK_DEVICE XQuarters(const XSource& x, i32 from, i32 last)
      : first(from),
        columns(last - from),
        each(dev::max(1, (columns + 3) / 4)),
        all(columns > 0 ? x.rows * each : 0),
        rows(each) {}

  // From quarter `begin` on.
  ARK_DEVICE void load(const XSource& x, i32 begin) {
    const bool aligned = (x.k % 4 | first % 4) == 0;  // then whole quarters are there, if of the next piece
    ARK_UNROLL
    for (int j = 0; j < kCount; ++j) {
      const i32 i = begin + j * kConsumers;
      v[j] = {0, 0, 0, 0};
      if (i >= all) continue;
      const i32 row = rows.divide(i), k = (i - row * each) * 4;
      const float* here = x.start + static_cast<i64>(row) * x.k + first + k;
      if (aligned) {
        v[j] = dev::ld_global(reinterpret_cast<const dev::f32x4*>(here));
      } else {
        v[j].x = dev::ld_global(here);
        if (k + 1 < columns) v[j].y = dev::ld_global(here + 1);
        if (k + 2 < columns) v[j].z = dev::ld_global(here + 2);
        if (k + 3 < columns) v[j].w = dev::ld_global(here + 3);
      }
    }
  }

  // X: float, or what the rows are split into.
  template <class X>
  ARK_DEVICE void put(const XRows& to, i32 begin) const {
    ARK_UNROLL
    for (int j = 0; j < kCount; ++j) {
      const i32 i = begin + j * kConsumers;
      if (i >= all) continue;
      const i32 row = rows.divide(i), k = (i - row * each) * 4;
      if constexpr (sizeof(X) == sizeof(float)) {
        put_x(to, row, k, v[j]);
      } else {
        put_split_x<X>(to, row, k, v[j]);
      }
    }
  }
};

// Starts copying columns [first, last) of a tile's rows, which memory holds as parts of X; both are multiples of 8.
template <class X>
ARK_DEVICE void copy_parts(const XSource& x, const XRows& to, int thread, i32 first, i32 last) {
  const i32 each = (last - first) / 8;
  const Reciprocal rows(dev::max(1, each));
  ARK_ROLLED
  for (i32 i = thread; i < x.rows * each; i += kConsumers) {
    const i32 row = rows.divide(i), k = (i - row * each) * 8;
    const float* from = x.start + static_cast<i64>(row) * x.k + first + k;
    X* part = static_cast<X*>(to.start) + row * to.stride + k;
    dev::cp_async16(part, from);
    dev::cp_async16(part + to.rows * to.stride, from + 4);
  }
  dev::cp_async_commit();
}

// Those that this thread has begun to copy.
ARK_DEVICE void wait_for_parts() {
  if (!ARK_BUG(missing_x_wait)) dev::cp_async_wait<0>();
}

// Rows of x that come while others are in use. Split here, or copied as parts.
template <class X, int kCount, bool kIsSplit>
struct XAhead {
  XQuarters<kCount> quarters;
  ARK_DEVICE void begin(const XSource& x, const XRows&, int thread, i32 first, i32 last) {
    quarters = XQuarters<kCount>(x, first, last);
    quarters.load(x, thread);
  }
  ARK_DEVICE void end(const XRows& to, int thread) const { quarters.template put<X>(to, thread); }
};
template <class X, int kCount>
struct XAhead<X, kCount, true> {
  ARK_DEVICE void begin(const XSource& x, const XRows& to, int thread, i32 first, i32 last) {
    copy_parts<X>(x, to, thread, first, last);
  }
  ARK_DEVICE void end(const XRows&, int) const { wait_for_parts(); }
};

// Where a lane finds its lines of kCount times eight rows of x, from `first` on, `apart` rows apart, as a product's
// other operand: rows 0..7 and 8..15 of k, of the parts of x, then of the rests behind them. Rows that are not there:
// the last one's, whose products nobody reads.
template <class X, int kCount>
struct XLines {
  const X* of[kCount];
  ARK_DEVICE XLines(const Block& b, const XRows& x, int first, int apart) {
    const int matrix = b.lane / 8, line = b.lane % 8;
    ARK_UNROLL
    for (int c = 0; c < kCount; ++c) {
      const int row = dev::min(first + c * apart + line, x.rows - 1);
      of[c] = static_cast<const X*>(x.start) + (matrix / 2 * x.rows + row) * x.stride + matrix % 2 * 8;
    }
  }
  // From column `k` on, a multiple of 8.
  ARK_DEVICE void load(int c, i32 k, u32 (&high)[2], u32 (&low)[2]) const {
    u32 all[4];
    dev::ldmatrix_x4(all, of[c] + k);
    high[0] = all[0], high[1] = all[1], low[0] = all[2], low[1] = all[3];
  }
};

}  // namespace ark::cuda
