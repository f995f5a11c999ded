// Rotary position embedding of the first R dimensions of each head (arXiv:2104.09864).
#pragma once

#include <algorithm>
#include <cstring>

#include "engine/cpu/step_kernel.h"

namespace ark {

struct RotaryTables {
  const TensorView &cos, &sin, &positions;  // [L, R / 2] twice; [T]
  bool interleaved;

  // One head of `dim` elements of token `t`; `to` may be `from`.
  void rotate(int64_t t, const float* from, int64_t dim, float* to) const {
    const int64_t half = last_dim(cos), rotated = 2 * half, step = interleaved ? 2 : 1,
                  apart = interleaved ? 1 : half;
    const int64_t position = std::min(std::max<int64_t>(index_at(positions, t), 0), cos.dims[0] - 1);
    const float *c = cos.as<const float>() + position * half, *s = sin.as<const float>() + position * half;
    for (int64_t i = 0; i < half; ++i) {
      const float a = from[i * step], b = from[i * step + apart];
      to[i * step] = a * c[i] - b * s[i];
      to[i * step + apart] = a * s[i] + b * c[i];
    }
    if (dim > rotated && to != from)
      std::memmove(to + rotated, from + rotated, static_cast<std::size_t>(dim - rotated) * sizeof(float));
  }
};

}  // namespace ark
