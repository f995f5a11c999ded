// Sums over ranks in steps of many rows: each rank adds up its share (engine/cuda/rank_shares.h).
//
// Shares follow each other in the order of ranks, and in each as many tiles as a rank has processors, one for each.
// Ranks' parts come by message; where a product has stored them already (bodies/rank_part.h), the message only says so.
// Who has a tile stores its sums into all ranks' memory, and then that they are there for who has this tile of each,
// who copies them to where its rank's instances read them: nobody else does, so processors of a rank need not wait for
// each other in between.
#pragma once

#include "engine/cuda/bodies/rank_part.h"
#include "engine/cuda/bodies/rank_sums.h"

namespace ark::cuda {

// Where rank r's part lies: the own one in `parts`, the others come by message, in rank order.
template <class T>
ARK_DEVICE const T* part_of(const Call& call, const u64 (&parts)[kMaxParts], int r) {
  const int own = call.b.rank->rank;
  return r == own ? at<const T>(parts[r]) : at<const T>(call.slot(call.messages[r < own ? r : r - 1]));
}

// Of a step that has enough of them: told by the tiles that the instance has where it shares nothing.
ARK_DEVICE bool is_shared(const Call& call) {
  const i32 from = call.b.rank->shares_from * (call.i.readers_period > 0 ? kSendElements / kElementTile : 1);
  return kHasPeers && call.i.share != 0 && may_share(call.b, call.i) && call.size(call.i.grid) > from;
}
// One for each processor.
ARK_DEVICE i64 grid_of(const Call& call) {
  return is_shared(call) ? call.b.p.processors : call.size(call.i.grid);
}

ARK_DEVICE u32 messages_offset(const Call& call) {
  return static_cast<u32>(reinterpret_cast<const u8*>(call.messages) - dev::shared());
}
ARK_DEVICE const Message* messages_at(u32 offset) {
  return reinterpret_cast<const Message*>(dev::shared() + offset);
}

// The `n`th peer, from 1 on: each rank begins with another one.
ARK_DEVICE i32 neighbour(const Block& b, i32 n) {
  const i32 rank = b.rank->rank + n;
  return rank < b.rank->ranks ? rank : rank - b.rank->ranks;
}

// To each peer what it adds up, by messages in the order of neighbours.
ARK_APART void send_shares(const LoopParameters& p, u32 instance, u32 messages, i32 tile) {
  Block b = open_turn_block(p);
  const Call call{b, instance_at(instance), messages_at(messages)};
  const i32 all = static_cast<i32>(call.product(call.i.send.elements) / 4);
  ARK_ROLLED
  for (i32 m = 0; m < call.i.messages; ++m) {
    const i32 rank = ARK_BUG(share_of_another_rank) ? b.rank->rank : neighbour(b, m + 1);
    const Fours own = fours_of(all, b.rank->ranks, p.processors, rank, tile);
    const dev::u32x4* const from = at<const dev::u32x4>(call.i.send.x);
    dev::u32x4* const to = at<dev::u32x4>(call.slot(call.messages[m]));
    in_turns<4>(
        b, own.first, own.last, [&](i32 i) { return dev::ld_global(from + i); },
        [&](i32 i, const dev::u32x4& v) { dev::st_global(to + i, v); });
  }
}

// Where a rank's sums lie; the word that says which of a tile of `from`'s are there.
ARK_DEVICE dev::f32x4* shared_sums(const Block& b, i32 rank) {
  return at<dev::f32x4>(b.rank->shares[rank] + kShareWordBytes);
}
ARK_DEVICE u64* share_word(const Block& b, i32 rank, i32 from, i32 tile) {
  return at<u64>(b.rank->shares[rank]) + from * kMostSharing + tile;
}
// The number of the instance's sum, of all steps'. Of those that are not shared nobody asks.
ARK_DEVICE u64 share_number(const Block& b, const Instance& i) {
  return b.step * static_cast<u64>(b.rank->shares_per_step) + static_cast<u64>(i.share);
}

// Thread 0, behind the barrier after the stores.
ARK_DEVICE void tell_share(const Block& b, i32 tile, u64 number) {
  if (ARK_BUG(narrow_share)) {
    dev::fence<dev::Scope::gpu>();
  } else if (!ARK_BUG(relaxed_share)) {
    dev::fence<dev::Scope::sys>();  // with the words a release: publishes the block's stores
  }
  ARK_ROLLED
  for (i32 r = 0; r < b.rank->ranks; ++r) {
    if (r == b.rank->rank || (ARK_BUG(share_not_told) && r == 0)) continue;
    dev::st_relaxed<dev::Scope::sys>(share_word(b, r, b.rank->rank, tile), number);
  }
}

// All of a sum, this rank's share by itself.
template <int kRanks>
ARK_APART void add_share(const LoopParameters& p, u32 instance, u32 messages, i32 tile) {
  Block b = open_turn_block(p);
  const Call call{b, instance_at(instance), messages_at(messages)};
  const ReduceArguments& a = call.i.reduce;
  const SumEpilogue then = epilogue_of(a);
  const i32 all = static_cast<i32>(call.product(a.elements) / 4), width = call.size(a.width);
  const Fours own = fours_of(all, kRanks, p.processors, b.rank->rank, tile);
  // As if all of each part lay there. Of those that products have stored there is this rank's share.
  const bool is_stored = call.i.share_parts_at != 0;
  const i64 share = share_fours(all, kRanks);
  const dev::f32x4* const stored = stored_parts(b, call.i, b.rank->rank, 0, 0) - b.rank->rank * share;
  const dev::f32x4* parts[kRanks];
  ARK_UNROLL
  for (int r = 0; r < kRanks; ++r)
    parts[r] = is_stored && r != b.rank->rank ? stored + r * share : part_of<dev::f32x4>(call, a.parts, r);
  dev::f32x4* const out = at<dev::f32x4>(a.out);
  ARK_ROLLED
  for (i32 e = own.first + b.thread; e < own.last; e += kConsumers) {
    dev::f32x4 v[kRanks];
    ARK_UNROLL
    for (int r = 0; r < kRanks; ++r) v[r] = dev::ld_global(parts[r] + e);
    EpilogueTerms terms[4];
    terms_of_four(then, divide(e * 4, width).rest, e * 4, terms);
    const dev::f32x4 sum = sum_of_four(then.bits, v, terms);
    dev::st_global(out + e, sum);
    ARK_ROLLED
    for (i32 n = 1; n < kRanks; ++n) dev::st_global(shared_sums(b, neighbour(b, n)) + e, sum);
  }
  if (!ARK_BUG(share_without_barrier)) consumers_sync();
  const u64 number = share_number(b, call.i);
  if (b.thread == 0) tell_share(b, tile, number);
  // Acquire: pairs with the fences of tell_share().
  if (b.thread < kRanks && b.thread != b.rank->rank && !ARK_BUG(share_not_awaited))
    wait_reached<dev::Scope::sys>(b, {LoopWait::kArrival, call.i.phase, call.i.trip},
                                  share_word(b, b.rank->rank, b.thread, tile), number);
  if (consumers_stopped(b)) return;
  ARK_ROLLED
  for (i32 n = 1; n < kRanks; ++n) {
    const Fours theirs = fours_of(all, kRanks, p.processors, neighbour(b, n), tile);
    const dev::f32x4* const from = shared_sums(b, b.rank->rank);
    in_turns<4>(
        b, theirs.first, theirs.last, [&](i32 i) { return dev::ld_global(from + i); },
        [&](i32 i, const dev::f32x4& v) { dev::st_global(out + i, v); });
  }
}

}  // namespace ark::cuda
