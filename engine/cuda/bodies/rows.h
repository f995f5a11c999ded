// Bodies that work on whole rows or tokens: embed, norm, operators of base/ir/rowwise.h, select_rows, parts of rows.
#pragma once

#include "base/ir/rowwise.h"
#include "engine/cuda/bodies/codes.h"
#include "engine/cuda/bodies/number.h"
#include "engine/cuda/bodies/product_output.h"
#include "engine/cuda/bodies/rank_sums.h"
#include "engine/cuda/step_begin.h"

namespace ark::cuda {

// Where a row of a table lies: row-major, or as a column of panels. Codes: always the latter.
template <class W>
struct TableRow {
  const W* from;  // of the row, or of its panel
  i32 column, panel;
  ARK_DEVICE TableRow(const u8* table, i64 row, i32 width, i32 panel, i32)
      : from(reinterpret_cast<const W*>(table) + (panel == 0 ? row * width : row / panel * width * panel)),
        column(panel == 0 ? 0 : static_cast<i32>(row % panel)),
        panel(panel) {}
  // As it is stored: what waits for it comes later.
  ARK_DEVICE W at(i32 k) const {
    const i32 turn = has_turned_rows(panel, sizeof(W)) ? k % kTurn * kTurn : 0;
    return dev::ld_nc(from + (panel == 0 ? k : static_cast<i64>(k) * panel + (column ^ turn)));
  }
};
template <int kBits, BlockTerms kTerms>
struct TableRow<Codes<kBits, kTerms>> {
  using Q = Codes<kBits, kTerms>;
  const u8* from;  // of the panel
  i32 column, panel, block, block_bytes;
  bool is_turned;
  ARK_DEVICE TableRow(const u8* table, i64 row, i32 width, i32 panel, i32 block)
      : column(static_cast<i32>(row % panel)),
        panel(panel),
        block(block),
        block_bytes(panel * (terms_bytes(kTerms) + block / 2 * Q::kPairBytes)),
        is_turned(has_turned_codes(block, width)) {
    from = table + row / panel * ((width + block - 1) / block) * block_bytes;
  }
  ARK_DEVICE float at(i32 k) const {
    return CodeBlock<Q>{from + static_cast<i64>(k / block) * block_bytes, panel, is_turned}.number(k % block,
                                                                                                   column);
  }
};

// A token's row of the table; zeros where another rank has it.
template <class W, class Index>
struct Embed : Quiet {
  ARK_DEVICE static void run(const Call& call, Tiles tiles) {
    const EmbedArguments& a = call.i.embed;
    const i32 width = call.size(a.width), rows = call.size(a.rows), panel = call.size(a.panel);
    for (i64 t = tiles.first; t < tiles.last; ++t) {
      const i64 row = static_cast<i64>(dev::ld_global(at<const Index>(a.ids) + t)) - call.size(a.first);
      const bool is_here = row >= 0 && row < rows;
      const TableRow<W> from(at<const u8>(a.table), is_here ? row : 0, width, panel, call.size(a.block_rows));
      float* const out = at<float>(a.out) + t * width;
      const i32 there = is_here ? width : 0;
      in_turns<4>(
          call.b, 0, there, [&](i32 k) { return from.at(k); },
          [&](i32 k, decltype(from.at(0)) v) { dev::st_global(out + k, dev::to_f32(v)); });
      ARK_ROLLED
      for (i32 k = there + call.b.thread; k < width; k += kConsumers) dev::st_global(out + k, 0.0f);
    }
  }
};

// The block takes a row. X: what it stores (bodies/parts.h).
//
// Where a product whose tiles share outputs leaves them to the norm behind it (Stream::partials), its sums are taken up
// here: x is written too. So is what ranks add up, in steps that tell (Instance::by_norm).
template <bool kRms, class X, int kRanks>
struct Norm : Quiet {
  static constexpr int kHeld = kRms ? 8 : 4;  // elements that a thread holds, with what they are scaled by
  // Floats at the start of the scratch; behind: a row taken up.
  static constexpr int kRoom = 2 * kConsumerWarps;

  ARK_DEVICE static float block_sum(const Call& call, float v, float* room) {
    v = dev::warp_sum(v);
    if (call.b.lane == 0) room[call.b.warp] = v;
    consumers_sync();
    float all[kConsumerWarps];
    ARK_UNROLL
    for (int w = 0; w < kConsumerWarps; ++w) all[w] = room[w];
    float sum = 0;
    ARK_UNROLL
    for (int w = 0; w < kConsumerWarps; ++w) sum += all[w];
    return sum;
  }

  // Of a part of a row: each thread's elements are kConsumers apart.
  struct Held {
    float x[kHeld], scale[kHeld],
        bias[kRms ? 1 : kHeld];  // RMS norms seldom have one: it is read when it is added
    ARK_DEVICE void load_scales(const Call& call, i32 first, i32 n) {
      const float* scales = at<const float>(call.i.norm.scale);
      const float* biases = at<const float>(call.i.norm.bias);
      ARK_UNROLL
      for (int i = 0; i < kHeld; ++i) {
        const i32 k = first + call.b.thread + i * kConsumers;
        scale[i] = k < n && scales != nullptr ? dev::ld_nc(scales + k) : 1.0f;
        if constexpr (!kRms) bias[i] = k < n && biases != nullptr ? dev::ld_nc(biases + k) : 0.0f;
      }
    }
    ARK_DEVICE void load_x(const Call& call, const float* row, i32 first, i32 n) {
      ARK_UNROLL
      for (int i = 0; i < kHeld; ++i) {
        const i32 k = first + call.b.thread + i * kConsumers;
        x[i] = k < n ? row[k] : 0.0f;
      }
    }
  };

  static constexpr i32 kPart = kHeld * kConsumers;

  // Calls f(i, k) for the thread's elements k, each the i-th of its part. Rows of one part are held; of several the
  // parts are read again each time.
  // kStores: f, called by whole warps, stores parts of x, maybe over the row, where those of others' elements lie.
  template <bool kStores, class F>
  ARK_DEVICE static void for_parts(const Call& call, const float* row, i32 n, Held& held, F f) {
    ARK_ROLLED
    for (i32 first = 0; first < n; first += kPart) {
      if (n > kPart) {
        held.load_x(call, row, first, n), held.load_scales(call, first, n);
        if (kStores && sizeof(X) < sizeof(float)) consumers_sync();
      }
      ARK_UNROLL
      for (int i = 0; i < kHeld; ++i) {
        const i32 k = first + call.b.thread + i * kConsumers;
        if ((kStores ? k - call.b.lane : k) < n) f(i, k);
      }
    }
  }

  // Row `row` of the product before: the sums of its groups, with its epilogue, to x and to scratch.
  ARK_DEVICE static void take_up(const Call& call, i32 groups, i64 row, i32 n, float* x, float* here) {
    const Stream& s = call.i.stream;
    const u32 bits = static_cast<u32>(call.i.norm.taken_epilogue);
    const Partials from(call, s, call.size(s.m));
    const i32 panel_bits = log2_of(static_cast<u32>(s.panel));
    ARK_ROLLED
    for (i32 k = call.b.thread * 4; k < n; k += kConsumers * 4) {
      dev::f32x4 bias{}, residual{};
      if ((bits & kEpilogueBias) != 0)
        bias = dev::ld_nc(reinterpret_cast<const dev::f32x4*>(at<const float>(call.i.norm.taken_bias) + k));
      if ((bits & kEpilogueResidual) != 0)
        residual = dev::ld_global(
            reinterpret_cast<const dev::f32x4*>(at<const float>(call.i.norm.taken_residual) + row * n + k));
      float* first =
          from.first + place_of_partials(s, from.rows, 0, k >> panel_bits, row) + (k & (s.panel - 1));
      const dev::f32x4 sum =
          sum_of_groups(call.b, from, first, ARK_BUG(group_left_out) ? groups / 2 : groups);
      const dev::f32x4 v = {
          epilogue(bits, sum.x, {bias.x, residual.x}), epilogue(bits, sum.y, {bias.y, residual.y}),
          epilogue(bits, sum.z, {bias.z, residual.z}), epilogue(bits, sum.w, {bias.w, residual.w})};
      dev::st_global(reinterpret_cast<dev::f32x4*>(x + k), v);
      *reinterpret_cast<dev::f32x4*>(here + k) = v;
    }
    if (ARK_BUG(taken_up_without_barrier)) return;
    dev::sync_warp();
    consumers_sync();
  }
  // The same row of the sum over ranks before.
  ARK_DEVICE static void add_up(const Call& call, i64 row, i32 n, float* here) {
    const i32 first = static_cast<i32>(row) * n;
    float* const x = at<float>(call.i.norm.x);
    add_parts<kRanks>(call.b, call.i.parts_at, n, epilogue_of(call.i.norm), first, first + n,
                      [&](i32 e, const dev::f32x4& sums) {
                        dev::st_global(reinterpret_cast<dev::f32x4*>(x + e), sums);
                        *reinterpret_cast<dev::f32x4*>(here + (e - first)) = sums;
                      });
    if (!ARK_BUG(added_up_without_barrier)) consumers_sync();
  }

  // The model's numbers come from memory, unless they are asked for before the wait.
  ARK_DEVICE static void prepare(const Call& call, Tiles tiles) {
    const NormArguments& a = call.i.norm;
    const i32 n = call.size(a.width);
    if (tiles.first >= tiles.last) return;
    if (call.b.thread == 0) prepare_sums(call);
    const float* const numbers[] = {at<const float>(a.scale), at<const float>(a.bias),
                                    at<const float>(a.taken_bias)};
    ARK_ROLLED
    for (i32 k = call.b.thread * 32; k < n; k += kConsumers * 32) {  // lines of 128 bytes
      ARK_UNROLL
      for (int i = 0; i < 3; ++i)
        if (numbers[i] != nullptr) dev::prefetch(numbers[i] + k);
    }
  }

  ARK_DEVICE static void run(const Call& call, Tiles tiles) {
    const NormArguments& a = call.i.norm;
    const i32 n = call.size(a.width);
    const Stream& s = call.i.stream;
    const i32 groups = s.partials == 0 ? 1 : StreamTiles(s, call.size(s.m)).groups;
    float* room = reinterpret_cast<float*>(call.b.scratch);
    for (i64 row = tiles.first; row < tiles.last; ++row) {
      float* x = at<float>(a.x) + row * n;
      const Rows rows = rows_at(call.b, a.out, n, call.i.lamport_out);
      Held held;
      if (n <= kPart) held.load_scales(call, 0, n);
      const float* here = x;  // or in scratch: loads that know both
      if (groups > 1 || tells_sums(call)) take_up(call, groups, row, n, x, room + kRoom), here = room + kRoom;
      if constexpr (kRanks > 1) {
        if (is_by_norm(call.b, call.i)) add_up(call, row, n, room + kRoom), here = room + kRoom;
      }
      if (n <= kPart) held.load_x(call, here, 0, n);
      float sum = 0;
      for_parts<false>(call, here, n, held, [&](int i, i32) {
        sum = kRms ? dev::fma(held.x[i], held.x[i], sum) : sum + held.x[i];
      });
      sum = block_sum(call, sum, room) / static_cast<float>(n);
      float mean = 0, variance = sum;
      if constexpr (!kRms) {
        mean = sum;
        float squares = 0;
        for_parts<false>(call, here, n, held, [&](int i, i32) {
          squares = dev::fma(held.x[i] - mean, held.x[i] - mean, squares);
        });
        // Other words than the mean's: a slow warp may still read those.
        variance = block_sum(call, squares, room + kConsumerWarps) / static_cast<float>(n);
      }
      const float inverse = 1.0f / dev::sqrt(variance + a.epsilon);
      const bool has_scale = a.scale != 0, has_bias = a.bias != 0;
      for_parts<true>(call, here, n, held, [&](int i, i32 k) {
        float y = (held.x[i] - mean) * inverse;
        if (has_scale) y = y * held.scale[i];
        if (has_bias && k < n)
          y = y + (kRms ? dev::ld_nc(at<const float>(a.bias) + k) : held.bias[kRms ? 0 : i]);
        const i32 behind = i * kConsumers;  // of the thread's first: the same place among parts
        store_x<X>(rows.row(row) + behind, k - behind, n - behind, y, rows.told);
      });
      if (row + 1 < tiles.last) consumers_sync();
    }
  }
};

// A warp takes a row: those of routers are short and many.
// Operator: of base/ir/rowwise.h.
template <class Operator>
struct Rowwise : Quiet {
  struct WarpRow {
    using F = Number;
    using Value = float;
    const float* x;
    float* out;
    i32 n, lane;

    template <class Fn>
    ARK_DEVICE float sum(Fn f) const {
      float all = 0;
      ARK_ROLLED
      for (i32 k = lane; k < n; k += 32) all += f(Number(dev::ld_global(x + k))).v;
      return dev::warp_sum(all);
    }
    template <class Fn>
    ARK_DEVICE float max(Fn f) const {
      float most = -infinity();
      ARK_ROLLED
      for (i32 k = lane; k < n; k += 32) most = dev::max(most, f(Number(dev::ld_global(x + k))).v);
      return dev::warp_max(most);
    }
    template <class Fn>
    ARK_DEVICE void set(Fn f) {
      ARK_ROLLED
      for (i32 k = lane; k < n; k += 32) dev::st_global(out + k, f(Number(dev::ld_global(x + k))).v);
    }
  };
  ARK_DEVICE static void run(const Call& call, Tiles tiles) {
    const RowwiseArguments& a = call.i.rowwise;
    const i32 n = call.size(a.width);
    for (i64 row = tiles.first + call.b.warp; row < tiles.last; row += kConsumerWarps) {
      WarpRow one{at<const float>(a.x) + row * n, at<float>(a.out) + row * n, n, call.b.lane};
      Operator::of(one, a.parameter);
    }
  }
};

// The rows that logits are asked of.
struct SelectRows : Quiet {
  ARK_DEVICE static void run(const Call& call, Tiles tiles) {
    const SelectRowsArguments& a = call.i.select_rows;
    const i32 n = call.size(a.width);
    const StepRow* rows = record_array<StepRow>(call.b, StepArray::kRows);
    for (i64 r = tiles.first; r < tiles.last; ++r) {
      const u32* from = at<const u32>(a.x) + static_cast<i64>(dev::ld_global(&rows[r].token)) * n;
      u32* const out = at<u32>(a.out) + r * n;
      in_turns<4>(
          call.b, 0, n, [&](i32 k) { return dev::ld_global(from + k); },
          [&](i32 k, u32 v) { dev::st_global(out + k, v); });
    }
  }
};

// Parts of rows.
template <int kOutputs>
struct Copy : Quiet {
  ARK_DEVICE static i64 grid(const Call& call) {
    i64 most = 0;
    for (int o = 0; o < kOutputs; ++o)
      most = dev::max(most, static_cast<i64>(call.size(call.i.copy.taken[o].width)));
    return (call.product(call.i.copy.rows) * most + kElementTile - 1) / kElementTile;
  }
  ARK_DEVICE static void run(const Call& call, Tiles tiles) {
    const CopyArguments& a = call.i.copy;
    const i64 rows = call.product(a.rows), width = call.size(a.width);
    for (int o = 0; o < kOutputs; ++o) {
      const i64 first = call.size(a.taken[o].first), n = call.size(a.taken[o].width);
      const i64 end = dev::min(tiles.last * kElementTile, rows * n);
      for (i64 i = tiles.first * kElementTile + call.b.thread; i < end; i += kConsumers)
        dev::st_global(at<u32>(a.outputs[o]) + i,
                       dev::ld_global(at<const u32>(a.x) + i / n * width + first + i % n));
    }
  }
};

}  // namespace ark::cuda
