// Matrix product with a packed weight. Tile t: rows block t % blocks, panel t / blocks.
#include <algorithm>

#include "engine/cpu/step_kernel.h"

namespace ark {
namespace {

// Rows of x that are packed at a time: as many as stay in the second-level cache beside a panel.
constexpr int64_t kPackedRows = 4 * kMatMulRows;

int64_t rows_of(const TensorView& x) { return outer_size(x, x.rank - 1); }

int64_t scratch(const PhaseLimits& limits) {
  const TensorView& x = limits.operands[0];
  return scratch_of<float>(std::min(rows_of(x), kPackedRows) * simd::packed_row(last_dim(x)));
}

// Tiles are ordered by panel, then rows: whole panels in the middle of the range, single tiles at its ends.
struct Tiles {
  simd::MatMul matmul;
  void (*multiply)(const simd::MatMul&);
  int64_t blocks;

  void run(int64_t first_block, int64_t last_block, int64_t first_panel, int64_t last_panel) {
    if (first_panel >= last_panel) return;
    matmul.first_panel = first_panel;
    matmul.last_panel = last_panel;
    const int64_t end = std::min(last_block * kMatMulRows, matmul.m);
    for (int64_t row = first_block * kMatMulRows; row < end; row += kPackedRows) {
      matmul.first_row = row;
      matmul.last_row = std::min(row + kPackedRows, end);
      multiply(matmul);
    }
  }
};

void run(const PhaseCall& call) {
  const TensorView &x = call.operands[0], &w = call.operands[1], &bias = call.operands[2],
                   &residual = call.operands[3];
  simd::MatMul m;
  m.x = x.as<const float>();
  m.m = rows_of(x);
  m.k = w.dims[0];
  m.n = w.dims[1];
  m.w = w.data;
  m.stored = w.dtype;
  m.panel = call.weight->panel;
  m.block = call.weight->block;
  m.terms = call.weight->terms;
  m.slabs = call.variant->recipe.slabs.data();
  m.slab_count = static_cast<int32_t>(call.variant->recipe.slabs.size()) - 1;
  m.epilogue = {call.variant->epilogue, bias.as<const float>(), residual.as<const float>()};
  m.out = call.operands[4].as<float>();
  const int64_t blocks = (m.m + kMatMulRows - 1) / kMatMulRows;
  if (blocks == 0) return;
  m.packed = call.scratch->take<float>(std::min(m.m, kPackedRows) * simd::packed_row(m.k));
  const Precision precision = call.variant->precision;
  Tiles tiles{m,
              precision == Precision::kBF16   ? call.simd->matmul_bf16
              : precision == Precision::kInt8 ? call.simd->matmul_int8
                                              : call.simd->matmul,
              blocks};
  const int64_t first = call.first / blocks, last = call.last / blocks;  // panels
  if (first == last) return tiles.run(call.first % blocks, call.last % blocks, first, first + 1);
  if (call.first % blocks) tiles.run(call.first % blocks, blocks, first, first + 1);
  tiles.run(0, blocks, first + (call.first % blocks ? 1 : 0), last);
  if (call.last % blocks) tiles.run(0, call.last % blocks, last, last + 1);
}

}  // namespace

std::vector<StepKernel> matmul_step_kernels() { return {{OpCode::kMatMul, run, scratch}}; }

}  // namespace ark
