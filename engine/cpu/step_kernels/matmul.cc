// Matrix products with one packed weight, or with two whose results are multiplied. Tile t: rows block t % blocks,
// panel t / blocks.
#include <algorithm>

#include "engine/cpu/step_kernel.h"

namespace ark {
namespace {

int64_t rows_of(const TensorView& x) { return outer_size(x, x.rank - 1); }

int64_t matmul_scratch(const PhaseLimits& limits) {
  const TensorView& x = limits.operands[0];
  const int64_t most = simd::table_of(best_isa()).packed_rows(limits.variant->precision);
  return scratch_of<float>(simd::packed_room(std::min(rows_of(x), most), last_dim(x)));
}

// Of rows [0, last_row) from `first_row` on. Tiles are ordered by panel, then rows: whole panels in the middle of the
// range, single tiles at its ends.
struct Tiles {
  std::span<simd::MatMul> products;  // of the same rows, one after the other
  void (*multiply)(const simd::MatMul&);
  int64_t first_row, last_row, packed_rows;

  int64_t blocks() const { return (last_row - first_row + kMatMulRows - 1) / kMatMulRows; }

  void run(Range tiles) {
    if (tiles.size() == 0) return;
    const int64_t all = blocks(), first = tiles.begin / all, last = tiles.end / all;  // panels
    if (first == last) return run(tiles.begin % all, tiles.end % all, first, first + 1);
    if (tiles.begin % all) run(tiles.begin % all, all, first, first + 1);
    run(0, all, first + (tiles.begin % all ? 1 : 0), last);
    if (tiles.end % all) run(0, tiles.end % all, last, last + 1);
  }

 private:
  void run(int64_t first_block, int64_t last_block, int64_t first_panel, int64_t last_panel) {
    if (first_panel >= last_panel) return;
    const int64_t end = std::min(first_row + last_block * kMatMulRows, last_row);
    for (int64_t row = first_row + first_block * kMatMulRows; row < end; row += packed_rows) {
      // A second product of many rows finds the first one's results in the cache.
      const bool by_panel = products.size() > 1 && end - row > kMatMulRows;
      const int64_t step = by_panel ? 1 : last_panel - first_panel;
      for (int64_t panel = first_panel; panel < last_panel; panel += step) {
        for (simd::MatMul& m : products) {
          m.first_panel = panel;
          m.last_panel = panel + step;
          m.first_row = row;
          m.last_row = std::min(row + packed_rows, end);
          m.is_packed = panel > first_panel || &m != &products[0];
          multiply(m);
        }
      }
    }
  }
};

simd::MatMul product(const PhaseCall& call, const TensorView& w, const TensorView& out) {
  const TensorView& x = call.operands[0];
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
  m.out = out.as<float>();
  return m;
}

// Many rows are dealt to teams of processors, and to a team's processors its tiles. So rows are packed by few of them,
// where most have them in their caches from the phases before: of a row that saves as much as two panels' products with
// it. For that each team passes over all panels, which costs as much as ten rows. `most`: rows that are packed at once.
int32_t teams_of(int64_t rows, int64_t panels, int64_t most, int32_t processors) {
  if (rows * 2 < panels * 10) return 1;
  int32_t teams = static_cast<int32_t>(std::clamp<int64_t>(rows / (most / 2), 1, processors));
  while (processors % teams != 0) --teams;
  return teams;
}

void run_all(const PhaseCall& call, std::span<simd::MatMul> products) {
  constexpr int64_t kUnit = 16;  // rows: a block of any precision
  const int64_t m = products[0].m;
  if (m == 0) return;
  const Precision precision = call.variant->precision;
  const int64_t most = call.simd->packed_rows(precision);
  float* packed = call.scratch->take<float>(simd::packed_room(std::min(m, most), products[0].k));
  for (simd::MatMul& each : products) each.packed = packed;
  const int64_t panels = call.grid / ((m + kMatMulRows - 1) / kMatMulRows);
  const int32_t teams = teams_of(m, panels * std::ssize(products), most, call.processors),
                members = call.processors / teams;
  const Range units = tiles_of((m + kUnit - 1) / kUnit, call.processor / members, teams);
  Tiles tiles{products, call.simd->product(precision), units.begin * kUnit, std::min(units.end * kUnit, m),
              most};
  tiles.run(tiles_of(tiles.blocks() * panels, call.processor % members, members));
}

void run_matmul(const PhaseCall& call) {
  const TensorView &bias = call.operands[2], &residual = call.operands[3];
  simd::MatMul m = product(call, call.operands[1], call.operands[4]);
  m.epilogue = {call.variant->epilogue, bias.as<const float>(), residual.as<const float>()};
  run_all(call, {&m, 1});
}

// The second product finds the first one's results where it leaves its own.
void run_gated(const PhaseCall& call) {
  const TensorView &gate_bias = call.operands[2], &up_bias = call.operands[4], &out = call.operands[5];
  simd::MatMul both[] = {product(call, call.operands[1], out), product(call, call.operands[3], out)};
  const auto bias_bit = [](const TensorView& bias) { return bias.present() ? uint32_t{kEpilogueBias} : 0; };
  both[0].epilogue = {call.variant->epilogue | bias_bit(gate_bias), gate_bias.as<const float>()};
  both[1].epilogue = {bias_bit(up_bias), up_bias.as<const float>(), nullptr, both[0].out};
  run_all(call, both);
}

}  // namespace

std::vector<StepKernel> matmul_step_kernels() {
  return {{OpCode::kMatMul, run_matmul, matmul_scratch, true},
          {OpCode::kGatedMatMul, run_gated, matmul_scratch, true}};
}

}  // namespace ark
