// Recurrent layers: the plain ones, multiplied and activated by vectors.
#include "base/ir/kernels/recurrent.h"

#include "engine/cpu/simd/transpose.h"
#include "engine/cpu/vector_kernels/vector_kernels.h"

namespace ark::vector_kernels {
namespace {

constexpr kernels::RecurrentParts kParts{
    .transpose = simd::transpose,
    .add_product =
        [](const float* x, int64_t x_row, int64_t rows, int64_t k, const float* w, int64_t w_row, int64_t n,
           float* out, int64_t out_row) {
          multiply_in_place({x, x_row, 1}, rows, k, n, w, w_row, out, out_row, false);
        },
    .apply =
        [](Op op, float* x, int64_t n, double p, double q) {
          run_pointwise(op, x, nullptr, {p, q}, x, n);
        }};

}  // namespace

void register_recurrent(std::vector<Kernel>& by_op) {
  for (const Op op : {Op::kRnn, Op::kGru, Op::kLstm})
    by_op[static_cast<std::size_t>(op)].tile = [](const KernelCall& call, int64_t tile) {
      kernels::recurrent_tile(call, tile, kParts);
    };
}

}  // namespace ark::vector_kernels
