// Which matrix products leave it to the norm behind them to add up what their tiles share (bodies/rows.h): a hop
// between blocks less, since the norm waits for all of them anyway.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/program/program.h"
#include "engine/program/unroll.h"

namespace ark::cuda {

// By instance of a step: of a product that norm, of others -1. The norm then reads the product's residual and writes
// its output. `longest_row`: elements of a row that it can hold.
std::vector<int32_t> takers(const Program& program, const Binding& binding, int64_t longest_row);
// What the norm touches on behalf of product instance `product`.
std::vector<Access> accesses_taken_up(const Program& program, const ark::Instance& product);

}  // namespace ark::cuda
