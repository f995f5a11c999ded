// Rotary position embedding of the first R dimensions of each head (arXiv:2104.09864).
#pragma once

#include <algorithm>
#include <cstring>

#include "engine/cpu/step_kernel.h"
#include "engine/cpu/step_kernels/four.h"

namespace ark {

// Of one token.
struct Angles {
  const float *cos, *sin;
  int64_t half;
  bool interleaved;

  // One head of `dim` elements; `to` may be `from`.
  void rotate(const float* from, int64_t dim, float* to) const {
    const int64_t rotated = 2 * half, step = interleaved ? 2 : 1, apart = interleaved ? 1 : half;
    int64_t i = 0;
    for (; !interleaved && i + 4 <= half; i += 4) {
      const Four a = four_at(from + i), b = four_at(from + i + half), c = four_at(cos + i),
                 s = four_at(sin + i);
      put(to + i, a * c - b * s);
      put(to + i + half, a * s + b * c);
    }
    for (; i < half; ++i) {
      const float a = from[i * step], b = from[i * step + apart];
      to[i * step] = a * cos[i] - b * sin[i];
      to[i * step + apart] = a * sin[i] + b * cos[i];
    }
    if (dim > rotated && to != from)
      std::memmove(to + rotated, from + rotated, static_cast<std::size_t>(dim - rotated) * sizeof(float));
  }
};

// Operands 1, 2, 3 of the phase: cos, sin [L, R / 2], positions [T].
inline Angles angles_of(const PhaseCall& call, int64_t token) {
  const TensorView &cos = call.operands[1], &sin = call.operands[2];
  const int64_t half = last_dim(cos), found = index_at(call.operands[3], token),
                position = std::min(std::max<int64_t>(found, 0), cos.dims[0] - 1);
  return {cos.as<const float>() + position * half, sin.as<const float>() + position * half, half,
          call.facts->interleaved};
}

}  // namespace ark
