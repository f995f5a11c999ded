// Where the elements of a cached token lie in a cache of the file.
#pragma once

#include "base/ir/decoder.h"
#include "base/tensor.h"

namespace ark::tools {

// A cache of the file seen as [token][elements]: the token's elements, in the order of the remaining axes.
class CacheLayout {
 public:
  CacheLayout(const Dims& dims, const DecoderSignature::Cache& cache, int64_t batch)
      : dims_(dims),
        cache_(cache),
        parts_(batch > 0 ? dims[static_cast<std::size_t>(cache.batch_axis)] / batch : 1) {}
  int64_t width() const {
    int64_t n = parts_;
    for (std::size_t a = 0; a < dims_.size(); ++a)
      if (!is_fixed(a)) n *= dims_[a];
    return n;
  }
  // Index of element `e` of (batch, column).
  int64_t index(int64_t batch, int64_t column, int64_t e) const {
    int64_t index = 0, stride = 1;
    for (std::size_t a = dims_.size(); a-- > 0; stride *= dims_[a]) {
      if (static_cast<int>(a) == cache_.batch_axis) {
        index += (batch * parts_ + e % parts_) * stride;
        e /= parts_;
      } else if (static_cast<int>(a) == cache_.sequence_axis) {
        index += column * stride;
      } else {
        index += e % dims_[a] * stride;
        e /= dims_[a];
      }
    }
    return index;
  }

 private:
  bool is_fixed(std::size_t a) const {
    return static_cast<int>(a) == cache_.batch_axis || static_cast<int>(a) == cache_.sequence_axis;
  }
  Dims dims_;
  DecoderSignature::Cache cache_;
  int64_t parts_;  // of each row along the batch's axis
};

}  // namespace ark::tools
