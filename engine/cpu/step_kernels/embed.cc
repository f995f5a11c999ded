// Rows of a table by token id; from panels too, where the table is shared with the LM head.
#include <cstring>

#include "engine/cpu/step_kernel.h"
#include "engine/program/quantized_panel.h"

namespace ark {
namespace {

float widen(const std::byte* p, int64_t i, DType stored) {
  if (stored == DType::kF32) return reinterpret_cast<const float*>(p)[i];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(p)[i];
  return stored == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

// Column n of a weight's panels.
void gather_column(const WeightUse& use, const std::byte* data, int64_t n, int64_t k_size, float* to) {
  const int64_t panel = use.panel;
  const int64_t lane = n % panel;
  if (!is_quantized(use.stored)) {
    const int64_t start = n / panel * k_size * panel + lane;
    for (int64_t k = 0; k < k_size; ++k) to[k] = widen(data, start + k * panel, use.stored);
    return;
  }
  const int64_t block_bytes = panel_block_bytes(use.stored, panel, use.block);
  const std::byte* block = data + n / panel * panel_blocks(k_size, use.block) * block_bytes;
  for (int64_t k = 0; k < k_size; ++k) {
    if (k != 0 && k % use.block == 0) block += block_bytes;
    const int64_t pair = k % use.block / 2 * panel + lane;
    const auto* codes = reinterpret_cast<const uint8_t*>(block + codes_offset(panel));
    const int code = use.stored == DType::kU4 ? codes[pair] >> (k % 2 * 4) & 15 : codes[pair * 2 + k % 2];
    const int zero = std::to_integer<int>(block[zeros_offset(panel) + lane]);
    to[k] = static_cast<float>(code - zero) * reinterpret_cast<const float*>(block)[lane];
  }
}

void run(const PhaseCall& call) {
  const TensorView &ids = call.operands[0], &table = call.operands[1], &out = call.operands[2];
  const bool panels = call.weight && call.weight->layout == Layout::kPanels;
  const int64_t width = panels ? table.dims[0] : table.dims[1];
  const int64_t rows = panels ? table.dims[1] : table.dims[0];
  for (int64_t t = call.first; t < call.last; ++t) {
    const int64_t row = index_at(ids, t) - call.facts->first;
    float* to = out.as<float>() + t * width;
    if (row < 0 || row >= rows) {
      std::memset(to, 0, static_cast<std::size_t>(width) * sizeof(float));
    } else if (panels) {
      gather_column(*call.weight, table.data, row, width, to);
    } else {
      for (int64_t k = 0; k < width; ++k) to[k] = widen(table.data, row * width + k, table.dtype);
    }
  }
}

}  // namespace
extern const StepKernel kEmbedStep{OpCode::kEmbed, "embed", run, nullptr};
}  // namespace ark
