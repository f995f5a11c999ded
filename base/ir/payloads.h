// What the constants of a graph take in the file: each payload counts once, however many values read it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "base/ir/graph.h"

namespace ark {

class PayloadSet {
 public:
  // Bytes of the constant's payloads (a quantized matrix has up to three) that were not added before, by the type that
  // they are stored in. Empty: all known.
  std::map<DType, int64_t> add(const Constant& constant);

 private:
  std::set<std::pair<const void*, int64_t>> seen_;
};

struct WeightTotals {
  int64_t parameters = 0;  // elements of weights, not of scales, zeros and tables of angles
  std::map<DType, int64_t> bytes;
};
WeightTotals weight_totals(const Graph& graph);

}  // namespace ark
