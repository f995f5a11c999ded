// Rows of a table by token id; from panels too, where the table is shared with the LM head.
#include <cstring>

#include "engine/cpu/step_kernel.h"

namespace ark {
namespace {

float widen(const std::byte* p, int64_t i, DType stored) {
  if (stored == DType::kF32) return reinterpret_cast<const float*>(p)[i];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(p)[i];
  return stored == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
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
      const int64_t panel = call.weight->panel;
      const int64_t start = row / panel * width * panel + row % panel;
      for (int64_t k = 0; k < width; ++k) to[k] = widen(table.data, start + k * panel, table.dtype);
    } else {
      for (int64_t k = 0; k < width; ++k) to[k] = widen(table.data, row * width + k, table.dtype);
    }
  }
}

}  // namespace
extern const StepKernel kEmbedStep{OpCode::kEmbed, "embed", run, nullptr};
}  // namespace ark
