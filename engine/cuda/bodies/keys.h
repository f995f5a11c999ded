// The order of a row's tokens by their logits, and the best of them.
#pragma once

#include "engine/cuda/bodies/math.h"

namespace ark::cuda {

// Ascending with the logit; NaN highest, so that the best of a row tells of it.
ARK_DEVICE u32 order_of(float logit) {
  if (is_nan(logit)) return ~0u;
  const u32 bits = dev::as_u32(logit == 0.0f ? 0.0f : logit);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
// Better tokens have larger keys; no two are equal.
ARK_DEVICE u64 key_of(float logit, i32 token) {
  return static_cast<u64>(order_of(logit)) << 32 | ~static_cast<u32>(token);
}
ARK_DEVICE i32 token_of(u64 key) { return static_cast<i32>(~static_cast<u32>(key)); }

// A reduction of the consumers, in `scratch`; every thread gets the result.
template <class T, class F>
ARK_DEVICE T reduce(u8* scratch, T v, F combine) {
  T* room = reinterpret_cast<T*>(scratch);
  ARK_ROLLED
  for (int distance = 16; distance > 0; distance /= 2) v = combine(v, dev::shfl_xor(v, distance));
  consumers_sync();  // readers of the last result
  if (dev::lane_id() == 0) room[dev::warp_id()] = v;
  consumers_sync();
  T all = room[0];
  ARK_ROLLED
  for (int w = 1; w < kConsumerWarps; ++w) all = combine(all, room[w]);
  return all;
}
ARK_APART u64 largest_of(u8* scratch, u64 v) {
  return reduce(scratch, v, [](u64 a, u64 b) { return a > b ? a : b; });
}
template <class T>
ARK_APART T sum_of(u8* scratch, T v) {
  return reduce(scratch, v, [](T a, T b) { return a + b; });
}

// Logits of a row by quarters of four, from the last border of 16 bytes on. What is not the row's is NaN.
struct LogitQuarters {
  const float* logits;
  i32 vocabulary, skipped, count;  // elements before the row; quarters
  ARK_DEVICE LogitQuarters(const float* row, i32 size)
      : logits(row),
        vocabulary(size),
        skipped(static_cast<i32>(reinterpret_cast<u64>(row) / 4 % 4)),
        count((size + skipped + 3) / 4) {}
  ARK_DEVICE i32 token(i32 quarter) const { return quarter * 4 - skipped; }
  ARK_DEVICE dev::f32x4 whole(i32 quarter) const {  // not at a border
    return dev::ld_global(reinterpret_cast<const dev::f32x4*>(logits + token(quarter)));
  }
  ARK_DEVICE dev::f32x4 load(i32 quarter) const {
    dev::f32x4 v = {nan(), nan(), nan(), nan()};
    const i32 t = token(quarter);
    if (quarter > 0 && quarter + 1 < count) {
      v = whole(quarter);
    } else if (quarter < count) {  // a border
      if (t >= 0) v.x = dev::ld_global(logits + t);
      if (t + 1 >= 0 && t + 1 < vocabulary) v.y = dev::ld_global(logits + t + 1);
      if (t + 2 >= 0 && t + 2 < vocabulary) v.z = dev::ld_global(logits + t + 2);
      if (t + 3 < vocabulary) v.w = dev::ld_global(logits + t + 3);
    }
    return v;
  }
};

// The best token's key, that of NaN if there is one; 0: of no tokens. What a thread fetches at once is first looked at
// as a whole, and once more where it had the largest. Of the quarters at the borders a thread takes one number.
ARK_APART u64 best_key(u8* scratch, const float* logits, i32 vocabulary) {
  constexpr int kAhead = 8;  // quarters in flight
  const LogitQuarters row(logits, vocabulary);
  const i32 thread = dev::thread_id(), end = row.count - 1;
  const i32 border_token = row.token(thread < 4 ? 0 : end) + thread % 4;
  const bool has_border = thread < 8 && border_token >= 0 && border_token < vocabulary;
  float border = 0;
  if (has_border) border = dev::ld_global(logits + border_token);
  u32 best = 0;
  i32 best_first = end, token = 0;
  bool looks = false;
  ARK_ROLLED
  for (i32 first = 1 + thread;; first += kAhead * kConsumers) {
    if (first >= end) {
      if (looks) break;
      looks = true, first = best_first;
    }
    dev::f32x4 ahead[kAhead];
    ARK_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      ahead[i] = {-infinity(), -infinity(), -infinity(), -infinity()};
      if (first + i * kConsumers < end) ahead[i] = row.whole(first + i * kConsumers);
    }
    if (looks) {
      ARK_UNROLL
      for (int i = kAhead - 1; i >= 0; --i) {  // of equal tokens the first one stays
        const i32 t = row.token(first + i * kConsumers);
        if (order_of(ahead[i].w) == best) token = t + 3;
        if (order_of(ahead[i].z) == best) token = t + 2;
        if (order_of(ahead[i].y) == best) token = t + 1;
        if (order_of(ahead[i].x) == best) token = t;
      }
      break;
    }
    float top = -infinity();
    bool has_nan = false;  // which max() passes over
    ARK_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      const dev::f32x4 v = ahead[i];
      top = dev::max(top, dev::max(dev::max(v.x, v.y), dev::max(v.z, v.w)));
      has_nan |= is_nan(v.x) | is_nan(v.y) | is_nan(v.z) | is_nan(v.w);
    }
    const u32 order = has_nan ? ~0u : order_of(top);
    if (order > best) best = order, best_first = first;
  }
  const u64 key = best == 0 ? 0 : static_cast<u64>(best) << 32 | ~static_cast<u32>(token);
  const u64 at_border = has_border ? key_of(border, border_token) : 0;
  return largest_of(scratch, at_border > key ? at_border : key);
}

// The best of the tokens with keys below `bound`, of a row without NaN.
ARK_APART u64 best_key_below(u8* scratch, const float* logits, i32 vocabulary, u64 bound) {
  constexpr int kAhead = 4;  // quarters in flight
  // A token's order + 1, 0: none yet. Of equal tokens the first one stays: a thread sees them in order.
  u32 best = 0, bound_order = static_cast<u32>(bound >> 32);
  i32 best_token = 0, bound_token = token_of(bound);
  const auto look = [&](float logit, i32 t) {
    const u32 order = order_of(logit);
    const bool below = order < bound_order || (order == bound_order && t > bound_token);
    if (below && order >= best && t >= 0 && t < vocabulary) best = order + 1, best_token = t;
  };
  const LogitQuarters row(logits, vocabulary);
  ARK_ROLLED
  for (i32 first = dev::thread_id(); first < row.count; first += kAhead * kConsumers) {
    dev::f32x4 ahead[kAhead];
    ARK_UNROLL
    for (int i = 0; i < kAhead; ++i) ahead[i] = row.load(first + i * kConsumers);
    ARK_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      const i32 t = row.token(first + i * kConsumers);
      look(ahead[i].x, t), look(ahead[i].y, t + 1), look(ahead[i].z, t + 2), look(ahead[i].w, t + 3);
    }
  }
  const u64 key = static_cast<u64>(best - 1) << 32 | ~static_cast<u32>(best_token);
  return largest_of(scratch, best == 0 ? 0 : key);
}

}  // namespace ark::cuda
