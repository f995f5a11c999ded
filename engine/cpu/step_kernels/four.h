// Four numbers at a time, on any instruction set; the same bits as one by one.
#pragma once

#include <cstring>

namespace ark {

using Four [[gnu::vector_size(16)]] = float;
inline Four four_at(const float* p) {
  Four v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void put(float* p, Four v) { std::memcpy(p, &v, sizeof v); }

}  // namespace ark
