// Stores a token's keys and values in its page; before that keys, and beside it queries, may get their positions.
#include "engine/cpu/kv_pages.h"
#include "engine/cpu/step_kernels/rotate.h"

namespace ark {
namespace {

// Heads [first, last) of one token, which stand behind each other from `x` on.
void append(const PhaseCall& call, int64_t t, int64_t first, int64_t last, const float* x,
            const KvPages& to) {
  const auto token = static_cast<std::size_t>(t);
  const int64_t position = call.frame->positions[token];
  const int64_t page = call.state->table(call.frame->slots[token])[position / to.size];
  for (int64_t h = first; h < last; ++h, x += to.dim)
    store_kv(to.codec, to.place(page, h, position % to.size), x, to.dim);
}

void run(const PhaseCall& call) {
  for (const std::size_t i : {0, 1}) {
    const KvPages to(call.operands[2 + i], i == 1);
    for (int64_t t = call.first; t < call.last; ++t)
      append(call, t, 0, to.heads, call.operands[i].as<const float>() + t * to.heads * to.dim, to);
  }
}

// Tile t: token t / K, head t % K and its share of the query heads.
void run_rotary(const PhaseCall& call) {
  const TensorView &q = call.operands[0], &k = call.operands[4], &v = call.operands[5],
                   &out = call.operands[6];
  const RotaryTables tables{call.operands[1], call.operands[2], call.operands[3], call.facts->interleaved};
  const KvPages keys(call.operands[7], false), values(call.operands[8], true);
  const int64_t dim = keys.dim, heads = q.dims[1];
  float* const key = call.scratch->take<float>(dim);
  for (int64_t tile = call.first; tile < call.last; ++tile) {
    const int64_t t = tile / keys.heads, head = tile % keys.heads;
    for (int64_t h = heads * head / keys.heads; h < heads * (head + 1) / keys.heads; ++h) {
      const int64_t at = (t * heads + h) * dim;
      tables.rotate(t, q.as<const float>() + at, dim, out.as<float>() + at);
    }
    tables.rotate(t, k.as<const float>() + tile * dim, dim, key);
    append(call, t, head, head + 1, key, keys);
    append(call, t, head, head + 1, v.as<const float>() + tile * values.dim, values);
  }
}
int64_t rotary_scratch(const PhaseLimits& limits) { return scratch_of<float>(last_dim(limits.operands[4])); }

}  // namespace

std::vector<StepKernel> kv_append_step_kernels() {
  return {{OpCode::kKvAppend, run}, {OpCode::kRotaryAppend, run_rotary, rotary_scratch}};
}

}  // namespace ark
