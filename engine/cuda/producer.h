// The streaming warp of a block: it runs ahead through the matrix products of a step, over borders of tiles and phases,
// and fills the ring of weights. It waits for free stages only. While there are none it asks for what comes next to be
// brought from memory into L2; and at a step's end for the first pieces of the next one, which are most often the same.
#pragma once

#include "engine/cuda/ring.h"

namespace ark::cuda {

struct Producer {
  Block& b;
  RingCursor cursor;
  u32 issued = 0;  // stages ever filled, modulo 2^32
  // Pieces that have come up; those of them that are in the ring, the others being fewer than kMostAhead + 2: lane
  // n % 32 has piece n. Modulo 2^32.
  u32 found = 0, copied = 0;
  u64 waiting_from = 0;
  u32 waiting_bytes = 0;
  i32 left_to_ask = 0;  // of the next step, which is only asked for

  // Whole warp, as all below. Whether the ring has a stage for the next piece; without waiting for it.
  ARK_DEVICE bool has_free_stage() const {
    const bool is_free = b.lane == 0 && dev::mbarrier_test_wait(b.empty + cursor.stage, cursor.parity ^ 1);
    return dev::ballot(is_free) != 0;
  }

  // Copies the one that waits longest. False: the block gives up.
  ARK_DEVICE bool copy_next() {
    const int lane = static_cast<int>((copied + ARK_BUG(piece_of_another_lane)) % 32);
    const u8* from = at<const u8>(dev::shfl(waiting_from, lane));
    u32 bytes = dev::shfl(waiting_bytes, lane);
    dev::Mbarrier* empty = b.empty + cursor.stage;
    bool free = true;
    if (b.lane == 0 && !ARK_BUG(refill_without_wait)) {
      // The parity before the first round counts as complete on a fresh barrier.
      free = wait_until<kStreamingSide>(b, {LoopWait::kWeights}, empty, cursor.parity ^ 1, [&](u64&) {
        return dev::mbarrier_try_wait(empty, cursor.parity ^ 1);
      });
    }
    if (dev::ballot(!free) != 0) return false;
    ++issued, ++copied;
    if (b.lane == 0) dev::st_shared_relaxed(&b.words->opened, issued);
    if (ARK_BUG(unaligned_bulk_copy)) from = static_cast<const u8*>(from) + 4;
    if (ARK_BUG(short_copy) && bytes > 0) bytes -= 16;
    dev::copy_ahead(b.ring + cursor.stage * kStageBytes, from, bytes, b.full + cursor.stage);
    if (!ARK_BUG(stuck_stage) || b.processor != 1) cursor.advance(b.stages);
    return true;
  }

  // The next piece: to the ring, if it has a stage; else it waits, while fewer than b.p.ahead others do. `is_first`: of
  // tiles of the same weights, which find it in L2. False: the block gives up, or no more are to be asked for.
  ARK_DEVICE bool stream(const u8* from, u32 bytes, bool is_first) {
    const bool is_asked_only = left_to_ask > 0;
    if (!is_asked_only) {
      if (b.lane == static_cast<int>(found % 32))
        waiting_from = reinterpret_cast<u64>(from), waiting_bytes = bytes;
      ++found;
    }
    const u32 most = is_asked_only ? ARK_BUG(piece_left_waiting) : static_cast<u32>(b.p.ahead);
    while (found != copied && (found - copied > most || has_free_stage()))
      if (!copy_next()) return false;
    if (is_first && (is_asked_only || found != copied)) dev::prefetch_ahead(from, bytes);
    return !is_asked_only || --left_to_ask > 0;
  }

  ARK_DEVICE static i32 units_of(const Stream& s, i32 rows) {
    return s.unit_rows == 1 ? rows
                            : static_cast<i32>(dev::multiply_high(static_cast<u32>(rows), s.unit_reciprocal));
  }
  ARK_DEVICE static const u8* panel_at(const Stream& s, u64 weights, i32 panel) {
    const u64 bytes = static_cast<u64>(units_of(s, s.k + s.unit_rows - 1)) * static_cast<u64>(s.unit_bytes);
    return at<const u8>(weights) + static_cast<u64>(panel) * bytes;
  }

  // The tile's rows of one panel, or of two in turn: a piece a stage, also an empty one. Borders come by 32, a lane
  // each: alone they would be waited for, since waits of others empty the cache.
  ARK_DEVICE bool stream_tile(const Stream& s, const u8* panel, const u8* other, i32 pieces,
                              const StreamTile& tile) {
    const i32* borders = at<const i32>(s.borders) + tile.group * pieces;
    ARK_ROLLED
    for (i32 first = 0; first < pieces; first += 31) {
      const i32 mine = dev::ld_nc(borders + dev::min(first + b.lane, pieces));
      const i32 count = dev::min(31, pieces - first);
      ARK_ROLLED
      for (i32 piece = 0; piece < count; ++piece) {
        const i32 row = dev::shfl(mine, piece), end = dev::shfl(mine, piece + 1);
        const u64 start = static_cast<u64>(units_of(s, row)) * static_cast<u64>(s.unit_bytes);
        const u32 bytes = static_cast<u32>(units_of(s, end - row + s.unit_rows - 1) * s.unit_bytes);
        ARK_ROLLED
        for (int half = 0; half < (kHasWideTiles && other != nullptr ? 2 : 1); ++half)
          if (!stream((half == 0 ? panel : other) + start, bytes, tile.block == 0)) return false;
      }
    }
    return true;
  }

  // All of a step's pieces.
  ARK_DEVICE bool run_tiles() {
    ARK_ROLLED
    for (i32 n = 0; n < b.rank->stream_count; ++n) {
      const Stream s = load_stream(b.rank->streams, n);
      const StreamTiles all(s, s.m >= 0 ? s.m : b.vals[~s.m]);
      const Tiles tiles = share_at<kStreamingSide>(b, all.lineup(s), s.base).tiles;
      ARK_ROLLED
      for (i32 t = static_cast<i32>(tiles.first); t < static_cast<i32>(tiles.last); ++t) {
        const StreamTile tile(all, t);
        const WideHalves halves(s, tile);
        const i32 panel = all.wide ? halves.panel : tile.panel;
        const u8* other = nullptr;
        if (all.wide && halves.count == 2)
          other = halves.is_gated ? panel_at(s, s.second, panel) : panel_at(s, s.weights, panel + 1);
        ARK_ROLLED
        for (int weight = 0; weight < (s.second != 0 && !all.wide ? 2 : 1); ++weight) {
          const u8* const first = panel_at(s, weight == 0 ? s.weights : s.second, panel);
          if (!stream_tile(s, first, other, all.pieces, tile)) return false;
        }
      }
    }
    return true;
  }

  // Twice, if pieces may wait: the second time copies the last of them, then asks for the next step's first ones.
  ARK_DEVICE bool run_step() {
    ARK_ROLLED
    for (left_to_ask = 0;; left_to_ask = b.p.ahead) {
      const bool is_second = left_to_ask > 0;
      if (!run_tiles() && !is_second) return false;
      if (is_second || b.p.ahead == 0) break;
    }
    left_to_ask = 0;
    return found == copied;
  }

  // The turn's vals and ring, of which choose_ring() has made the barriers anew if it is another one than before.
  ARK_DEVICE void take_turn(u64 turn) {
    const int before = b.stages;
    open_ring(b, turn);
    if (b.stages != before) cursor = {};
    b.vals = open_block(b.p, 0, static_cast<u32>(turn)).vals;
  }

  // No copy may be on its way when the block ends. Stages that were never filled count as complete.
  ARK_DEVICE void drain() {
    const u32 stages = static_cast<u32>(b.stages);
    ARK_ROLLED
    for (u32 n = 0; n < stages; ++n) {
      cursor.parity ^= cursor.stage == 0 ? 1 : 0;
      cursor.stage = cursor.stage == 0 ? stages - 1 : cursor.stage - 1;
      dev::Mbarrier* full = b.full + cursor.stage;
      while (!dev::mbarrier_try_wait(full, cursor.parity)) dev::pause(full, 0, cursor.parity, 0);
    }
  }
};

// Meets the consumers once a turn, behind its opening. They alone decide when to leave: should this warp give
// up, they may have opened one more turn by then, and it meets them once more.
ARK_APART void produce(const LoopParameters& p) {
  Block b = open_block(p, 0, 0);
  open_ring(b, p.first_turn - 1);
  Producer producer{b, {}};
  bool gave_up = false;
  for (u64 turn = p.first_turn;; ++turn) {
    both_sides_sync();
    if (b.words->leave[turn % 2] != 0) break;
    producer.take_turn(turn);
    if (!gave_up) gave_up = !producer.run_step();
  }
  producer.drain();
}

}  // namespace ark::cuda
