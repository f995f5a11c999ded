// A product whose outputs are this rank's part of a sum over ranks: where it stores these.
#pragma once

#include "engine/cuda/lamport.h"

namespace ark::cuda {

// In rank `to`'s memory: where the parts of its share lie that rank `from`'s product stores. `share`: its fours.
ARK_DEVICE dev::f32x4* stored_parts(const Block& b, const Instance& i, i32 to, i32 from, i32 share) {
  return at<dev::f32x4>(b.rank->shares[to]) + i.share_parts_at + static_cast<i64>(from) * share;
}

// Whether its outputs go to other ranks' memory in some steps. They lie by whole fours then.
ARK_DEVICE bool stores_parts_of_sum(const Instance& i) {
  return kHasPeers && (i.parts_at != 0 || i.share_parts_at != 0);
}

// Whether ranks do not tell each other of the sum by words in this step; of parts that products store, of no sum.
ARK_DEVICE bool may_share(const Block& b, const Instance& i) {
  return i.share_parts_at == 0 ? !tells_ranks(b, i) : b.words->parts == 0;
}

// Four elements of a row: to all ranks, where these tell each other of parts by words; to the rank whose share it is,
// in steps in which the sum is shared (as bodies/shares.h finds it, by tiles); else to where they are sent from. Apart:
// products have no register left.
ARK_APART void store_part(const LoopParameters& p, u32 instance, i32 row, i32 column, dev::f32x4 v) {
  Block b = open_turn_block(p);
  const Call call{b, instance_at(instance), nullptr};
  const Instance& i = call.i;
  if (tells_ranks(b, i)) return tell_ranks(b, i.parts_at, row, column, v);
  const i32 own = b.rank->rank, n = i.stream.n;
  const i64 four = (static_cast<i64>(row) * n + column) / 4,
            elements = static_cast<i64>(call.size(i.stream.m)) * n;
  dev::f32x4* to = at<dev::f32x4>(i.product.out) + four;
  if (i.share_parts_at != 0 && may_share(b, i) && elements > b.rank->shares_from * kSendElements) {
    const i32 share = share_fours(static_cast<i32>(elements / 4), b.rank->ranks);
    const Division place = divide(static_cast<i32>(four), share);
    const i32 rank = ARK_BUG(stored_share_of_another_rank) ? own : place.quotient;
    if (rank != own) to = stored_parts(b, i, rank, own, share) + place.rest;
  }
  dev::st_global(to, v);
}

}  // namespace ark::cuda
