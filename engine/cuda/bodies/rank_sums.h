// Sums over ranks: the order in which their parts are added up, what follows, and sums of parts that say themselves
// that they are there (engine/cuda/rank_parts.h).
#pragma once

#include "engine/cuda/bodies/math.h"
#include "engine/cuda/lamport.h"

namespace ark::cuda {

// The tree of program.h: sum(a, b) = sum(a, m) + sum(m, b), m = a + ceil((b - a) / 2).
template <int kFirst, int kLast, int kCount>
ARK_DEVICE float sum_of_ranks(const float (&part)[kCount]) {
  if constexpr (kLast - kFirst == 1) {
    return part[kFirst];
  } else {
    constexpr int kMiddle = kFirst + (kLast - kFirst + 1) / 2;
    return sum_of_ranks<kFirst, kMiddle>(part) + sum_of_ranks<kMiddle, kLast>(part);
  }
}

// What is done with a sum: bits; ?[width], ?[elements].
struct SumEpilogue {
  u32 bits;
  const float *bias, *residual;
};
ARK_DEVICE SumEpilogue epilogue_of(const ReduceArguments& a) {
  return {static_cast<u32>(a.epilogue), at<const float>(a.bias), at<const float>(a.residual)};
}
// Of the sum that a norm takes up.
ARK_DEVICE SumEpilogue epilogue_of(const NormArguments& a) {
  return {static_cast<u32>(a.taken_epilogue), at<const float>(a.taken_bias),
          at<const float>(a.taken_residual)};
}

// Of four elements from a column on.
ARK_DEVICE void terms_of_four(const SumEpilogue& s, i32 column, i32 element, EpilogueTerms (&terms)[4]) {
  ARK_UNROLL
  for (int k = 0; k < 4; ++k)
    terms[k] = epilogue_terms(s.bits, s.bias, static_cast<u32>(column + k), s.residual, element + k);
}
template <int kRanks>
ARK_DEVICE dev::f32x4 sum_of_four(u32 bits, const dev::f32x4 (&v)[kRanks], EpilogueTerms (&terms)[4]) {
  float sums[4][kRanks], out[4];
  ARK_UNROLL
  for (int r = 0; r < kRanks; ++r)
    sums[0][r] = v[r].x, sums[1][r] = v[r].y, sums[2][r] = v[r].z, sums[3][r] = v[r].w;
  ARK_UNROLL
  for (int k = 0; k < 4; ++k) out[k] = sum_of_ranks<0, kRanks>(sums[k]);
  ARK_ROLLED
  for (int k = 0; k < 4; ++k) {  // the epilogue stands once; each result goes behind those to come
    const float v = epilogue(bits, out[0], terms[0]);
    out[0] = out[1], out[1] = out[2], out[2] = out[3], out[3] = v;
    terms[0] = terms[1], terms[1] = terms[2], terms[2] = terms[3];
  }
  return {out[0], out[1], out[2], out[3]};
}

// Elements [first, end) of a sum over ranks, in a step of up to 32 rows, of parts that say themselves that they are
// there: four of a thread at once, to take(first of them, sums). They are cleared for the step after the next, which
// finds them so: ranks come to it through all of the step between (fence_parts).
template <int kRanks, class Take>
ARK_DEVICE void add_parts(const Block& b, i32 place, i32 width, const SumEpilogue& then, i32 first, i32 end,
                          Take take) {
  const i64 of_rank = static_cast<i64>(2 * b.rank->part_rows) * b.rank->part_pitch;
  ARK_ROLLED
  for (i32 e = first + b.thread * 4; e < end; e += kConsumers * 4) {
    const Division at_row = divide(e, width);
    EpilogueTerms terms[4];
    terms_of_four(then, at_row.rest, e, terms);
    float* const parts = at<float>(b.rank->parts) + part_row(b, place, at_row.quotient) + at_row.rest;
    dev::f32x4 v[kRanks];
    u32 tries = 0;
    u64 start = 0;
    const auto are_there = [&] {
      bool all = true;
      ARK_UNROLL
      for (int r = 0; r < kRanks; ++r)
        v[r] = dev::ld_words<dev::Scope::sys>(reinterpret_cast<const dev::f32x4*>(parts + r * of_rank));
      ARK_UNROLL
      for (int r = 0; r < kRanks; ++r) all = all && is_there(v[r]);
      if (!all) watch_peers(b, tries, start);
      return all || ARK_BUG(parts_not_awaited);
    };
    wait_without_calls(b, parts, 0, are_there);
    ARK_UNROLL
    for (int r = 0; r < kRanks; ++r) {
      if (!ARK_BUG(parts_not_cleared))
        dev::st_words<dev::Scope::sys>(reinterpret_cast<dev::u32x4*>(parts + r * of_rank), absent());
    }
    take(e, sum_of_four(then.bits, v, terms));
  }
  dev::sync_warp();  // lanes have waited each for itself
}

}  // namespace ark::cuda
