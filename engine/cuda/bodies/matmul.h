// x [m, k] times a packed weight [k, n], by tiles of kRowBlock rows x one panel of columns x a group of pieces of k.
//
// A piece (at most kPieceRows rows of the weight) is added up in an order that the weight alone decides;
// pieces are added as a balanced pairwise tree, inside a tile, then over the tiles of one output (the last
// one there adds them up, or the norm behind: bodies/rows.h). So a result does not depend on how tiles are
// dealt. The ring brings the weights; only x is waited for.
//
// A piece is a stage of the ring. With few rows of x (multiply-adds, or one column of eight on tensor cores) each
// warp takes pieces of its own, all columns of the panel: x of a batch of pieces is fetched at once, and behind a
// barrier all threads add up the pieces' sums. With more rows all warps share each piece, and each keeps its
// outputs' tree to itself, while x of the next columns is on its way.
//
// Paths. kFma: f32 products and sums, four rows of x at a time. kMma: tensor cores with the weight as A (16
// columns of it are the 16 rows of the product); x is split into two 16-bit parts, whose products are exact
// in f32: what is lost of x is below 2^-21 (f16, and x in f16's range) or 2^-16 (bf16, codes) of it. kParts: the
// same, of x that memory holds in these parts (bodies/parts.h): it is copied. kMixed: kFma up to four rows.
//
// A gated product is two of the same rows (Stream::second): a tile takes its pieces of the first weight, keeps their
// sum, then takes those of the second; who has the sums of both multiplies them. One body for both kinds: each more is
// code that the cache has lost.
#pragma once

#include "engine/cuda/bodies/product_output.h"
#include "engine/cuda/bodies/weights.h"

namespace ark::cuda {

enum MatMulPath { kFma, kMma, kParts, kMixed };

// What tensor cores take of x; kFma takes floats.
template <class W, int kPanel, MatMulPath kPath>
struct PartOf {
  using Type = typename Weights<W, kPanel>::X;
};
template <class W, int kPanel>
struct PartOf<W, kPanel, kFma> {
  using Type = float;
};

// (x, W, bias?, residual?, out). Sizes: bodies/product_output.h. Gated: the residual is the second product's bias.
template <class W, int kPanel, MatMulPath kPath>
struct MatMul : ProductOutput<kPanel, kPath != kFma, typename PartOf<W, kPanel, kPath>::Type> {
  using X = typename PartOf<W, kPanel, kPath>::Type;
  using Output = ProductOutput<kPanel, kPath != kFma, X>;
  using Output::call, Output::s, Output::tiles, Output::tile_sums, Output::row0, Output::rows;
  static constexpr int kAtOnce = Output::kAtOnce;
  using Output::is_gated, Output::weights, Output::is_whole, Output::load_terms;
  using Own = Weights<W, kPanel>;
  static constexpr int kVector = Own::kVector, kLanes = Own::kLanes, kFmaRows = 4;
  static constexpr int kPitch = sum_pitch(kPanel);
  // Of pieces that all warps share: 16 columns of the panel a warp, and each kRowParts-th column of eight rows of x.
  static constexpr int kColumnGroups = kPanel / 16, kRowParts = kConsumerWarps / kColumnGroups;
  static constexpr int kOctets = (kRowBlock / 8 + kRowParts - 1) / kRowParts,
                       kKept = kOctets * 4;  // sums of a lane
  // Quarters of x that a thread fetches ahead.
  static constexpr int kXAhead = kRowBlock * kPieceRows / 4 / kConsumers;

  // Scratch: borders of pieces; sums of the tile [rows][kPanel]; gated: those of its first weight; sums that wait for
  // their right neighbours in the tree; x; sums of pieces. Elements of the first sums are touched by thread
  // e % kConsumers only, but where said.
  static constexpr u32 kTileBytes = kRowBlock * kPanel * 4;
  static constexpr u32 kWaitingBytes =
      (kTiles.levels - 1) *
      (kKept * kConsumers > kRowBlock * kPanel ? kKept * kConsumers : kRowBlock * kPanel) * 4;
  static constexpr u32 kXBytes = kRowBlock * (kPieceRows + 8) * 4;
  static_assert(kBorderBytes + 2 * kTileBytes + kWaitingBytes + 2 * kXBytes <= kScratchBytes ||
                kPath == kFma);
  static_assert(kBorderBytes + 2 * kTileBytes + kWaitingBytes + kXBytes + kRowBlock * kPitch * 4 <=
                kScratchBytes);
  static_assert(kBorderBytes + (kMaxGroups / kNode + 1) * kTileBytes <= kScratchBytes);

  i32 count = 0;  // pieces whose x is in scratch at once
  XRows x{};
  float *waiting, *piece_sums;

  ARK_DEVICE explicit MatMul(const Call& c) : Output(c) {
    const i32 most_rows = dev::min(kRowBlock, tiles.rows);
    if (is_shared()) {
      waiting = tile_sums + (keeps_first() ? 2 : 1) * kRowBlock * kPanel;
      x.start = waiting + kWaitingBytes / 4;
      count = shared_turn(s.longest_piece);
    } else {
      plan_batches(most_rows);
    }
  }

  // Sums of the first weight wait in scratch, or, where many rows leave no room there, where the output will be.
  ARK_DEVICE bool keeps_first() const { return kPath != kFma && is_gated(); }
  ARK_DEVICE bool is_fma() const { return kPath == kFma || (kPath == kMixed && tiles.rows <= kFmaRows); }
  ARK_DEVICE bool is_shared() const { return !is_fma() && tiles.rows > kFewRows; }
  ARK_DEVICE const i32* borders() const { return reinterpret_cast<const i32*>(call.b.scratch); }

  ARK_DEVICE void plan_batches(i32 most_rows) {
    const i32 levels = log2_of(static_cast<u32>(tiles.pieces)) + 1;
    count = batch_of(tiles.pieces, s.longest_piece, most_rows, kPanel, keeps_first(), kScratchBytes);
    waiting = tile_sums + (keeps_first() ? 2 : 1) * most_rows * kPanel;
    x.start = waiting + (levels - 1) * most_rows * kPanel;
    x.stride = batch_columns(count, s.longest_piece);
    piece_sums = static_cast<float*>(x.start) + most_rows * x.stride;
  }

  ARK_DEVICE XSource source() const {
    return {call.template operand<const float>(0) + static_cast<i64>(row0) * s.k, s.k, rows};
  }

  // Columns [first, last) of the tile's rows, as E.
  template <class E>
  ARK_DEVICE void load_x(i32 first, i32 last) const {
    XQuarters<kAtOnce> quarters(source(), first, last);
    ARK_ROLLED
    for (i32 i = call.b.thread; i < quarters.all; i += kAtOnce * kConsumers) {
      quarters.load(source(), i);
      quarters.template put<E>(x, i);
    }
  }

  ARK_DEVICE void load_batch(i32 first, i32 last) const {
    if constexpr (kPath == kParts) {
      copy_parts<X>(source(), x, call.b.thread, first, last);
      wait_for_parts();
    } else if constexpr (kPath == kFma) {
      load_x<float>(first, last);
    } else if constexpr (kPath == kMma) {
      load_x<X>(first, last);
    } else {
      is_fma() ? load_x<float>(first, last) : load_x<X>(first, last);
    }
  }

  // ---- pieces of a warp's own: rows [first, last) of the weight, whose x begins at column `at_x` of scratch

  // All columns times eight rows of x, into `to` [rows][kPitch].
  ARK_DEVICE void mma_piece(const XLines<X, 1>& lines, const u8* stage, i32 piece_rows, i32 at_x,
                            float* to) const {
    typename Own::Sum sums[kColumnGroups];
    ARK_ROLLED
    for (i32 row = 0; row < piece_rows; row += 16) {
      u32 high[2], low[2];
      lines.load(0, at_x + row, high, low);
      ARK_UNROLL
      for (int g = 0; g < kColumnGroups; ++g)
        Own::mma(Own::load(call.b, s, stage, row, g * 16), high, low, sums[g]);
    }
    ARK_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int row = call.b.lane % 4 * 2 + i % 2;
      if (row >= rows) continue;
      ARK_UNROLL
      for (int g = 0; g < kColumnGroups; ++g)
        to[row * kPitch + g * 16 + call.b.lane / 4 + i / 2 * 8] = sums[g].at(i);
    }
  }

  // All columns times all rows of x, four at a time.
  ARK_DEVICE void fma_piece(const u8* stage, i32 first, i32 piece_rows, i32 at_x, float* to) const {
    ARK_ROLLED
    for (i32 row = 0; row < rows; row += kFmaRows) {
      float sums[kFmaRows][kVector] = {};
      const float* lines[kFmaRows];
      ARK_UNROLL
      for (int r = 0; r < kFmaRows; ++r)
        lines[r] = static_cast<const float*>(x.start) + dev::min(row + r, rows - 1) * x.stride + at_x;
      Own::fma(call.b, s, stage, first, piece_rows, lines, sums);
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
            to[(row + r) * kPitch + call.b.lane * kVector + c] = sums[r][c];
        }
      }
    }
  }

  ARK_DEVICE void run_own_pieces(const i32* border) {
    const int stages = call.b.p.stages;
    RingCursor cursor = call.b.cursor;
    cursor.advance(call.b.warp, stages);
    const XLines<X, 1> lines(call.b, x, 0, 0);
    ARK_ROLLED
    for (i32 p = call.b.warp; p < count; p += kConsumerWarps) {
      const i32 first = border[p], at_x = first - border[0];
      const i32 piece_rows = acquire_stage(call.b, cursor) ? border[p + 1] - first : 0;
      const u8* stage = stage_at(call.b, cursor);
      float* to = piece_sums + p * rows * kPitch;
      if constexpr (kPath == kFma) {
        fma_piece(stage, first, piece_rows, at_x, to);
      } else if constexpr (kPath != kMixed) {
        mma_piece(lines, stage, piece_rows, at_x, to);
      } else {
        is_fma() ? fma_piece(stage, first, piece_rows, at_x, to)
                 : mma_piece(lines, stage, piece_rows, at_x, to);
      }
      release_stage(call.b, cursor, true);
      cursor.advance(kConsumerWarps, stages);
    }
    call.b.cursor.advance(count, stages);
  }

  // Adds the batch from piece `batch` on into the tree; behind the last batch tile_sums is the sum of the tile.
  ARK_DEVICE void fold(i32 batch) const {
    const i32 each = dev::min(count, kNode), size = rows * kPitch, elements = rows * kPanel;
    ARK_ROLLED
    for (int e = call.b.thread; e < elements; e += kConsumers) {
      const float* from = piece_sums + e / kPanel * kPitch + e % kPanel;
      ARK_ROLLED
      for (i32 piece = 0; piece < count; piece += each) {
        float part[kNode];
        ARK_UNROLL
        for (int i = 0; i < kNode; ++i) part[i] = i < each ? from[(piece + i) * size] : 0.0f;
        float v = tree<kNode>(part, each);
        float* level = waiting + e;
        for (i32 bit = each; ((batch + piece) & bit) != 0; bit *= 2, level += elements) v = *level + v;
        *(batch + piece + each < tiles.pieces ? level : tile_sums + e) = v;
      }
    }
  }

  // x of a tile of one batch is there from the first weight on.
  ARK_DEVICE void run_batches(const StreamTile& tile, int weight) {
    const i32* border = borders() + tile.group * tiles.pieces;
    ARK_ROLLED
    for (i32 batch = 0; batch < tiles.pieces; batch += count, border += count) {
      if (weight == 0 || count < tiles.pieces) load_batch(border[0], border[count]);
      if (!ARK_BUG(missing_scratch_barrier)) consumers_sync();
      run_own_pieces(border);
      if (batch + count == tiles.pieces && is_whole(weight)) load_terms(tile.panel, 0);
      consumers_sync();
      fold(batch);
    }
  }

  // ---- pieces that all warps share

  // Piece number `number` of the tile: the warp's columns times its rows of x. Behind the last, `v` is the tile's sums.
  ARK_DEVICE void add_shared_piece(const XLines<X, kOctets>& lines, i32 octets, i32 piece_rows, i32 at_x,
                                   i32 number, float (&v)[kKept]) {
    const int column = call.b.warp % kColumnGroups * 16;
    typename Own::Sum sums[kOctets];
    const i32 all = acquire_stage(call.b, call.b.cursor) ? piece_rows : 0;
    const u8* stage = stage_at(call.b, call.b.cursor);
    ARK_ROLLED
    for (i32 row = 0; row < all; row += 16) {
      const typename Own::Part part = Own::load(call.b, s, stage, row, column);
      ARK_UNROLL
      for (int o = 0; o < kOctets; ++o) {
        if (o >= octets) break;
        u32 high[2], low[2];
        lines.load(o, at_x + row, high, low);
        Own::mma(part, high, low, sums[o]);
      }
    }
    release_stage(call.b, call.b.cursor);
    call.b.cursor.advance(call.b.p.stages);
    ARK_UNROLL
    for (int i = 0; i < kKept; ++i) v[i] = sums[i / 4].at(i % 4);
    float* level = waiting + call.b.thread;
    for (i32 bit = 1; (number & bit) != 0; bit *= 2, level += kKept * kConsumers) {
      ARK_UNROLL
      for (int i = 0; i < kKept; ++i) v[i] = level[i * kConsumers] + v[i];
    }
    if (number + 1 == tiles.pieces) return;
    ARK_UNROLL
    for (int i = 0; i < kKept; ++i) level[i * kConsumers] = v[i];
  }

  ARK_DEVICE void run_shared(const StreamTile& tile, int weight) {
    const i32* border = borders() + tile.group * tiles.pieces;
    const int part = call.b.warp / kColumnGroups;
    const i32 octets = dev::max(0, ((rows + 7) / 8 - part + kRowParts - 1) / kRowParts);
    void* const buffers = x.start;
    float v[kKept];
    XAhead<X, kXAhead, kPath == kParts> ahead;
    // x of the turn from piece `first` on, into the half of the room that the turn before does not read.
    const auto begin = [&](i32 first, int turn) {
      const i32 from = border[first], last = border[dev::min(first + count, tiles.pieces)];
      x = {static_cast<u8*>(buffers) + (turn & 1) * kXBytes, (last - from + 15) / 16 * 16 + 8, rows};
      ahead.begin(source(), x, call.b.thread, from, last);
    };
    begin(0, 0);
    ARK_ROLLED
    for (i32 first = 0, turn = 0; first < tiles.pieces; first += count, ++turn) {
      ahead.end(x, call.b.thread);
      if (!ARK_BUG(missing_scratch_barrier)) consumers_sync();
      const XLines<X, kOctets> lines(call.b, x, part * 8, kRowParts * 8);
      if (first + count < tiles.pieces) begin(first + count, turn + 1);
      ARK_ROLLED
      for (i32 p = first; p < dev::min(first + count, tiles.pieces); ++p)
        add_shared_piece(lines, octets, border[p + 1] - border[p], border[p] - border[first], p, v);
    }
    x.start = buffers;
    if (is_whole(weight)) load_terms(tile.panel, 0);
    // Elements of all threads; who hands them on reads them behind the barrier.
    ARK_UNROLL
    for (int i = 0; i < kKept; ++i) {
      const int row = (part + i / 4 * kRowParts) * 8 + call.b.lane % 4 * 2 + i % 2;
      if (row < rows)
        tile_sums[row * kPanel + call.b.warp % kColumnGroups * 16 + call.b.lane / 4 + i % 4 / 2 * 8] = v[i];
    }
    consumers_sync();
  }

  ARK_DEVICE void run_tile(const StreamTile& tile) {
    row0 = tile.block * kRowBlock;
    rows = dev::min(kRowBlock, tiles.rows - row0);
    x.rows = rows;
    ARK_ROLLED
    for (int weight = 0; weight < weights(); ++weight) {
      if (weight > 0) tiles.groups == 1 ? this->keep_first(tile.panel) : this->hand_in(tile, 0);
      if constexpr (kPath != kFma) {
        if (is_shared()) {
          run_shared(tile, weight);
          continue;
        }
      }
      run_batches(tile, weight);
    }
  }

  // ---- the case

  ARK_DEVICE static i64 grid(const Call& call) {
    const Stream& s = call.i.stream;
    return StreamTiles(s, call.size(s.m)).grid;
  }
  ARK_DEVICE static void prepare(const Call& call, Tiles) {
    const Stream& s = call.i.stream;
    if (call.i.sizes[2] != 0 && !(ARK_BUG(stale_places) && call.b.step > 0))
      look_up_places(call.b.p, 0, dev::min(kRowBlock, call.size(s.m)));
    ARK_ROLLED
    for (i32 p = call.b.thread; p <= s.pieces; p += kConsumers)
      reinterpret_cast<i32*>(call.b.scratch)[p] = dev::ld_nc(at<const i32>(s.borders) + p);
  }
  ARK_DEVICE static void run(const Call& call, Tiles own) {
    MatMul body(call);
    i32 handed = 0;  // groups of an output
    const i32 end = static_cast<i32>(own.last);
    for (i32 t = static_cast<i32>(own.first); t < end; ++t) {
      const StreamTile tile(body.tiles, t);
      body.run_tile(tile);
      if (body.tiles.groups > 1) {
        body.hand_in(tile, body.weights() - 1);
        if (body.s.arrivals == 0) continue;  // who reads the output adds them up
        ++handed;
        if (tile.group + 1 < body.tiles.groups && t + 1 < end) continue;  // the next is of the same output
        const bool is_last = body.join(tile, handed);
        handed = 0;
        if (!is_last) continue;
      }
      body.write(tile.panel);  // the one place: it is much code
      if (body.is_used_here()) use_tile(call.b.p, finished_tile(call, t, body.tiles.rows));
    }
  }
};

}  // namespace ark::cuda
