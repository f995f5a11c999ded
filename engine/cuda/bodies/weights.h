// What a matrix product asks of its weights in the ring: some rows of them times rows of x, by multiply-adds
// or on tensor cores.
#pragma once

#include "engine/cuda/bodies/codes.h"
#include "engine/cuda/bodies/x_rows.h"

namespace ark::cuda {

// 16 bytes of a weight as f32.
ARK_DEVICE void widen(const float* p, float (&to)[4]) {
  const dev::f32x4 v = *reinterpret_cast<const dev::f32x4*>(p);
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}
template <class W>
ARK_DEVICE void widen(const W* p, float (&to)[8]) {
  const dev::u32x4 v = *reinterpret_cast<const dev::u32x4*>(p);
  const u32 pairs[4] = {v.x, v.y, v.z, v.w};
  ARK_UNROLL
  for (int i = 0; i < 4; ++i) {
    const dev::f32x2 two = dev::unpack<W>(pairs[i]);
    to[2 * i] = two.x, to[2 * i + 1] = two.y;
  }
}

// On tensor cores: sixteen columns' sums for eight rows of x, of its parts and of their rests.
struct Sum {
  float of[4] = {};
};

// Numbers: a stage is [rows][kPanel] of W.
template <class W, int kPanel>
struct Weights {
  using X = W;  // what x is split into for tensor cores
  static constexpr int kVector = 16 / sizeof(W), kLanes = kPanel / kVector, kWarpRows = 32 / kLanes;

  static constexpr bool kTurned = has_turned_rows(kPanel, sizeof(W)), kTakesWideTiles = kTurned;
  static constexpr bool kAreCodes = false;

  // A warp's rows of a stage times four rows of x from the stage's first column on: a lane kVector columns of every
  // kWarpRows-th row. Row 0 is row `k` of the weight.
  ARK_DEVICE static void fma(const Block& b, const Stream&, const u8* stage, i32 k, i32 rows,
                             const float* const (&x)[4], float (&sums)[4][kVector]) {
    const W* w = reinterpret_cast<const W*>(stage);
    const int piece = b.lane % kLanes;
    ARK_ROLLED
    for (i32 i = b.lane / kLanes; i < rows; i += kWarpRows) {
      float values[kVector];
      widen(w + i * kPanel + (kTurned ? piece ^ (k + i) % kTurn : piece) * kVector, values);
      ARK_UNROLL
      for (int r = 0; r < 4; ++r) {
        const float v = x[r][i];
        ARK_UNROLL
        for (int c = 0; c < kVector; ++c) sums[r][c] = dev::fma(v, values[c], sums[r][c]);
      }
    }
  }

  static constexpr int kOctets = 2;  // of rows of x that tensor cores take at once

  // For tensor cores: 16 rows of a stage (both begin at multiples of 16), from its first ones on; of them 16 columns.
  struct Part {
    u32 a[4];
  };
  class Lines {
   public:
    ARK_DEVICE Lines(const Block& b, const Stream&, const u8* stage) {
      const int matrix = b.lane / 8, line = b.lane % 8, piece = matrix % 2;
      at_ = static_cast<u32>(stage - dev::shared()) +
            ((matrix / 2 * 8 + line) * kPanel + (kTurned ? piece ^ line : piece) * 8) * sizeof(W);
    }
    ARK_DEVICE void advance() { at_ += 16 * kPanel * sizeof(W); }
    ARK_DEVICE Part load(int column) const {
      Part part;
      dev::ldmatrix_x4_trans(part.a, dev::shared() + (at_ ^ column * sizeof(W)));
      return part;
    }

   private:
    u32 at_;  // the lane's, of the first columns, in shared memory: a column's bits are not in it, if turned or not
  };
  // A piece's rows on tensor cores, all columns times kCount times eight rows of x.
  template <int kCount, int kGroups>
  ARK_DEVICE static void multiply(const Block& b, const Stream& s, const u8* stage, i32 rows, XLines<X> lines,
                                  XLines<X> others, Sum (&sums)[kOctets][kGroups]) {
    constexpr int kOther = kCount - 1;
    Lines weights{b, s, stage};
    ARK_ROLLED
    for (i32 row = 0; row < rows; row += 16) {
      u32 high[kCount][2], low[kCount][2];
      lines.load(high[0], low[0]);
      if (kCount > 1) others.load(high[kOther], low[kOther]);
      ARK_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        const Part part = weights.load(g * 16);
        mma(part, high[0], low[0], sums[0][g]);
        if (kCount > 1) mma(part, high[kOther], low[kOther], sums[kOther][g]);
      }
      lines.advance(), others.advance(), weights.advance();
    }
  }

 private:
  ARK_DEVICE static void mma(const Part& part, const u32 (&high)[2], const u32 (&low)[2], Sum& sum) {
    dev::mma_m16n8k16<W>(sum.of, part.a, high);
    dev::mma_m16n8k16<W>(sum.of, part.a, low);
  }
};

// Codes: a stage is whole blocks, turned where tensor cores take them (image.h). Their products are of codes minus
// zeros, or of codes, exact in bf16. fma() takes those that are not.
template <int kBits, BlockTerms kBlockTerms, int kPanel>
struct Weights<Codes<kBits, kBlockTerms>, kPanel> {
  using Q = Codes<kBits, kBlockTerms>;
  using X = dev::bf16;
  static constexpr BlockTerms kTerms = Q::kTerms;
  static constexpr int kVector = 8, kLanes = kPanel / kVector, kWarpPairs = 32 / kLanes;
  static constexpr bool kTakesWideTiles = kPanel == 64, kAreCodes = true;

  struct Place {
    CodeBlock<Q> block;
    i32 row;  // in it
  };
  ARK_DEVICE static Place place_of(const Stream& s, const u8* stage, i32 row) {
    const i32 unit = static_cast<i32>(dev::multiply_high(static_cast<u32>(row), s.unit_reciprocal));
    return {{stage + unit * s.unit_bytes, kPanel, has_turned_codes(s.unit_rows, s.k)},
            row - unit * s.unit_rows};
  }

  ARK_DEVICE static void fma(const Block& b, const Stream& s, const u8* stage, i32, i32 rows,
                             const float* const (&x)[4], float (&sums)[4][kVector]) {
    ARK_ROLLED
    for (i32 i = b.lane / kLanes * 2; i < rows; i += kWarpPairs * 2) {
      float even[8], odd[8];
      const Place place = place_of(s, stage, i);
      place.block.numbers(place.row / 2, b.lane % kLanes * kVector, even, odd);
      const bool has_odd = i + 1 < rows;  // behind K there is no x
      ARK_UNROLL
      for (int r = 0; r < 4; ++r) {
        const float v = x[r][i], w = has_odd ? x[r][i + 1] : 0.0f;
        ARK_UNROLL
        for (int c = 0; c < kVector; ++c) sums[r][c] = dev::fma(w, odd[c], dev::fma(v, even[c], sums[r][c]));
      }
    }
  }

  static constexpr int kOctets = 2;

  // Rows [begin, end) of a stage whose products are summed up before a block's terms multiply them: its scale the sums
  // of codes times x, its offset those of x. Of one block, and, since wide tiles have no others at once, of one slice.
  struct Run {
    CodeBlock<Q> block;
    int step;  // of the block's sixteens of rows, the first
    i32 begin, end;
  };
  // use(run) of each of rows [first, last), which begin with a slice.
  template <class Use>
  ARK_DEVICE static void with_runs(const Stream& s, const u8* stage, i32 first, i32 last, const Use& use) {
    ARK_ROLLED
    for (i32 row = first; row < last;) {
      const Place place = place_of(s, stage, row);
      const i32 of_block = s.unit_rows - place.row, of_slice = kLongestSlice - row % kLongestSlice,
                end = dev::min(row + dev::min(of_block, of_slice), last);
      use(Run{place.block, place.row / 16, row, end});
      row = end;
    }
  }

  // Adds a run's sums to those of kCount eights of rows of x; kAtOnce groups of columns at a time, as there are
  // registers. load(row, x): of sixteen rows x's kParts parts.
  template <int kParts, int kCount, int kAtOnce, int kSums, int kGroups, class Load>
  ARK_DEVICE static void multiply_run(int lane, const Run& run, const Load& load,
                                      Sum (&sums)[kSums][kGroups]) {
    static_assert(kCount <= kSums && kGroups % kAtOnce == 0);
    constexpr bool kHasOffsets = !has_zeros(kTerms), kSumsXFirst = kAtOnce < kGroups;
    float sums_of_x[kCount][4] = {};
    ARK_ROLLED
    for (i32 k = run.begin; kHasOffsets && kSumsXFirst && k < run.end; k += 16) {
      u32 x[kParts][kCount][2];
      load(k, x);
      add_each<kParts, kCount>([&](int part, int o) { add_x(x[part][o], sums_of_x[o]); });
    }
    ARK_UNROLL
    for (int group = 0; group < kGroups; group += kAtOnce) {
      float products[kCount][kAtOnce][4] = {};
      int step = run.step;
      ARK_ROLLED
      for (i32 k = run.begin; k < run.end; k += 16, ++step) {
        u32 x[kParts][kCount][2], weights[kAtOnce][4];
        load(k, x);
        ARK_UNROLL
        for (int g = 0; g < kAtOnce; ++g) run.block.load_registers(step, group + g, lane, weights[g]);
        add_each<kParts, kCount>([&](int part, int o) {
          if (kHasOffsets && !kSumsXFirst) add_x(x[part][o], sums_of_x[o]);
          ARK_UNROLL
          for (int g = 0; g < kAtOnce; ++g) dev::mma_m16n8k16<X>(products[o][g], weights[g], x[part][o]);
        });
      }
      ARK_UNROLL
      for (int g = 0; g < kAtOnce; ++g) {
        const dev::f32x2 scales = run.block.load_scales(group + g, lane),
                         offsets = run.block.load_offsets(group + g, lane);
        ARK_UNROLL
        for (int o = 0; o < kCount; ++o)
          add(scales, products[o][g], offsets, sums_of_x[o], sums[o][group + g]);
      }
    }
  }

  // A piece's rows on tensor cores, all columns times kCount times eight rows of x.
  template <int kCount, int kGroups>
  ARK_DEVICE static void multiply(int lane, const Stream& s, const u8* stage, i32 rows,
                                  const XLines<X>& lines, const XLines<X>& others,
                                  Sum (&sums)[kCount][kGroups]) {
    constexpr int kMost = dev::kMovesRegisters ? 4 : 2, kAtOnce = kGroups < kMost ? 1 : kMost / kCount;
    const auto load = [&](i32 row, u32(&x)[2][kCount][2]) {
      XLines<X> here = lines;
      here.advance(row);
      here.load(x[0][0], x[1][0]);
      if (kCount == 1) return;
      here = others;
      here.advance(row);
      here.load(x[0][kCount - 1], x[1][kCount - 1]);
    };
    with_runs(s, stage, 0, rows,
              [&](const Run& run) { multiply_run<2, kCount, kAtOnce>(lane, run, load, sums); });
  }

 private:
  // Part by part: of products in a row none adds to the sums of the one before.
  template <int kParts, int kCount, class Add>
  ARK_DEVICE static void add_each(const Add& add) {
    ARK_UNROLL
    for (int part = 0; part < kParts; ++part) {
      ARK_UNROLL
      for (int o = 0; o < kCount; ++o) add(part, o);
    }
  }
  ARK_DEVICE static void add_x(const u32 (&x)[2], float (&sums)[4]) {
    const u32 ones[4] = {kOnes, kOnes, kOnes, kOnes};
    dev::mma_m16n8k16<X>(sums, ones, x);
  }
  // Of a run, whose block has these terms of the lane's columns.
  ARK_DEVICE static void add(const dev::f32x2& scales, const float (&products)[4], const dev::f32x2& offsets,
                             const float (&sums_of_x)[4], Sum& sum) {
    ARK_UNROLL
    for (int i = 0; i < 4; ++i) {
      float& own = sum.of[i];
      own = dev::fma(i < 2 ? scales.x : scales.y, products[i], own);
      if (!has_zeros(kTerms)) own = dev::fma(i < 2 ? offsets.x : offsets.y, sums_of_x[i % 2], own);
    }
  }
  static constexpr u32 kOnes = 0x3f803f80;  // twice 1 in bf16
};

// A warp's sums of kCount eights of rows, from row `first` of `rows` on, into scratch, where they may take the place of
// these rows' x.
template <int kCount, int kGroups>
ARK_DEVICE void put_sums(const Sum (&sums)[kCount][kGroups], int lane, float* to, i32 pitch, i32 first,
                         i32 rows) {
  dev::sync_warp();
  ARK_UNROLL
  for (int r = 0; r < 2 * kCount; ++r) {
    const i32 row = first + r / 2 * 8 + lane % 4 * 2 + r % 2;
    if (row >= rows) continue;
    float* line = to + row * pitch + lane / 4;
    ARK_UNROLL
    for (int g = 0; g < kGroups; ++g)
      line[g * 16] = sums[r / 2][g].of[r % 2], line[g * 16 + 8] = sums[r / 2][g].of[r % 2 + 2];
  }
}

// A piece of codes that a warp multiplies, by places behind dev::shared().
template <class X>
struct CodesPiece {
  u32 instance, stage, sums;
  i32 piece_rows, pitch, first, rows;  // as put_sums() has them
  XLines<X> lines, others;
};
// Apart: products have no register left.
template <class W, int kPanel, int kCount>
ARK_APART void multiply_codes(CodesPiece<typename Weights<W, kPanel>::X> p) {
  const int lane = static_cast<int>(dev::lane_id());
  Sum sums[kCount][kPanel / 16];
  Weights<W, kPanel>::template multiply<kCount>(lane, instance_at(p.instance).stream, dev::shared() + p.stage,
                                                p.piece_rows, p.lines, p.others, sums);
  put_sums(sums, lane, reinterpret_cast<float*>(dev::shared() + p.sums), p.pitch, p.first, p.rows);
}

}  // namespace ark::cuda
