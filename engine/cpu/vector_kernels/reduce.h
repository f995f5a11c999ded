// Runs of f32 to one number, in an order that follows from their length.
#pragma once

#include <cstdint>

namespace ark::vector_kernels {

float sum_of(const float* x, int64_t n);
// NaN if one is; of none the lowest, or the highest.
float largest_of(const float* x, int64_t n);
float smallest_of(const float* x, int64_t n);

}  // namespace ark::vector_kernels
