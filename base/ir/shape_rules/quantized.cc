// Quantization: types come from the zero point, sizes from the data.
#include "base/ir/keys.h"
#include "base/ir/shape_rules/rules.h"

namespace ark::shape_rules {
namespace {

// Scales and zero points are as many as the axis or its blocks want, as far as sizes are known; the kernels
// look at the others.
void check_scaling(Context& c) {
  const auto scales = c.count(1), zeros = c.count(2);
  if (scales && zeros && *scales != *zeros)
    c.fail("has " + std::to_string(*scales) + " scales and " + std::to_string(*zeros) + " zero points");
  const int64_t block = c.attributes().get_or(key::kBlockSize, 0);
  if (block < 0) c.fail("block_size " + std::to_string(block) + " is negative");
  if (!c.shape(0) || !scales || *scales == 1) return;
  const Shape &x = *c.shape(0), &scale = *c.shape(1);
  const auto axis =
      static_cast<std::size_t>(c.axis(c.attributes().get_or(key::kAxis, 1), static_cast<int64_t>(x.size())));
  const auto size = axis < x.size() ? x[axis].constant() : std::optional<int64_t>(1);
  if (block == 0) {
    if (size && *scales != *size)
      c.fail("has " + std::to_string(*scales) + " scales for " + std::to_string(*size) + " places of axis " +
             std::to_string(axis));
    return;
  }
  if (scale.size() != x.size()) c.fail("scales by blocks must have as many axes as the data");
  for (std::size_t i = 0; i < x.size(); ++i) {
    auto wanted = x[i].constant();
    if (wanted && i == axis && *wanted > 0) wanted = (*wanted - 1) / block + 1;
    if (wanted && !scale[i].is_constant(*wanted))
      c.fail("has scales " + str(scale) + " for " + str(x) + " in blocks of " + std::to_string(block) +
             " along axis " + std::to_string(axis));
  }
}

void quantize(Context& c) {
  check_scaling(c);
  const DType fallback =
      static_cast<DType>(c.attributes().get_or(key::kTo, static_cast<int64_t>(DType::kU8)));
  c.out(0, c.has(2) ? c.dtype(2) : fallback, c.shape(0));
}

void dequantize(Context& c) {
  check_scaling(c);
  if (c.has(2) && c.dtype(2) != c.dtype(0))
    c.fail("dequantizes " + std::string(name_of(c.dtype(0))) + " with zero points of type " +
           std::string(name_of(c.dtype(2))));
  c.out(0, static_cast<DType>(c.attributes().get_or(key::kTo, static_cast<int64_t>(c.dtype(1)))), c.shape(0));
}

void dynamic_quantize(Context& c) {
  c.out(0, DType::kU8, c.shape(0));
  c.out(1, DType::kF32, Shape{});
  c.out(2, DType::kU8, Shape{});
}

}  // namespace

std::span<const Entry> quantized_rules() {
  static constexpr Entry kRules[] = {
      {Op::kQuantizeLinear, quantize},
      {Op::kDequantizeLinear, dequantize},
      {Op::kDynamicQuantizeLinear, dynamic_quantize},
  };
  return kRules;
}

}  // namespace ark::shape_rules
