// Stores a token's keys and values in its page; before that keys, and beside it queries, may get their positions.
#include "engine/cpu/kv_pages.h"
#include "engine/cpu/step_kernels/rotate.h"

namespace ark {
namespace {

// Where a token's keys and values go.
struct KvPlace {
  int64_t page, at;
  KvPlace(const PhaseCall& call, int64_t t, int64_t page_size) {
    const auto token = static_cast<std::size_t>(t);
    const int64_t position = call.frame->positions[token];
    page = call.state->table(call.frame->slots[token])[position / page_size];
    at = position % page_size;
  }
  void store(const KvPages& to, int64_t head, const float* x) const {
    store_kv(to.codec, to.place(page, head, at), x, to.dim);
  }
};

void run_kv_append(const PhaseCall& call) {
  for (const std::size_t i : {0, 1}) {
    const KvPages to(call.operands[2 + i], i == 1);
    const float* x = call.operands[i].as<const float>() + call.first * to.heads * to.dim;
    for (int64_t t = call.first; t < call.last; ++t) {
      const KvPlace place(call, t, to.size);
      for (int64_t h = 0; h < to.heads; ++h, x += to.dim) place.store(to, h, x);
    }
  }
}

// Tile t: token t / K, head t % K and its share of the query heads.
void run_rotary_append(const PhaseCall& call) {
  const TensorView &q = call.operands[0], &k = call.operands[4], &v = call.operands[5],
                   &out = call.operands[6];
  const KvPages keys(call.operands[7], false), values(call.operands[8], true);
  const int64_t dim = keys.dim, heads = q.dims[1];
  float* const key = call.scratch->take<float>(dim);
  for (int64_t tile = call.first; tile < call.last;) {
    const int64_t t = tile / keys.heads;
    const Angles angles = angles_of(call, t);
    const KvPlace place(call, t, keys.size);
    for (const int64_t end = std::min((t + 1) * keys.heads, call.last); tile < end; ++tile) {
      const int64_t head = tile - t * keys.heads;
      for (int64_t h = heads * head / keys.heads; h < heads * (head + 1) / keys.heads; ++h) {
        const int64_t at = (t * heads + h) * dim;
        angles.rotate(q.as<const float>() + at, dim, out.as<float>() + at);
      }
      angles.rotate(k.as<const float>() + tile * dim, dim, key);
      place.store(keys, head, key);
      place.store(values, head, v.as<const float>() + tile * values.dim);
    }
  }
}
int64_t rotary_append_scratch(const PhaseLimits& limits) {
  return scratch_of<float>(last_dim(limits.operands[4]));
}

}  // namespace

std::vector<StepKernel> kv_append_step_kernels() {
  return {{OpCode::kKvAppend, run_kv_append},
          {OpCode::kRotaryAppend, run_rotary_append, rotary_append_scratch}};
}

}  // namespace ark
