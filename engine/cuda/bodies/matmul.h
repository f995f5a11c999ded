// x [m, k] times a packed weight [k, n], by tiles of kRowBlock rows x one panel of columns x a group of pieces of k.
//
// A piece (at most kPieceRows rows of the weight) is added up in an order that the weight alone decides;
// pieces are added as a balanced pairwise tree, inside a tile, then over the tiles of one output (the last
// one there adds them up, or the norm behind: bodies/rows.h). So a result does not depend on how tiles are
// dealt. The ring brings the weights; only x is waited for.
//
// A piece is a stage of the ring. A warp takes a piece, all columns of the panel times rows of x (on tensor cores at
// most kWarpRows), with the sums in its registers. x of a batch of pieces is fetched at once, where that can be while
// the batch before is in use; behind a barrier all threads add up the pieces' sums.
//
// Paths. kFma: f32 products and sums, four rows of x at a time. kMma: tensor cores with the weight as A (16 columns of
// it are the 16 rows of the product); x is split into two 16-bit parts, whose products are exact in f32: what is lost
// of x is below 2^-21 (f16, and x in f16's range) or 2^-16 (bf16, codes) of it. kParts: the same, of x that memory
// holds in these parts (bodies/parts.h): it is copied, and steps of many rows may take wide tiles (wide_pieces.h).
//
// A gated product is two of the same rows (Stream::second): a tile takes its pieces of the first weight, keeps their
// sum, then takes those of the second; who has the sums of both multiplies them. One body for both kinds: each more is
// code that the cache has lost.
#pragma once

#include "engine/cuda/bodies/product_output.h"
#include "engine/cuda/bodies/wide_product.h"
#include "engine/cuda/ring.h"

namespace ark::cuda {

enum MatMulPath { kFma, kMma, kParts };

// What tensor cores take of x; kFma takes floats.
template <class W, int kPanel, MatMulPath kPath>
struct PartOf {
  using Type = typename Weights<W, kPanel>::X;
};
template <class W, int kPanel>
struct PartOf<W, kPanel, kFma> {
  using Type = float;
};

// A batch of pieces: their sums lie `sums` floats behind the tile's, those that wait in the tree (from the second on)
// `waiting` floats.
struct FoldedPieces {
  i32 elements, panel_bits, count, batch, pieces, waiting, sums, sums_pitch, piece_floats;
};
ARK_DEVICE dev::f32x4 added(const dev::f32x4& a, const dev::f32x4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}
// The balanced pairwise sum of `count` of a piece's four elements, 1, 2 or 4 times, `apart` floats apart.
ARK_DEVICE dev::f32x4 sum_of_pieces(const float* first, i32 apart, i32 count) {
  const auto piece = [&](i32 i) { return *reinterpret_cast<const dev::f32x4*>(first + i * apart); };
  const dev::f32x4 v0 = piece(0);
  if (count == 1) return v0;
  const dev::f32x4 v1 = piece(1);
  if (count == 2) return added(v0, v1);
  const dev::f32x4 v2 = piece(2), v3 = piece(3);
  return added(added(v0, v1), added(v2, v3));
}
// Adds them into the tree; behind the last batch they are the sums of the tile, of which a thread has four in a row.
// Apart: products have no register left.
ARK_APART void fold_pieces(FoldedPieces f) {
  static_assert(kSumsAtOnce * sizeof(float) == sizeof(dev::f32x4));
  constexpr int kHalf = kNode / 2;
  const int thread = dev::thread_id();
  float* const tile_sums = reinterpret_cast<float*>(dev::shared() + shared_layout(0).scratch + kBorderBytes);
  const i32 each = dev::min(f.count, kNode);
  ARK_ROLLED
  for (int e = thread * kSumsAtOnce; e < f.elements; e += kConsumers * kSumsAtOnce) {
    const i32 row = e >> f.panel_bits;
    const float* from = tile_sums + f.sums + row * f.sums_pitch + (e - (row << f.panel_bits));
    ARK_ROLLED
    for (i32 piece = 0; piece < f.count; piece += each, from += each * f.piece_floats) {
      dev::f32x4 v = sum_of_pieces(from, f.piece_floats, dev::min(each, kHalf));
      if (each > kHalf) v = added(v, sum_of_pieces(from + kHalf * f.piece_floats, f.piece_floats, kHalf));
      float *level = tile_sums + e, *above = tile_sums + f.waiting + e;
      ARK_ROLLED
      for (i32 bit = each; ((f.batch + piece) & bit) != 0; bit *= 2, level = above, above += f.elements)
        v = added(*reinterpret_cast<const dev::f32x4*>(level), v);
      *reinterpret_cast<dev::f32x4*>(f.batch + piece + each < f.pieces ? level : tile_sums + e) = v;
    }
  }
}

// (x, W, bias?, residual?, out). Sizes: bodies/product_output.h. Gated: the residual is the second product's bias.
template <class W, int kPanel, MatMulPath kPath>
struct MatMul : ProductOutput<kPanel, kPath != kFma, typename PartOf<W, kPanel, kPath>::Type> {
  using X = typename PartOf<W, kPanel, kPath>::Type;
  using Output = ProductOutput<kPanel, kPath != kFma, X>;
  using Output::call, Output::s, Output::tiles, Output::tile_sums, Output::row0, Output::rows;
  static constexpr int kAtOnce = Output::kAtOnce;
  using Output::is_gated, Output::weights;
  using Own = Weights<W, kPanel>;
  static constexpr int kVector = Own::kVector, kLanes = Own::kLanes, kFmaRows = 4;
  static constexpr int kPitch = sum_pitch(kPanel);
  static constexpr bool kTakesWideTiles = kWideRows != 0 && kPath == kParts && Own::kTakesWideTiles;
  static constexpr int kColumnGroups = kPanel / 16;

  // Scratch: borders of pieces; sums of the tile [rows][kPanel], first of those that wait for their right neighbours
  // in the tree; gated: those of its first weight; others that wait; x and sums of pieces (engine/cuda/dealing.h).
  // Elements of sums are touched by thread e / kSumsAtOnce % kConsumers only, but those of pieces and where said.
  static constexpr u32 kRowBytes = kPanel * 4, kTileBytes = kRowBlock * kRowBytes;
  static_assert(kBorderBytes + (kTiles.levels + 1) * kTileBytes +
                    kRowBlock * piece_pitch(kPieceRows, kPanel) * 4 <=
                kScratchBytes);
  static_assert(kBorderBytes + (kMaxGroups / kNode + 1) * kTileBytes <= kScratchBytes);
  // Of the fewest rows beyond few; each further one takes no more than it brings.
  static constexpr u32 kPiecesOfRow = (kTiles.levels + 2) * kRowBytes + piece_pitch(kPieceRows, kPanel) * 4,
                       kGatheredOfRow = (kMaxGroups / kNode + 1) * kRowBytes,
                       kMostOfRow = kPiecesOfRow > kGatheredOfRow ? kPiecesOfRow : kGatheredOfRow;
  static_assert(kBorderBytes + (kFewRows + 1) * kMostOfRow <=
                    scratch_of(kFewRows + 1, kWarpRows, kScratchBytes) &&
                kMostOfRow <= kScratchOfRow);
  static constexpr u32 kFewBytes = kFewRows * kPanel * 4;
  static_assert(kBorderBytes + (kTiles.levels + 2) * kFewBytes +
                    kFewRows * (batch_pitch(1, kPieceRows) + sum_pitch(kPanel)) * 4 <=
                kFewScratchBytes);
  static_assert(kBorderBytes + (kMaxGroups / kNode + 1) * kFewBytes <= kFewScratchBytes);

  const Batches batches;
  float* x_start;         // of the batch in use
  i32 ahead_floats;       // from this batch's rooms to those of the next one; 0: none are copied ahead
  bool has_sums = false;  // where x of the next batch will be

  ARK_DEVICE explicit MatMul(const Call& c)
      : Output(c),
        batches(tiles.pieces, s.longest_piece,
                {most_rows(), kPanel, !is_fma(), kPath == kParts, keeps_first(), is_apart()},
                scratch_of(ARK_BUG(scratch_of_more_rows) ? kRowBlock : tiles.rows, c.b.p.leaving_rows,
                           kScratchBytes)) {
    x_start = waiting() + waiting_levels(tiles.pieces, count()) * most_rows() * kPanel;
    ahead_floats = batches.ahead ? count() * piece_floats() : 0;
  }

  ARK_DEVICE bool is_apart() const { return cuda::is_apart(tiles.rows); }
  ARK_DEVICE i32 count() const { return batches.count; }  // pieces of a batch
  ARK_DEVICE float* waiting() const { return tile_sums + (keeps_first() ? 2 : 1) * most_rows() * kPanel; }
  // What follows from the stream is worked out where it is asked for: registers are few.
  ARK_DEVICE i32 x_pitch() const {
    return is_apart() ? piece_pitch(s.longest_piece, kPanel) : batch_pitch(count(), s.longest_piece);
  }
  // x so many floats behind that of the batch in use.
  ARK_DEVICE XRows x_behind(i32 floats) const {
    return {x_start + floats, x_pitch(), by_eights(is_apart() ? s.longest_piece : count() * s.longest_piece),
            rows};
  }
  // Of pieces: where they are, floats of a row, floats of a piece.
  ARK_DEVICE float* piece_sums() const { return is_apart() ? x_start : x_start + most_rows() * x_pitch(); }
  ARK_DEVICE i32 sums_pitch() const { return is_apart() ? x_pitch() : kPitch; }
  ARK_DEVICE i32 piece_floats() const { return most_rows() * sums_pitch(); }
  ARK_DEVICE i32 most_rows() const { return dev::min(narrow_rows(s, tiles.rows), tiles.rows); }
  // Sums of the first weight wait in scratch, or, where many rows leave no room there, where the output will be.
  ARK_DEVICE bool keeps_first() const { return kPath != kFma && is_gated(); }
  ARK_DEVICE static constexpr bool is_fma() { return kPath == kFma; }
  ARK_DEVICE const i32* borders() const { return reinterpret_cast<const i32*>(call.b.scratch); }

  // x of the batch whose pieces begin at `border`; parts may be on their way then, until await_batch().
  ARK_DEVICE void load_batch(const XRows& to, const i32* border) const {
    const XBatch batch = batch_of(border);
    if constexpr (kPath == kParts) {
      if (is_told() && !copies_told())
        return take_told_parts<X>(call.b.p, batch.start + border[0], batch.pitch, batch.columns, to);
      copy_parts<X>(batch, to);
    } else {
      if (is_told()) return take_told<X>(call.b.p, batch, to);
      load_x<X, kAtOnce>(batch, to);
    }
  }
  ARK_DEVICE void copy_ahead(const XRows& to, const i32* border) const {
    if constexpr (kPath == kParts) copy_parts<X>(batch_of(border), to);
  }
  // Of this thread, into x_behind(0).
  ARK_DEVICE void await_batch(const i32* border) const {
    if constexpr (kPath != kParts) return;
    if (is_told() && copies_told()) {
      await_told_parts<X>(call.b.p, {x_start, row0, rows, static_cast<i32>(border - borders()), count(),
                                     s.longest_piece, x_pitch(), piece_floats()});
    } else {
      wait_for_parts();
    }
  }
  ARK_DEVICE bool is_told() const { return call.b.words->x_told != 0; }
  // Few rows are looked at until they are there; copies of more may be ahead of what is multiplied.
  ARK_DEVICE bool copies_told() const { return kPath == kParts && is_apart(); }
  ARK_DEVICE XBatch batch_of(const i32* border) const {
    const bool apart = is_apart();
    const i32 pitch = call.b.words->x_pitch;
    return {at<const float>(call.b.words->x) + static_cast<i64>(row0) * pitch,
            pitch,
            border,
            apart ? 1 : count(),
            apart ? count() : 1,
            apart ? s.longest_piece : border[count()] - border[0],
            piece_floats()};
  }

  // ---- pieces: rows of the weight, whose x begins at column `at_x` of its rows in scratch

  // All columns times the warp's rows of x from `first` on, one or two times eight at once, whose sums registers hold,
  // into `to`: a row's sums may take the place of its x.
  ARK_DEVICE void mma_piece(const XRows& own, i32 first, const u8* stage, i32 piece_rows, i32 at_x,
                            float* to) const {
    constexpr int kOctets = Own::kOctets, kLast = kOctets - 1;
    const i32 end = dev::min(first + kWarpRows, rows);
    ARK_ROLLED
    for (; first < end; first += 8 * kOctets) {
      const XLines<X> lines(call.b, own, first, at_x), others(call.b, own, first + 8 * kLast, at_x);
      const bool has_others = kOctets > 1 && dev::uniform(first + 8) < dev::uniform(rows);
      if constexpr (Own::kAreCodes) {
        const CodesPiece<X> piece{instance_offset(call),
                                  static_cast<u32>(stage - dev::shared()),
                                  static_cast<u32>(reinterpret_cast<const u8*>(to) - dev::shared()),
                                  piece_rows,
                                  sums_pitch(),
                                  first,
                                  rows,
                                  lines,
                                  others};
        has_others ? multiply_codes<W, kPanel, kOctets>(piece) : multiply_codes<W, kPanel, 1>(piece);
      } else {
        Sum sums[kOctets][kColumnGroups];
        if (has_others) {
          Own::template multiply<kOctets>(call.b, s, stage, piece_rows, lines, others, sums);
        } else {
          Own::template multiply<1>(call.b, s, stage, piece_rows, lines, others, sums);
        }
        put_sums(sums, call.b.lane, to, sums_pitch(), first, rows);
      }
      if (8 * kOctets == kWarpRows) break;  // the compiler does not see it
    }
  }

  // All columns times all rows of x, four at a time.
  ARK_DEVICE void fma_piece(const XRows& own, const u8* stage, i32 first, i32 piece_rows, i32 at_x,
                            float* to) const {
    ARK_ROLLED
    for (i32 row = 0; row < rows; row += kFmaRows) {
      float sums[kFmaRows][kVector] = {};
      const float* lines[kFmaRows];
      ARK_UNROLL
      for (int r = 0; r < kFmaRows; ++r) lines[r] = row_of<float>(own, dev::min(row + r, rows - 1)) + at_x;
      Own::fma(call.b, s, stage, first, piece_rows, lines, sums);
      if (!ARK_BUG(release_without_sync_warp)) dev::sync_warp();
      ARK_UNROLL
      for (int r = 0; r < kFmaRows; ++r) {
        ARK_UNROLL
        for (int c = 0; c < kVector; ++c) {
          ARK_UNROLL
          for (int distance = kLanes; distance < 32; distance *= 2) {
            if (ARK_BUG(divergent_collective) && call.b.lane == 31) continue;
            sums[r][c] += dev::shfl_xor(sums[r][c], distance);
          }
          if (call.b.lane < kLanes && row + r < rows)
            to[(row + r) * sums_pitch() + call.b.lane * kVector + c] = sums[r][c];
        }
      }
    }
  }

  ARK_DEVICE void run_pieces(const i32* border) {
    const int stages = call.b.stages, sharing = warps_of_piece(rows, !is_fma()),
              at_once = kConsumerWarps / sharing, own = call.b.warp / sharing;
    const i32 first_row = (call.b.warp & (sharing - 1)) * kWarpRows;
    const bool apart = is_apart();
    RingCursor& cursor = call.b.cursor;
    cursor.advance(own, stages);
    i32 p = own;
    ARK_ROLLED
    for (; p < count(); p += at_once) {
      const i32 first = border[p], at_x = apart ? 0 : first - border[0];
      const i32 piece_rows = acquire_stage(call.b, cursor) ? border[p + 1] - first : 0;
      const u8* stage = stage_at(call.b, cursor);
      float* to = piece_sums() + p * piece_floats();
      const XRows here = x_behind(apart ? p * piece_floats() : 0);
      if constexpr (kPath == kFma) {
        fma_piece(here, stage, first, piece_rows, at_x, to);
      } else {
        mma_piece(here, first_row, stage, piece_rows, at_x, to);
      }
      release_stage(call.b, cursor, sharing);
      cursor.advance(at_once, stages);
    }
    cursor.rewind(p - count(), stages);
  }

  // Adds the batch from piece `batch` on into the tree; behind the last batch tile_sums is the sum of the tile.
  ARK_DEVICE void fold(i32 batch) const {
    const auto place = [&](const float* p) { return static_cast<i32>(p - tile_sums); };
    fold_pieces({rows * kPanel, log2_of(kPanel), count(), batch, tiles.pieces, place(waiting()),
                 place(piece_sums()), sums_pitch(), piece_floats()});
  }

  // x of a tile of one batch is there from the first weight on, unless sums took its place.
  ARK_DEVICE void run_batches(const StreamTile& tile, int weight) {
    ARK_ROLLED
    for (i32 batch = 0; batch < tiles.pieces; batch += count()) {
      const i32* const border = borders() + tile.group * tiles.pieces + batch;
      if (ahead_floats != 0 ? weight == 0 && batch == 0
                            : weight == 0 || is_apart() || count() < tiles.pieces) {
        // All have taken up the sums that lay there.
        if (has_sums && ahead_floats == 0 && !ARK_BUG(x_over_sums)) consumers_sync();
        load_batch(x_behind(0), border);
      }
      await_batch(border);
      if (!ARK_BUG(missing_scratch_barrier)) consumers_sync();
      const bool is_last = batch + count() == tiles.pieces;
      if (ahead_floats != 0 && !(is_last && weight + 1 == weights()))
        copy_ahead(x_behind(ARK_BUG(copied_into_use) ? 0 : ahead_floats),
                   is_last ? border - batch : border + count());
      run_pieces(border);
      consumers_sync();
      fold(batch);
      has_sums = is_apart();
      // The other rooms are free since the barrier before: all had taken up their sums.
      x_start += ahead_floats, ahead_floats = -ahead_floats;
    }
  }

  ARK_DEVICE void run_tile(const StreamTile& tile) {
    const i32 most = narrow_rows(s, tiles.rows);
    row0 = tile.block * most;
    rows = dev::min(most, tiles.rows - row0);
    ARK_ROLLED
    for (int weight = 0; weight < weights(); ++weight) {
      if (weight > 0)
        tiles.groups == 1 ? this->keep_first(tile.panel)
                          : this->hand_in(tile.group, tile.panel, 0, tile_sums);
      run_batches(tile, weight);
    }
  }

  // ---- the case

  ARK_DEVICE static Lineup grid(const Call& call) {
    const Stream& s = call.i.stream;
    return StreamTiles(s, call.size(s.m)).lineup(s);
  }
  ARK_DEVICE static void prepare(const Call& call, Tiles own) {
    const Stream& s = call.i.stream;
    const u32 biases = kEpilogueBias | (s.second != 0 ? kEpilogueResidual : 0);
    if ((static_cast<u32>(call.i.product.epilogue) & biases) != 0)
      prefetch_biases(call.b.p, instance_offset(call), call.size(s.m), static_cast<i32>(own.first),
                      static_cast<i32>(own.last));
    if (call.b.thread == 0) {
      BlockWords& words = *call.b.words;
      const Rows x = rows_at(call.b, call.i.product.x, s.k, call.i.lamport_x);
      words.x = reinterpret_cast<u64>(x.first), words.x_pitch = static_cast<i32>(x.pitch),
      words.x_told = x.told;
      words.first_tile = static_cast<i32>(own.first), words.last_tile = static_cast<i32>(own.last);
      prepare_sums(call);
    }
    if (call.i.product.tile_use != 0 && !(ARK_BUG(stale_places) && call.b.step > 0))
      look_up_places(call.b.p, 0, dev::min(kRowBlock, call.size(s.m)));
    ARK_ROLLED
    for (i32 p = call.b.thread; p <= s.pieces; p += kConsumers)
      reinterpret_cast<i32*>(call.b.scratch)[p] = dev::ld_nc(at<const i32>(s.borders) + p);
  }
  ARK_DEVICE static void run(const Call& call, Tiles own) {
    if constexpr (kTakesWideTiles) {
      if (is_wide(call.i.stream, call.size(call.i.stream.m))) {
        const auto first = static_cast<i32>(own.first);
        if (call.b.words->x_told != 0 && !ARK_BUG(wide_copies_not_looked_at))
          await_wide_x(call.b.p, instance_offset(call), call.size(call.i.stream.m), first);
        return run_wide<W>(call.b.p, instance_offset(call), first);
      }
    }
    take_ring(call.b);
    MatMul body(call);
    i32 handed = 0;  // groups of an output
    const i32 end = static_cast<i32>(own.last);
    for (i32 t = static_cast<i32>(own.first); t < end; ++t) {
      const StreamTile tile(body.tiles, t);
      body.run_tile(tile);
      if (hands_in(call, body.tiles)) {
        body.hand_in(tile.group, tile.panel, body.weights() - 1, body.tile_sums);
        if (body.s.arrivals == 0) continue;  // who reads the output adds them up
        ++handed;
        if (tile.group + 1 < body.tiles.groups && t + 1 < end) continue;  // the next is of the same output
        const bool is_last = body.join(tile, handed);
        handed = 0;
        if (!is_last) continue;
      }
      body.write(tile.panel, body.tiles.groups > 1);  // the one place: it is much code
      if (body.is_used_here()) use_tile(call.b.p, finished_tile(call, t, body.tiles.rows));
    }
    leave_cursor(call.b);
  }
};

}  // namespace ark::cuda
