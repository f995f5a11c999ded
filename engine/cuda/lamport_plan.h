// Which rows and sums a step of not many rows exchanges without counters, and what is left to wait for then:
// engine/cuda/lamport.h says how.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/cuda/appended.h"
#include "engine/cuda/dependencies.h"
#include "engine/cuda/merged_sends.h"
#include "engine/cuda/rank_parts.h"
#include "engine/cuda/x_parts.h"
#include "engine/program/program.h"

namespace ark::cuda {

// Of a matrix product in such a step: the sums that its tiles share.
struct SharedSums {
  int32_t instance = -1;
  int64_t floats = 0;  // 0: they share none, or count arrivals as in other steps
  int32_t taker = -1;  // the instance of a norm that takes them up; -1: there is none
  int32_t rows = 0;    // Instance::sums_rows
};

// What steps of more than few rows exchange so, all layers' together, takes at most this.
inline constexpr int64_t kMostToldBytes = int64_t{256} << 20;

struct LamportPlan {
  // By instance of a step: where in a row its output goes and where its x comes from, in floats; -1: they are in the
  // program's buffers. The x of several products may be one output.
  std::vector<int32_t> out, x;
  int32_t pitch = 0;  // floats of a row, a multiple of 16
  int32_t rows = 0;   // RankTables::told_rows
  // By product: floats before its sums, which lie behind the rows; -1: it has none there.
  std::vector<int64_t> sums;
  std::vector<int32_t> sums_rows;  // likewise
  int64_t floats = 0;              // of all; 0: there are no such steps
  // By instance: those that tell it what it takes; dependencies(), which leaves these out.
  std::vector<std::vector<int32_t>> told, needed;
  // By instance: whether it does nothing, since ranks exchange its numbers by words.
  std::vector<bool> left_out;
};

// Bytes of a rank's memory for what such steps exchange, at most: for who plans memory before there is an image.
int64_t most_told_bytes(const Program& program);

// Rows: outputs of norms, attention and products that nobody reads but products, as their x, by whole runs of sixteen
// elements. `most`: sizes of the largest of such steps. `device`: as in other steps, but for `also`, of these.
LamportPlan plan_lamport(const Program& program, const Binding& binding, const Appended& appended,
                         const RankParts& of_ranks, const XParts& parts, const SymbolValues& most,
                         std::span<const SharedSums> sums, OnDevice device);

// Whether instances have room for what they wait for in such steps and, `needed`, in others.
bool fits(const Program& program, const MergedSends& sends, const LamportPlan& plan,
          const std::vector<std::vector<int32_t>>& needed);

}  // namespace ark::cuda
