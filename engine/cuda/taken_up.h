// Which sums are left to the norm behind them (bodies/rows.h): of what a matrix product's tiles share, and of ranks'
// parts in steps that tell (engine/cuda/rank_parts.h). A hop between blocks less, since the norm waits for all of
// them anyway.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/program/program.h"
#include "engine/program/unroll.h"

namespace ark::cuda {

// By instance of a step: of a product, or of a sum over ranks, that norm; of others -1. The norm then reads their
// residual and writes their output. `longest_row`: elements of a row that it can hold.
std::vector<int32_t> takers(const Program& program, const Binding& binding, int64_t longest_row);
// What the norm touches on behalf of such an instance.
std::vector<Access> accesses_taken_up(const Program& program, const ark::Instance& taken);

}  // namespace ark::cuda
