// Reductions: along all axes but the reduced ones.
#include "engine/partition/loops.h"
#include "engine/partition/op_rule.h"

namespace ark {

std::vector<OpRule> reduction_rules() {
  std::vector<OpRule> rules;
  for (const Op op :
       {Op::kReduceSum, Op::kReduceMean, Op::kReduceMax, Op::kReduceMin, Op::kReduceProd, Op::kReduceL1,
        Op::kReduceL2, Op::kReduceSumSquare, Op::kReduceLogSum, Op::kReduceLogSumExp}) {
    rules.push_back({op, reduce_loops});
  }
  return rules;
}

}  // namespace ark
