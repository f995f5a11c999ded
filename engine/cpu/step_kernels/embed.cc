// Rows of a table by token id; from panels too, where the table is shared with the LM head.
#include <cstring>

#include "engine/cpu/step_kernel.h"
#include "engine/program/weight_codec.h"

namespace ark {
namespace {

void run_embed(const PhaseCall& call) {
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
      decode_column(*call.weight, table.data, row, width, to);
    } else {
      load_f32(table.dtype, table.data, row * width, 1, width, to);
    }
  }
}

}  // namespace

std::vector<StepKernel> embed_step_kernels() { return {{OpCode::kEmbed, run_embed}}; }

}  // namespace ark
