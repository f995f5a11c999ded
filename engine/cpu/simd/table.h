// The vector kernels as function pointers, one table per instruction set. All tables give the same bits.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/dtype.h"
#include "base/ir/ops.h"
#include "engine/program/device_contract.h"
#include "engine/program/program.h"
#include "engine/run/isa.h"

namespace ark::simd {

// After the products: bias, activation, residual, in this order (EpilogueBits), factor.
struct Epilogue {
  uint32_t bits = 0;
  const float* bias = nullptr;      // [n]
  const float* residual = nullptr;  // same layout as the output
  const float* factor = nullptr;    // the same, may be the output; null: 1
};

// out[m, n] = epilogue(x[m, k] w[k, n]) for the columns of some panels.
struct MatMul {
  const float* x = nullptr;  // [m, k]
  int64_t m = 0, k = 0, n = 0;
  const std::byte* w = nullptr;  // panels of `stored` (engine/program/weight_codec.h)
  DType stored = DType::kF32;
  int32_t panel = 0;  // multiple of 16
  int32_t block = 0;  // rows of a block of codes, slabs begin at even rows; 0: numbers
  BlockTerms terms = BlockTerms::kZeros;
  const int32_t* slabs = nullptr;  // slab_count + 1 borders
  int32_t slab_count = 1;          // power of two <= 64
  Epilogue epilogue;
  float* out = nullptr;  // [m, n]
  // What to compute: rows [first_row, last_row) of the columns of panels [first_panel, last_panel).
  int64_t first_row = 0, last_row = 0, first_panel = 0, last_panel = 0;
  float* packed = nullptr;  // room of packed_room(last_row - first_row, k) floats
  // An earlier product of the same rows has filled it: only w, epilogue and out differ.
  bool is_packed = false;
};

// Of x as any precision but tiles packs it: blocks of 8 at least with their scales, the last of them and slabs padded.
constexpr int64_t packed_row(int64_t k) { return k + k / 4 + 160; }
// Tiles have sixteen rows, and pad each of 64 slabs to 32 numbers of bf16.
constexpr int64_t packed_room(int64_t rows, int64_t k) {
  return (rows + 15) / 16 * 16 * std::max(packed_row(k), (k + 1) / 2 + 64 * 16);
}

// Some consecutive pages of keys and values of one KV head against some query rows, online softmax.
struct AttentionRows {
  static constexpr int kPages = 4, kTogether = 4;  // at most; rows that are scored together, at most
  int64_t key_dim = 0, value_dim = 0, page_size = 0;
  DType stored = DType::kF32;  // of keys and values (engine/program/kv_codec.h)
  float scale = 1, softcap = 0;
  int64_t window = 0;  // keys that a row sees at most, its own one among them; 0: all up to this
  // Per row: query [key_dim], the number of its own key, running maximum and sum, accumulator [value_dim].
  int64_t rows = 0;
  const float* const* queries = nullptr;
  const int32_t* at = nullptr;
  const float* slopes = nullptr;  // null: none; else ALiBi adds slope[r] * (key - at[r])
  float* maxima = nullptr;
  float* sums = nullptr;
  float* accumulators = nullptr;  // [rows, value_dim]
  // The head's part of the sequence's page p begins `key_stride` or `value_stride` bytes times table[p] from the first
  // byte: codes of `stored`, [key_dim, page_size] or [page_size, value_dim], then scales [page_size], if it has such.
  const int32_t* table = nullptr;
  const std::byte* keys = nullptr;
  const std::byte* values = nullptr;
  int64_t key_stride = 0, value_stride = 0;
  int64_t first_page = 0, last_page = 0;  // what to look at: [first, last)
  int64_t span_first = 0;                 // of tiles: the key from which their chunks are counted
  float* room = nullptr;                  // of score_room() or tile_room() floats

  static constexpr int64_t page_room(int64_t page_size) { return (page_size + 15) / 16 * 16; }
  static constexpr int64_t score_room(int64_t page_size) { return kTogether * kPages * page_room(page_size); }
  // Of spans of so many keys: scores and weights of sixteen rows, keys, values and queries as any instruction set has
  // them, dimensions and keys padded to 32.
  static constexpr int64_t tile_room(int64_t keys, int64_t key_dim, int64_t value_dim) {
    const auto padded = [](int64_t n) { return (n + 31) / 32 * 32; };
    return (padded(keys) + 16) * (16 + 8 + padded(key_dim) + padded(value_dim)) + 32 * padded(key_dim);
  }
};

struct Norm {
  const float* x = nullptr;
  const float* scale = nullptr;  // null: 1
  const float* bias = nullptr;   // null: 0
  float* out = nullptr;
  int64_t n = 0;
  float epsilon = 0;
  bool rms = false;
};

// Which tokens' (logit - largest) * scale + noise (engine/cpu/sampler.cc) may come to `best`: all that do, and few
// that do not, ascending, with their noise's bits.
struct NoisyTokens {
  const float* logits = nullptr;
  int64_t first = 0, last = 0;  // of the row's tokens; first: a multiple of 4
  float largest = 0, scale = 0, best = 0;
  uint64_t position = 0, seed = 0;
  int32_t* tokens = nullptr;  // room for last - first
  uint32_t* words = nullptr;  // likewise
};

// out[m, n] = a[m, k] b[k, n], of f32 in any strides; or more of its chains, which began in out (block_product.h).
struct BlockProduct {
  static constexpr int64_t kPackedRows = 64;  // rows of a that are packed at once, at most
  static constexpr int64_t kPanel = 64;
  const float* a = nullptr;
  int64_t a_row = 0, a_column = 1;  // how far apart its rows and columns are
  // Panels of kPanel columns, b_panel apart, rows b_row apart; of the last one's the next multiple of 16 columns can
  // be read. Rows that lie side by side share no more cache lines of one set than there are.
  const float* b = nullptr;
  int64_t b_row = kPanel, b_panel = kPanel;
  int64_t m = 0, k = 0, n = 0;  // k: at least 1
  float* out = nullptr;
  int64_t out_row = 0;
  bool opens = true;                // chains begin at +0
  const float* row_bias = nullptr;  // [m], added to the sums; null: none
  float* packed = nullptr;          // room of kPackedRows * k
};

// out[i] = sum of factors[t] * x[shifts[t] + i] in one chain, + bias, for i < n; of x and out the next multiple of 16
// can be accessed.
struct ShiftedSum {
  const float* x = nullptr;
  const int64_t* shifts = nullptr;
  const float* factors = nullptr;
  int64_t terms = 0;
  float bias = 0;
  float* out = nullptr;
  int64_t n = 0;
};

struct Table {
  Isa isa;
  const char* name;
  void (*matmul)(const MatMul&);  // one FMA chain of f32 a slab
  // The same in Precision::kBF16, kBF16Tiles and kInt8 (engine/program/program.h), for weights of such; panel: a
  // multiple of 64.
  void (*matmul_bf16)(const MatMul&);
  void (*matmul_bf16_tiles)(const MatMul&);
  void (*matmul_int8)(const MatMul&);
  void (*attention)(const AttentionRows&);
  // In Precision::kBF16Tiles, for pages of bf16 that lie in one span: the rows' maxima, sums and accumulators are
  // written as if nothing had been before it.
  void (*attention_bf16_tiles)(const AttentionRows&);
  void (*norm)(const Norm&);
  // out[i] = op(a[i], b[i]) for i < n, of an operator that is_fusible(); b: of binary ones only; p, q as in
  // PointwiseStep. n rounded up to 16 must be accessible.
  void (*pointwise)(Op op, const float* a, const float* b, float p, float q, float* out, int64_t n);
  // A row of n >= 1 elements by an operator of base/ir/rowwise.h, with its parameter; out may be x.
  void (*rowwise)(Op op, const float* x, float p, float* out, int64_t n);
  // out = pairwise tree of `count` parts, then the epilogue on n elements.
  void (*add_parts)(const float* const* parts, int count, const Epilogue& epilogue, float* out, int64_t n);
  // Index of the largest element, the lowest among equals; -1 if one is NaN.
  int64_t (*argmax)(const float* x, int64_t n);
  // out[i] = exp((x[i] - largest) * scale), where out is not null; returns their sum.
  double (*exps)(const float* x, int64_t n, float largest, float scale, float* out);
  // Writes the indices of elements from `least` on, ascending; returns how many.
  int64_t (*at_least)(const float* x, int64_t n, float least, int32_t* ids);
  int64_t (*noisy)(const NoisyTokens& a);  // returns how many
  void (*block_product)(const BlockProduct&);
  void (*shifted_sum)(const ShiftedSum&);

  // Rows of x that are packed at a time: as many as stay in the second-level cache beside a panel. With tiles a panel's
  // words take as long to join as 240 rows to multiply, and there the cache is larger.
  int64_t packed_rows(Precision precision) const {
    return (isa >= Isa::kAvx512Amx && precision != Precision::kF32 ? 16 : 4) * kMatMulRows;
  }

  auto product(Precision precision) const {
    switch (precision) {
      case Precision::kBF16:
        return matmul_bf16;
      case Precision::kBF16Tiles:
        return matmul_bf16_tiles;
      case Precision::kInt8:
        return matmul_int8;
      case Precision::kF32:
        break;
    }
    return matmul;
  }
};

void matmul_int8_by_words(const MatMul& a);  // dot_avx2.cc

const Table& table_of(Isa isa);
extern const Table kScalarTable, kAvx2Table, kAvx512Table;

}  // namespace ark::simd
