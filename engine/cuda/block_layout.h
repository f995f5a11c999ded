// What a block has of shared memory: where things lie in it, by the tiles that fit, and the stages of its ring of
// weights. Compiled by NVRTC too: no std.
#pragma once

#include "engine/cuda/image.h"

namespace ark::cuda {

// Dynamic shared memory of a block.
struct SharedLayout {
  u32 parameters, rank, instances, waits, messages, vals, words, barriers, scratch, ring, total;
};
inline constexpr int kMinStages = 6, kMaxStages = 32;
inline constexpr u32 kWordsBytes = 128;
inline constexpr int kFetchAhead = 3, kInstanceBuffers = kFetchAhead + 1;
ARK_BOTH constexpr SharedLayout shared_layout(int stages, u32 scratch_bytes = kScratchBytes) {
  SharedLayout s{};
  u32 at = 0;
  s.parameters = at, at += 256;  // LoopParameters
  s.rank = at, at += kRankBytes;
  s.instances = at, at += kInstanceBuffers * sizeof(Instance);
  s.waits = at, at += kInstanceBuffers * kMaxWaits * sizeof(Wait);
  s.messages = at, at += kInstanceBuffers * kMaxMessages * sizeof(Message);
  s.vals = at, at += 2 * kMaxVals * 4;  // of this turn and the next
  s.words = at, at += kWordsBytes;
  s.barriers = at, at += 2 * kMaxStages * 8;
  at = (at + 255) / 256 * 256;
  s.scratch = at, at += scratch_bytes;
  s.ring = at, at += static_cast<u32>(stages) * kStageBytes;
  s.total = at;
  return s;
}

// Stages of the ring in steps whose products may take exact wide tiles of more than kSlimWideRows.
ARK_BOTH constexpr int wide_stages(int stages, const TileShape& tiles) { return stages - tiles.wide_stages; }
// And in others, of so many rows, where bodies leave the end of their scratch to it.
ARK_BOTH constexpr int ring_stages(int stages, i32 rows, i32 leaving_rows, u32 scratch) {
  if (rows > leaving_rows) return stages;
  const int more = static_cast<int>((scratch - scratch_of(rows, leaving_rows, scratch)) / kStageBytes);
  return stages + more < kMaxStages ? stages + more : kMaxStages;
}

// Pieces of weights, a stage each, that a block asks memory for before the ring has a stage for them, so that memory is
// at work while activations are waited for. They wait in L2, of which all blocks' take a third: what else a step reads
// is there, too, and of two halves each may keep what the other has.
inline constexpr int kMostAhead = 31;  // one a lane, and the piece at hand
ARK_BOTH constexpr int pieces_ahead(i64 l2_bytes, int blocks) {
  const i64 pieces = l2_bytes / 3 / kStageBytes / (blocks < 1 ? 1 : blocks);
  return static_cast<int>(pieces < kMostAhead ? pieces : kMostAhead);
}

// The tiles for GPUs that give a block so many bytes of shared memory. Where not even the small ones fit, the
// executor and the driver refuse.
ARK_BOTH constexpr TileShape tiles_for(i64 shared_per_block) {
  const auto fits = [&](const TileShape& tiles) {
    return shared_layout(kMinStages + tiles.wide_stages, tiles.scratch).total <= shared_per_block;
  };
  return fits(kLargestTiles) ? kLargestTiles : fits(kLargeTiles) ? kLargeTiles : kSmallTiles;
}

}  // namespace ark::cuda
