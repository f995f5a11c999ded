// In which type each weight matrix is kept in memory: fewer bits where every number comes back bit for bit, or what the
// user asks for. Decided behind the partition, so that plans, recipes and therefore results do not depend on it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/ir/constant.h"

namespace ark {

enum class WeightPolicy : uint8_t {
  kExact,  // the fewest bits that change no number
  kF32,    // numbers as f32
  kBF16,   // numbers rounded to that type, unless it cannot hold their size
  kF16,
  kInt8,  // numbers rounded to the nearest code of their block
  kInt4,  // the same; tables and the head 8 bits
};

// A constant matrix that rows are multiplied by or looked up in.
struct WeightMatrix {
  ConstantPtr constant;
  int k_axis = 0;         // of its view: that sums run along, or that a looked-up row lies along
  bool is_table = false;  // of token embeddings, or the head
};

struct StorageOptions {
  WeightPolicy policy = WeightPolicy::kExact;
  int threads = 1;
};

class StoredWeights {
 public:
  struct Stored {
    ConstantPtr constant;     // the same numbers, or, with a policy that rounds, nearly
    DType type;               // of panels, unless the constant is quantized
    bool is_rounded = false;  // by the policy: products may round what they multiply with, too
  };

  StoredWeights() = default;
  // Reads the matrices (all but those of policy kF32). Throws as materialise_rows, Error(kExhausted).
  StoredWeights(const std::vector<WeightMatrix>& matrices, const StorageOptions& options);

  // What stands for a constant; others are kept as they are.
  Stored of(const ConstantPtr& constant) const;
  // "210 x u4, 1 x u8: 513 MiB -> 92 MiB", or empty where all stays as it is.
  const std::string& summary() const { return summary_; }
  // Whether another run may find more, as there was no room for some codes.
  bool lacked_memory() const { return lacked_memory_; }

 private:
  std::map<const Constant*, Stored> stored_;
  std::string summary_;
  bool lacked_memory_ = false;
};

}  // namespace ark
