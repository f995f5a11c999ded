// All vector kernels over one vector type.
#pragma once

#include "engine/cpu/simd/attention.h"
#include "engine/cpu/simd/attention_tiles.h"
#include "engine/cpu/simd/block_product.h"
#include "engine/cpu/simd/dot_matmul.h"
#include "engine/cpu/simd/quantized_matmul.h"
#include "engine/cpu/simd/rows.h"
#include "engine/cpu/simd/sampling.h"
#include "engine/cpu/simd/table.h"

namespace ark::simd {
namespace {

template <class T>
constexpr Table make_table(Isa isa, const char* name, void (*int8)(const MatMul&) = matmul_int8<T>) {
  return {isa,
          name,
          matmul<T>,
          matmul_bf16<T>,
          matmul_bf16_tiles<T>,
          int8,
          attention<T>,
          attention_bf16_tiles<T>,
          norm<T>,
          pointwise<T>,
          rowwise<T>,
          add_parts<T>,
          argmax<T>,
          exps<T>,
          at_least,
          noisy<T>,
          block_product<T>,
          shifted_sum<T>};
}

}  // namespace
}  // namespace ark::simd
