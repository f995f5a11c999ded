#include "base/ir/kernels/common.h"
#include "base/ir/rowwise_host.h"

namespace ark::kernels {

// What each file of this folder adds.
using Register = void(std::vector<Kernel>& into);
Register register_pointwise, register_create, register_movement, register_index, register_scatter,
    register_select, register_reduce, register_scan, register_norm, register_matmul, register_conv,
    register_pool, register_attention, register_quantized, register_resize, register_recurrent,
    register_linear_attention, register_sampling, register_regions, register_unpool, register_signal,
    register_trees, register_rowwise;

}  // namespace ark::kernels

namespace ark {
namespace {

const std::vector<Kernel>& library() {
  static const std::vector<Kernel> kernels = [] {
    std::vector<Kernel> list, by_op(static_cast<std::size_t>(Op::kCount));
    for (kernels::Register* const add : {kernels::register_pointwise, kernels::register_create,
                                         kernels::register_movement,  kernels::register_index,
                                         kernels::register_scatter,   kernels::register_select,
                                         kernels::register_reduce,    kernels::register_scan,
                                         kernels::register_norm,      kernels::register_matmul,
                                         kernels::register_conv,      kernels::register_pool,
                                         kernels::register_attention, kernels::register_quantized,
                                         kernels::register_resize,    kernels::register_recurrent,
                                         kernels::register_sampling,  kernels::register_regions,
                                         kernels::register_unpool,    kernels::register_signal,
                                         kernels::register_trees,     kernels::register_linear_attention,
                                         kernels::register_rowwise})
      add(list);
    for (const Kernel& k : list) by_op[static_cast<std::size_t>(k.op)] = k;
    return by_op;
  }();
  return kernels;
}

}  // namespace

bool follows_from_sizes(Op op, int inputs) {
  if (is_pointwise(op) || rowwise::row_of(op) ||
      is_one_of(op, {Op::kMatMul, Op::kExpertMatMul, Op::kConcat, Op::kLayerNorm, Op::kRmsNorm,
                     Op::kTranspose, Op::kConv}))
    return true;
  return inputs == 1 && is_one_of(op, {Op::kReshape, Op::kSlice, Op::kExpand, Op::kSplit, Op::kTile,
                                       Op::kReduceSum, Op::kReduceMean, Op::kReduceMax, Op::kReduceMin});
}

const Kernel* find_kernel(Op op) {
  const Kernel& kernel = library()[static_cast<std::size_t>(op)];
  return kernel.tile ? &kernel : nullptr;
}

}  // namespace ark
