// Fused expressions, and both ends of messages: element by element.
#pragma once

#include "engine/cuda/bodies/math.h"

namespace ark::cuda {

// Where the element of out lies in an input that is repeated along some axes of it.
ARK_APART i64 place_by_table(const Size* table, int input, const i32* vals, i64 element) {
  i64 rest = element, stride = 1, offset = 0;
  ARK_ROLLED
  for (int axis = 3; axis >= 0; --axis) {
    const Size sizes[2] = {dev::ld_nc(table + axis), dev::ld_nc(table + 4 + 4 * input + axis)};
    const i64 out = sizes[0] >= 0 ? sizes[0] : vals[~sizes[0]],
              own = sizes[1] >= 0 ? sizes[1] : vals[~sizes[1]];
    if (own > 1) offset += rest % out * stride;
    rest /= out;
    stride *= own;
  }
  return offset;
}

// (inputs..., out). Expression: generated (engine/cuda/pointwise_source.h). Sizes: product of four: elements;
// 4 + i: how input i lies: 0 like out, 1 along the last axis, 2 one element, 3 by the table `aux`: four dims
// of out, then four of each input; 12: last axis of out.
template <class Expression>
struct Pointwise : Quiet {
  ARK_DEVICE static i64 place(const Call& call, int input, i64 element) {
    const i32 kind = call.i.sizes[4 + input];
    if (kind == 0) return element;
    if (kind == 1) return element % call.size_at(12);
    if (kind == 2) return 0;
    return place_by_table(at<const Size>(call.i.aux), input, call.b.vals, element);
  }

  ARK_DEVICE static void run(const Call& call, Tiles tiles) {
    const i64 end = dev::min(tiles.last * kElementTile, call.product(0));
    ARK_ROLLED
    for (i64 i = tiles.first * kElementTile + call.b.thread; i < end; i += kConsumers) {
      float in[Expression::kInputs];
      ARK_UNROLL
      for (int n = 0; n < Expression::kInputs; ++n)
        in[n] = dev::ld_global(call.operand<const float>(n) + place(call, n, i));
      dev::st_global(call.operand<float>(kOperands - 1) + i, Expression::apply(in));
    }
  }
};

// (x) of four bytes, into the slot of message 0. Sizes: product of four: elements. Tile: kSendTile bytes.
struct Send : Quiet {
  static constexpr bool kSends = true;
  ARK_DEVICE static Tiles bytes(const Call& call, Tiles tiles) {
    const i64 all = call.product(0) * 4;
    return {dev::min(tiles.first * kSendTile, all), dev::min(tiles.last * kSendTile, all)};
  }
  ARK_DEVICE static void run(const Call& call, Tiles tiles) {
    const Tiles own = bytes(call, tiles);
    const u32* const from = call.operand<const u32>(0) + own.first / 4;
    u32* const to = at<u32>(call.slot(call.messages[0])) + own.first / 4;
    in_turns<8>(
        call.b, 0, static_cast<i32>((own.last - own.first) / 4),
        [&](i32 i) { return dev::ld_global(from + i); }, [&](i32 i, u32 v) { dev::st_global(to + i, v); });
  }
};

// Where rank r's part lies: operand r is the own part, the others come by message, in rank order.
template <class T>
ARK_DEVICE const T* part_of(const Call& call, int r) {
  const int own = call.b.rank->rank;
  return r == own ? call.operand<const T>(r) : at<const T>(call.slot(call.messages[r < own ? r : r - 1]));
}

// Own part at operand `rank`, bias 8, residual 9, out 10. Sizes: product of four: elements; 4: last axis; 5:
// epilogue bits.
template <int kRanks>
struct RecvReduce : Quiet {
  static_assert(kRanks >= 2 && kRanks <= 8);
  // The tree of program.h: sum(a, b) = sum(a, m) + sum(m, b), m = a + ceil((b - a) / 2).
  template <int kFirst, int kLast, int kCount>
  ARK_DEVICE static float sum(const float (&part)[kCount]) {
    if constexpr (kLast - kFirst == 1) {
      return part[kFirst];
    } else {
      constexpr int kMiddle = kFirst + (kLast - kFirst + 1) / 2;
      return sum<kFirst, kMiddle>(part) + sum<kMiddle, kLast>(part);
    }
  }
  ARK_DEVICE static void run(const Call& call, Tiles tiles) {
    const i64 first = tiles.first * kElementTile, end = dev::min(tiles.last * kElementTile, call.product(0));
    const u32 width = static_cast<u32>(call.size_at(4)), column = static_cast<u32>(first % width);
    const u32 bits = static_cast<u32>(call.i.sizes[5]);
    const float* parts[kRanks];
    ARK_UNROLL
    for (int r = 0; r < kRanks; ++r) parts[r] = part_of<float>(call, r) + first;
    const float* const bias = call.operand<const float>(8);
    const float* const residual = call.operand<const float>(9) + first;
    float* const out = call.operand<float>(10) + first;
    struct Loaded {
      float part[kRanks];
      EpilogueTerms terms;
    };
    in_turns<4>(
        call.b, 0, static_cast<i32>(end - first),
        [&](i32 i) {
          Loaded v;
          ARK_UNROLL
          for (int r = 0; r < kRanks; ++r) v.part[r] = dev::ld_global(parts[r] + i);
          // No call: loads under way are waited for there.
          v.terms = epilogue_terms(bits, bias, (column + static_cast<u32>(i)) % width, residual, i);
          return v;
        },
        [&](i32 i, const Loaded& v) {
          dev::st_global(out + i, epilogue(bits, sum<0, kRanks>(v.part), v.terms));
        });
  }
};

// Own part at operand `rank`, out 10; of four bytes. Sizes: elements of out behind the axis; 1 + r: of part r.
struct RecvConcat : Quiet {
  ARK_DEVICE static void run(const Call& call, Tiles tiles) {
    const i64 width = call.size_at(0);
    for (i64 t = tiles.first; t < tiles.last; ++t) {
      u32* out = call.operand<u32>(10) + t * width;
      for (int r = 0; r < call.b.rank->ranks; ++r) {
        const i32 n = call.size_at(1 + r);
        const u32* part = part_of<u32>(call, r) + t * n;
        in_turns<4>(
            call.b, 0, n, [&](i32 k) { return dev::ld_global(part + k); },
            [&](i32 k, u32 v) { dev::st_global(out + k, v); });
        out += n;
      }
    }
  }
};

}  // namespace ark::cuda
