// Stores a token's keys and values in its page. The CPU keeps keys transposed inside a page,
// [dim][page_size], so that attention reads sixteen keys with one load; values stay [page_size][dim].
#include <cstring>

#include "engine/cpu/step_kernel.h"

namespace ark {
namespace {

void run(const PhaseCall& call) {
  const TensorView &k = call.operands[0], &v = call.operands[1], &keys = call.operands[2],
                   &values = call.operands[3];
  const int64_t heads = keys.dims[1], size = keys.dims[2], key_dim = keys.dims[3], value_dim = values.dims[3];
  for (int64_t t = call.first; t < call.last; ++t) {
    const auto token = static_cast<std::size_t>(t);
    const int64_t position = call.frame->positions[token], at = position % size;
    const int64_t page = call.state->table(call.frame->slots[token])[position / size];
    for (int64_t h = 0; h < heads; ++h) {
      const float* key = k.as<const float>() + (t * heads + h) * key_dim;
      float* to = keys.as<float>() + (page * heads + h) * size * key_dim + at;
      for (int64_t d = 0; d < key_dim; ++d) to[d * size] = key[d];
      std::memcpy(values.as<float>() + ((page * heads + h) * size + at) * value_dim,
                  v.as<const float>() + (t * heads + h) * value_dim,
                  static_cast<std::size_t>(value_dim) * sizeof(float));
    }
  }
}

}  // namespace

std::vector<StepKernel> kv_append_step_kernels() { return {{OpCode::kKvAppend, run}}; }

}  // namespace ark
