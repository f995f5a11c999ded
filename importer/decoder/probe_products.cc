// numpy's matmul on small host tensors, for angles computed as products of positions and frequencies.
#include <algorithm>

#include "base/error.h"
#include "base/ir/keys.h"
#include "importer/decoder/probe.h"
#include "importer/decoder/refusal.h"

namespace ark::decoder {

Tensor Probe::product(const Node& node, const Tensor& a, const Tensor& b) {
  const bool ta = node.attributes.get_or(key::kTransA, 0), tb = node.attributes.get_or(key::kTransB, 0);
  const std::size_t ra = a.dims.size(), rb = b.dims.size(), rank = std::max(ra, rb);
  if (ra < 2 || rb < 2 || !is_floating(a.dtype))
    refuse(node, "is a product in a mask or in positions that is not understood");
  const int64_t m = a.dims[ra - (ta ? 1 : 2)], k = a.dims[ra - (ta ? 2 : 1)], n = b.dims[rb - (tb ? 2 : 1)];
  const auto dim = [&](const Tensor& t, std::size_t i) {
    return i + t.dims.size() < rank ? 1 : t.dims[i + t.dims.size() - rank];
  };
  Dims dims(rank);
  for (std::size_t i = 0; i + 2 < rank; ++i) dims[i] = std::max(dim(a, i), dim(b, i));
  dims[rank - 2] = m, dims[rank - 1] = n;
  const auto start = [&](const Tensor& t, int64_t batch, int64_t matrix) {
    int64_t at = 0, stride = matrix;
    for (std::size_t i = rank - 2; i-- > 0;) {
      at += dim(t, i) == 1 ? 0 : batch % dims[i] * stride;
      batch /= dims[i];
      stride *= dim(t, i);
    }
    return at;
  };
  Tensor y = Tensor::zeros(DType::kF32, dims);
  if (static_cast<double>(y.size()) * static_cast<double>(k) > 64e6)
    refuse(node, "is too large a product to be evaluated at load");
  const double alpha = node.attributes.get_or(key::kAlpha, 1);
  for (int64_t i = 0; i < y.size(); ++i) {
    const int64_t batch = i / (m * n), row = i / n % m, column = i % n;
    const int64_t from_a = start(a, batch, m * k), from_b = start(b, batch, k * n);
    double sum = 0;
    for (int64_t c = 0; c < k; ++c)
      sum += a.real(from_a + (ta ? c * m + row : row * k + c)) *
             b.real(from_b + (tb ? column * k + c : c * n + column));
    y.as<float>()[i] = static_cast<float>(alpha * sum);
  }
  return y;
}

}  // namespace ark::decoder
