// What the sums of a matrix product's tiles come to: outputs with their epilogue, and sums that tiles share.
#pragma once

#include "engine/cuda/bodies/finished_tile.h"
#include "engine/cuda/bodies/math.h"
#include "engine/cuda/bodies/parts.h"
#include "engine/cuda/bodies/rank_part.h"

namespace ark::cuda {

// The balanced pairwise sum of the first `size`, a power of two.
template <int kCount>
ARK_DEVICE float tree(float (&v)[kCount], int size) {
  ARK_UNROLL
  for (int d = 1; d < kCount; d *= 2) {
    if (d >= size) break;
    ARK_UNROLL
    for (int i = 0; i + d < kCount; i += 2 * d) v[i] = v[i] + v[i + d];
  }
  return v[0];
}

// Of sums that tiles have handed in: those of row `row` of a panel and group, at Stream::partials.
ARK_DEVICE i64 place_of_partials(const Stream& s, i32 rows, i32 group, i32 panel, i64 row) {
  return ((static_cast<i64>(group) * s.panels + panel) * rows + row) * s.panel;
}

// In steps that tell most say themselves that they are there, and who has an output's last group waits for the
// others: where processors have a tile at most, or a norm takes up all sums (RankImage::plan_told). Else it would wait
// for what somebody has still before him, who waits himself.
ARK_DEVICE bool tells_sums(const Call& call) { return call.b.words->tells_sums != 0; }
// Thread 0, before the wait.
ARK_DEVICE void prepare_sums(const Call& call) {
  call.b.words->tells_sums =
      tells(call.b) && call.i.lamport_sums != 0 && call.size(call.i.stream.m) <= call.i.sums_rows;
}
// Whether a product's tiles hand in their sums: where they share outputs, and where the norm behind is told of them,
// which takes them up then whether they share any or not.
ARK_DEVICE bool hands_in(const Call& call, const StreamTiles& tiles) {
  return tiles.groups > 1 || (tells_sums(call) && call.i.stream.arrivals == 0);
}
// Where they lie: as Stream::partials, or, where they are told, as Instance::lamport_sums says.
struct Partials {
  bool told;
  float* first;
  i32 rows;
  i64 apart;  // floats from group to group
  ARK_DEVICE Partials(const Call& call, const Stream& s, i32 m)
      : told(tells_sums(call)),
        first(at<float>(told ? call.i.lamport_sums : s.partials)),
        rows(told ? call.i.sums_rows : m) {
    apart = place_of_partials(s, rows, 1, 0, 0);
  }
};

// The balanced pairwise sum of a node of `size` groups, of which `first` is in one: four elements at once. If they are
// told it waits until they are there, and leaves none.
ARK_DEVICE dev::f32x4 sum_of_groups(const Block& b, const Partials& from, float* first, i32 size) {
  const bool waits = from.told;
  const i64 apart = from.apart;
  dev::f32x4 v[kNode];
  const auto are_there = [&] {
    ARK_UNROLL
    for (int g = 0; g < kNode; ++g) {
      v[g] = {0, 0, 0, 0};
      if (g < size) v[g] = dev::ld_words(reinterpret_cast<const dev::f32x4*>(first + g * apart), waits);
    }
    bool all = true;
    ARK_UNROLL
    for (int g = 0; g < kNode; ++g) all = all && is_there(v[g]);
    return all || !waits || ARK_BUG(sums_not_awaited);
  };
  wait_without_calls(b, first, 0, are_there);
  if (waits && !ARK_BUG(sums_not_cleared)) {
    ARK_ROLLED
    for (int g = 0; g < size; ++g) dev::st_words(reinterpret_cast<dev::u32x4*>(first + g * apart), absent());
  }
  float sums[4][kNode];
  ARK_UNROLL
  for (int g = 0; g < kNode; ++g)
    sums[0][g] = v[g].x, sums[1][g] = v[g].y, sums[2][g] = v[g].z, sums[3][g] = v[g].w;
  return {tree<kNode>(sums[0], size), tree<kNode>(sums[1], size), tree<kNode>(sums[2], size),
          tree<kNode>(sums[3], size)};
}

// Biases of the first sixteen of tiles [first, last), of eight where they are of two panels, from memory into L2:
// before what a product waits for. Of the instance that many bytes behind dev::shared(). All consumer threads; one warp
// does it.
ARK_APART void prefetch_biases(const LoopParameters& p, u32 instance, i32 rows, i32 first, i32 last) {
  constexpr i32 kLine = 32;  // floats
  const Block b = open_block(p, 0, 0);
  const Instance& i = instance_at(instance);
  const Stream& s = i.stream;
  const StreamTiles tiles(s, rows);
  const i32 pair_bits = tiles.wide && s.second == 0 ? 1 : 0;  // of a tile
  const i32 bits_of_tile = log2_of(static_cast<u32>(s.panel)) + pair_bits;
  const i32 place = b.lane * kLine, tile = first + (place >> bits_of_tile);
  if (b.warp != 0 || tile >= last) return;
  // As StreamTile has it, without a call: what calls this has few registers left.
  const u32 panel = static_cast<u32>(tile >> tiles.group_bits) / static_cast<u32>(tiles.blocks);
  const i32 column = (static_cast<i32>(panel) << bits_of_tile) + (place & ((1 << bits_of_tile) - 1));
  if (column >= s.n) return;
  const u32 bits = static_cast<u32>(i.product.epilogue);
  if ((bits & kEpilogueBias) != 0) dev::prefetch(at<const float>(i.product.bias) + column);
  if (s.second != 0 && (bits & kEpilogueResidual) != 0)
    dev::prefetch(at<const float>(i.product.residual) + column);
}

// A tile of a product, whose output is stored as floats or as parts of X. kKeepsHere: a gated product's first sums wait
// in scratch; else where the output will be.
template <int kPanel, bool kKeepsHere, class X>
struct ProductOutput : Quiet {
  static constexpr int kAtOnce = kSumsAtOnce;

  const Call& call;
  const Stream& s;
  const StreamTiles tiles;
  const u32 bits;  // of the epilogue
  // In scratch: [rows][kPanel]; element e is touched by thread e / kSumsAtOnce % kConsumers only, but where said.
  float* tile_sums;
  // Of the tile.
  i32 row0 = 0, rows = 0;
  EpilogueTerms terms[kAtOnce];  // of the first elements

  ARK_DEVICE explicit ProductOutput(const Call& c)
      : call(c),
        s(c.i.stream),
        tiles(s, c.size(s.m)),
        bits(static_cast<u32>(c.i.product.epilogue)),
        tile_sums(reinterpret_cast<float*>(c.b.scratch + kBorderBytes)) {}

  ARK_DEVICE bool is_gated() const { return s.second != 0; }
  ARK_DEVICE int weights() const { return is_gated() ? 2 : 1; }
  // Element `e` of the first weight's sums, which the thread that writes that output keeps; null: there is no output.
  ARK_DEVICE float* first_sum(i32 panel, int e) const {
    if constexpr (kKeepsHere) return tile_sums + rows * kPanel + e;
    const Place to = output_at(panel, e);
    return to.is_there ? at<float>(call.i.product.out) + to.element : nullptr;
  }
  ARK_DEVICE void put_first_sum(i32 panel, int e, float v) const {
    if constexpr (kKeepsHere) {
      *first_sum(panel, e) = v;
    } else if (float* to = first_sum(panel, e)) {
      dev::st_global(to, v);
    }
  }
  ARK_DEVICE void keep_first(i32 panel) const {
    ARK_ROLLED
    for (int first = call.b.thread * kAtOnce; first < rows * kPanel; first += kConsumers * kAtOnce) {
      ARK_UNROLL
      for (int i = 0; i < kAtOnce; ++i) put_first_sum(panel, first + i, tile_sums[first + i]);
    }
  }

  // ---- outputs

  struct Place {
    bool is_there;
    i32 column;
    i64 element;
  };
  ARK_DEVICE Place output_at(i32 panel, int e) const {
    const i32 column = panel * kPanel + e % kPanel;
    return {e < rows * kPanel && column < s.n, column, static_cast<i64>(row0 + e / kPanel) * s.n + column};
  }

  // What the epilogue adds to kAtOnce elements from `first` on.
  ARK_DEVICE void load_terms(i32 panel, int first) {
    ARK_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      const Place to = output_at(panel, first + i);
      terms[i] = {};  // what was there is of no use: it takes no registers
      if (to.is_there)
        terms[i] =
            epilogue_terms(bits, at<const float>(call.i.product.bias), to.column,
                           at<const float>(call.i.product.residual), is_gated() ? to.column : to.element);
    }
  }

  // Outputs stay in scratch for who rotates or appends them.
  ARK_DEVICE bool is_used_here() const { return call.i.product.tile_use != 0; }

  // `has_terms`: the first ones; loaded early where nothing is waited for they would take registers.
  ARK_DEVICE void write(i32 panel, bool has_terms) {
    const int own = call.b.thread * kAtOnce;
    ARK_ROLLED
    for (int first = own; first < rows * kPanel; first += kConsumers * kAtOnce) {
      if (first > own || !has_terms) load_terms(panel, first);
      float v[kAtOnce] = {};
      if (!kKeepsHere && is_gated()) {
        ARK_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          const float* from = first_sum(panel, first + i);
          if (from) v[i] = dev::ld_global(from);
        }
      }
      const u32 second_bias = is_gated() ? bits & kEpilogueResidual : 0;
      ARK_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int e = first + i;
        if (!is_gated()) v[i] = tile_sums[e];
        if (kKeepsHere && is_gated()) v[i] = *first_sum(panel, e);
        v[i] = epilogue(bits - second_bias, v[i], terms[i]);
        if (is_gated()) v[i] = v[i] * (second_bias != 0 ? tile_sums[e] + terms[i].residual : tile_sums[e]);
        if (is_used_here()) tile_sums[e] = v[i];
      }
      if (!is_used_here()) store(panel, first, v);
    }
  }
  // Those that are there. Parts, and others of rows of whole fours, at once.
  ARK_DEVICE void store(i32 panel, int first, const float (&v)[kAtOnce]) const {
    if (stores_parts_of_sum(call.i)) {
      if (const Place to = output_at(panel, first); to.is_there)
        store_part(call.b.p, instance_offset(call), row0 + first / kPanel, to.column,
                   {v[0], v[1], v[2], v[3]});
      return;
    }
    const Rows out = rows_at(call.b, call.i.product.out, s.n, call.i.lamport_out);
    const Place to = output_at(panel, first);
    const i64 element = (row0 + first / kPanel) * out.pitch + to.column;
    if (sizeof(X) < sizeof(float) && call.i.product.stores_parts != 0) {
      if (to.is_there) store_four<X>(out.first, element, {v[0], v[1], v[2], v[3]}, out.told);
    } else if (s.n % kAtOnce == 0) {
      if (to.is_there) store_four<float>(out.first, element, {v[0], v[1], v[2], v[3]}, out.told);
    } else {
      ARK_UNROLL
      for (int i = 0; i < kAtOnce; ++i)
        if (output_at(panel, first + i).is_there) dev::st_global(out.first + element + i, v[i]);
    }
  }

  // ---- sums that tiles share

  // Of a group: [rows of the panel][kPanel]. Those of the second weight are groups behind all of the first's.
  ARK_DEVICE float* partials(i32 group, i32 panel) const {
    const Partials all(call, s, tiles.rows);
    return all.first + place_of_partials(s, all.rows, group, panel, row0);
  }

  ARK_DEVICE void hand_in(i32 group, i32 panel, int weight, const float* sums) const {
    float* to = partials(weight * tiles.groups + group, panel);
    ARK_ROLLED
    for (int e = call.b.thread * kAtOnce; e < rows * kPanel; e += kConsumers * kAtOnce)
      dev::st_words(reinterpret_cast<dev::f32x4*>(to + e),
                    words_of(*reinterpret_cast<const dev::f32x4*>(sums + e)), tells_sums(call));
  }

  // Behind hand_in() of `handed` groups. True: those were the last of the output, tile_sums is the sum of all. Who has
  // the last group waits for what is told.
  ARK_DEVICE bool join(const StreamTile& tile, i32 handed) {
    const bool told = tells_sums(call);
    if (told && tile.group + 1 < tiles.groups && !ARK_BUG(every_one_gathers)) return false;
    // In case these are the last: they come while the others are counted.
    load_terms(tile.panel, call.b.thread * kAtOnce);
    if (told) {
      consumers_sync();
    } else if (!count_in(tile, handed)) {
      return false;
    }
    gather(tile.panel);
    return true;
  }
  // True: those were the last.
  ARK_DEVICE bool count_in(const StreamTile& tile, i32 handed) const {
    consumers_sync();
    if (call.b.thread == 0) {
      // Releases the block's partials, acquires the others'.
      u32* word = at<u32>(s.arrivals) + tile.panel * tiles.blocks + tile.block;
      const u32 before = dev::atom_add<dev::Scope::gpu>(word, static_cast<u32>(handed));
      const bool is_last = ARK_BUG(early_join)
                               ? before == 0
                               : before + static_cast<u32>(handed) == static_cast<u32>(tiles.groups);
      if (is_last) dev::st_relaxed<dev::Scope::gpu>(word, 0u);  // the next phase's waits order it
      call.b.words->last_arrival = is_last;
    }
    consumers_sync();
    return call.b.words->last_arrival != 0;
  }

  // The sum of all groups of each weight: nodes of kNode of them, then these; of both weights at once, if there is room
  // for their nodes. The first node's room is the first weight's sums' in the end.
  ARK_DEVICE void gather(i32 panel) {
    const i32 size = dev::min(tiles.groups, kNode), each = divide(tiles.groups, size).quotient;
    const int at_once = each * weights() <= kMaxGroups / kNode ? weights() : 1;
    ARK_ROLLED
    for (int weight = 0; weight < weights(); weight += at_once) gather(panel, size, each, weight, at_once);
  }
  ARK_DEVICE void gather(i32 panel, i32 size, i32 each, int first_weight, int at_once) {
    const i32 elements = rows * kPanel, quarters = elements / 4;
    const Partials all(call, s, tiles.rows);
    float* from = partials(first_weight * tiles.groups, panel);
    float* sums = tile_sums + elements;
    ARK_ROLLED
    for (i32 i = call.b.thread; i < at_once * each * quarters; i += kConsumers) {
      const Division place = divide(i, quarters);
      float* first = from + place.quotient * size * all.apart + place.rest * 4;
      // The emulator misses what is returned in place.
      const dev::f32x4 sum = sum_of_groups(call.b, all, first, size);
      *reinterpret_cast<dev::f32x4*>(sums + i * 4) = sum;
    }
    dev::sync_warp();
    consumers_sync();
    ARK_ROLLED
    for (int e = call.b.thread; e < elements; e += kConsumers) {
      ARK_ROLLED
      for (int weight = first_weight; weight < first_weight + at_once; ++weight) {
        float v[kMaxGroups / kNode];
        ARK_UNROLL
        for (int n = 0; n < kMaxGroups / kNode; ++n)
          v[n] = n < each ? sums[((weight - first_weight) * each + n) * elements + e] : 0.0f;
        const float sum = tree<kMaxGroups / kNode>(v, each);
        const bool is_last = weight + 1 == weights();
        if (kKeepsHere && at_once < weights()) {  // the first sum waits where the last will be
          if (is_last) *first_sum(panel, e) = tile_sums[e];
          tile_sums[e] = sum;
        } else if (is_last) {
          tile_sums[e] = sum;
        } else {
          put_first_sum(panel, e, sum);
        }
      }
    }
    consumers_sync();  // the next tile's x takes the room of `sums`
  }
};

}  // namespace ark::cuda
