// Both ends of messages, and sums over ranks: element by element.
#pragma once

#include "engine/cuda/bodies/shares.h"
#include "engine/cuda/lamport.h"

namespace ark::cuda {

// Into the slots of the messages, of which there are kPeers at most. Tile: kSendTile bytes.
template <int kPeers>
struct Send : Quiet {
  static constexpr bool kSends = true, kIsLeftOut = true;
  ARK_DEVICE static i64 grid(const Call& call) { return grid_of(call); }
  ARK_DEVICE static Tiles bytes(const Call& call, Tiles tiles) {
    const i64 all = call.product(call.i.send.elements) * 4;
    return {dev::min(tiles.first * kSendTile, all), dev::min(tiles.last * kSendTile, all)};
  }
  ARK_DEVICE static void run(const Call& call, Tiles tiles) {
    if (is_shared(call) && call.i.share_parts_at != 0) return;  // a product has stored them
    if (is_shared(call))
      return send_shares(call.b.p, instance_offset(call), messages_offset(call),
                         static_cast<i32>(tiles.first));
    const Tiles own = bytes(call, tiles);
    const u32* const from = at<const u32>(call.i.send.x) + own.first / 4;
    u32* to[kPeers];
    ARK_UNROLL
    for (int m = 0; m < kPeers; ++m)
      to[m] = m == 0 || m < call.i.messages ? at<u32>(call.slot(call.messages[m])) + own.first / 4 : nullptr;
    in_turns<8>(
        call.b, 0, static_cast<i32>((own.last - own.first) / 4),
        [&](i32 i) { return dev::ld_global(from + i); },
        [&](i32 i, u32 v) {
          ARK_UNROLL
          for (int m = 0; m < kPeers; ++m)
            if (m == 0 || to[m] != nullptr) dev::st_global(to[m] + i, v);
        });
  }
};

// Elements [first, end) of a sum over ranks, in a step of up to 32 rows.
template <int kRanks>
ARK_APART void add_told(const LoopParameters& p, u32 instance, i32 first, i32 end) {
  Block b = open_turn_block(p);
  const Call call{b, instance_at(instance), nullptr};
  const ReduceArguments& a = call.i.reduce;
  add_parts<kRanks>(b, call.i.parts_at, call.size(a.width), epilogue_of(a), first, end,
                    [&](i32 e, const dev::f32x4& sums) {
                      dev::st_global(reinterpret_cast<dev::f32x4*>(at<float>(a.out) + e), sums);
                    });
}

// The sum of all ranks' parts, with its epilogue.
template <int kRanks>
struct RecvReduce : Quiet {
  static constexpr bool kIsLeftOut = true;
  static_assert(kRanks >= 2 && kRanks <= kMaxParts);
  ARK_DEVICE static i64 grid(const Call& call) { return grid_of(call); }
  ARK_DEVICE static void run(const Call& call, Tiles tiles) {
    if (tells_ranks(call.b, call.i)) {
      const i64 all = call.product(call.i.reduce.elements);
      return add_told<kRanks>(call.b.p, instance_offset(call), static_cast<i32>(tiles.first) * kElementTile,
                              static_cast<i32>(dev::min(tiles.last * kElementTile, all)));
    }
    const ReduceArguments& a = call.i.reduce;
    if (is_shared(call))
      return add_share<kRanks>(call.b.p, instance_offset(call), messages_offset(call),
                               static_cast<i32>(tiles.first));
    const i64 first = tiles.first * kElementTile,
              end = dev::min(tiles.last * kElementTile, call.product(a.elements));
    const u32 width = static_cast<u32>(call.size(a.width)), column = static_cast<u32>(first % width);
    const u32 bits = static_cast<u32>(a.epilogue);
    const float* parts[kRanks];
    ARK_UNROLL
    for (int r = 0; r < kRanks; ++r) parts[r] = part_of<float>(call, a.parts, r) + first;
    const float* const bias = at<const float>(a.bias);
    const float* const residual = at<const float>(a.residual) + first;
    float* const out = at<float>(a.out) + first;
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
          dev::st_global(out + i, epilogue(bits, sum_of_ranks<0, kRanks>(v.part), v.terms));
        });
  }
};

// All ranks' parts, one behind the other along an axis. Tile: up to kElementTile elements of a row.
struct RecvConcat : Quiet {
  ARK_DEVICE static i32 tiles_of_row(const Call& call) {
    return dev::max(1, (call.size(call.i.concat.width) + kElementTile - 1) / kElementTile);
  }
  ARK_DEVICE static i64 grid(const Call& call) {
    return static_cast<i64>(call.size(call.i.grid)) * tiles_of_row(call);
  }
  ARK_DEVICE static void run(const Call& call, Tiles tiles) {
    const ConcatArguments& a = call.i.concat;
    const i32 width = call.size(a.width), each = tiles_of_row(call);
    ARK_ROLLED
    for (i64 t = tiles.first; t < tiles.last; ++t) {
      const Division tile = divide(static_cast<i32>(t), each);
      const i64 row = tile.quotient;
      const i32 first = tile.rest * kElementTile, last = first + kElementTile;
      i32 begin = 0;  // of a rank's part, in a row
      ARK_ROLLED
      for (int r = 0; r < call.b.rank->ranks; ++r) {
        const i32 n = call.size(a.part_widths[r]), end = begin + n;
        if (begin < last && first < end) {
          const u32* const part = part_of<u32>(call, a.parts, r) + row * n - begin;
          u32* const out = at<u32>(a.out) + row * width;
          in_turns<8>(
              call.b, dev::max(begin, first), dev::min(end, last),
              [&](i32 k) { return dev::ld_global(part + k); },
              [&](i32 k, u32 v) { dev::st_global(out + k, v); });
        }
        begin = end;
      }
    }
  }
};

}  // namespace ark::cuda
