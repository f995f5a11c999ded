// Fused expressions: element by element.
#pragma once

#include "engine/cuda/bodies/math.h"

namespace ark::cuda {

// Where the element of out lies in an input that is repeated along some axes of it.
ARK_APART i64 place_by_table(const Size* table, int input, const i32* vals, i64 element) {
  i64 rest = element, stride = 1, offset = 0;
  ARK_ROLLED
  for (int axis = 3; axis >= 0; --axis) {
    const Size sizes[2] = {dev::ld_nc(table + axis), dev::ld_nc(table + 4 + 4 * input + axis)};
    const i64 out = sizes[0] >= 0 ? sizes[0] : vals[~sizes[0]],
              own = sizes[1] >= 0 ? sizes[1] : vals[~sizes[1]];
    if (own > 1) offset += rest % out * stride;
    rest /= out;
    stride *= own;
  }
  return offset;
}

// Expression: generated (engine/cuda/pointwise_source.h).
template <class Expression>
struct Pointwise : Quiet {
  ARK_DEVICE static i64 place(const Call& call, int input, i64 element) {
    const PointwiseArguments& a = call.i.pointwise;
    const i32 placement = a.placements[input];
    if (placement == kLikeOutput) return element;
    if (placement == kAlongLastAxis) return element % call.size(a.last_axis);
    if (placement == kOneElement) return 0;
    return place_by_table(at<const Size>(call.i.aux), input, call.b.vals, element);
  }

  ARK_DEVICE static void run(const Call& call, Tiles tiles) {
    const PointwiseArguments& a = call.i.pointwise;
    const i64 end = dev::min(tiles.last * kElementTile, call.product(a.elements));
    ARK_ROLLED
    for (i64 i = tiles.first * kElementTile + call.b.thread; i < end; i += kConsumers) {
      float in[Expression::kInputs];
      ARK_UNROLL
      for (int n = 0; n < Expression::kInputs; ++n)
        in[n] = dev::ld_global(at<const float>(a.inputs[n]) + place(call, n, i));
      dev::st_global(at<float>(a.out) + i, Expression::apply(in));
    }
  }
};

}  // namespace ark::cuda
