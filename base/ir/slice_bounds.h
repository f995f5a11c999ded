// Slice bounds as ONNX gives them (negative, out of range, INT64_MIN/MAX) -> the canonical kSlice attributes.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "base/expr.h"
#include "base/ir/attributes.h"

namespace ark {

// One entry of each list an axis; axes are non-negative and in range, steps not 0. nullopt if the sign of a bound
// cannot be told (then the bounds stay data). What has to hold for the result to be right is added to `assumptions`.
std::optional<Attributes> slice_bounds(const Shape& x, const std::vector<int64_t>& axes, const Shape& starts,
                                       const Shape& ends, std::vector<int64_t> steps,
                                       std::vector<std::pair<Expr, Expr>>& assumptions);

// Those of a Slice of one axis, 0 <= begin <= end <= its size.
Attributes slice_of(int64_t axis, const Expr& begin, const Expr& end, int64_t step = 1);

}  // namespace ark
