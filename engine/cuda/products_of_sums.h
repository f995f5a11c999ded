// Products whose outputs are a rank's part of a sum over ranks, and nothing else's: these store them where they are
// added up, in steps of up to 32 rows by words (engine/cuda/rank_parts.h), of more by shares
// (engine/cuda/rank_shares.h).
#pragma once

#include <optional>
#include <vector>

#include "engine/cuda/appended.h"
#include "engine/program/program.h"
#include "engine/program/unroll.h"

namespace ark::cuda {

// Instances of a step.
struct ProductOfSum {
  std::size_t product = 0;
  std::vector<std::size_t> sends;  // to each peer, the last one first
};

class ProductsOfSums {
 public:
  // Both outlive it.
  ProductsOfSums(const Program& program, const Appended& appended);

  const std::vector<ark::Instance>& instances() const { return all_; }
  // Of a sum over ranks, an instance of kRecvReduce.
  std::optional<ProductOfSum> of(std::size_t reduce) const;

 private:
  bool touches(std::size_t instance, BufferId buffer, bool writes) const;

  const Program& program_;
  const Appended& appended_;
  const std::vector<ark::Instance> all_;
  std::vector<std::vector<Access>> accesses_;  // by instance
};

}  // namespace ark::cuda
