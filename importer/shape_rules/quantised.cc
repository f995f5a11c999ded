// Quantisation: types come from the zero point, sizes from the data.
#include "importer/shape_rules/rules.h"

namespace ark::shape_rules {
namespace {

void quantize(Context& c) {
  const DType fallback =
      static_cast<DType>(c.attributes().integer_or("to", static_cast<int64_t>(DType::kU8)));
  c.out(0, c.has(2) ? c.dtype(2) : fallback, c.shape(0));
}

void dequantize(Context& c) {
  c.out(0, static_cast<DType>(c.attributes().integer_or("to", static_cast<int64_t>(c.dtype(1)))), c.shape(0));
}

void dynamic_quantize(Context& c) {
  c.out(0, DType::kU8, c.shape(0));
  c.out(1, DType::kF32, Shape{});
  c.out(2, DType::kU8, Shape{});
}

constexpr Entry kRules[] = {
    {Op::kQuantizeLinear, quantize},
    {Op::kDequantizeLinear, dequantize},
    {Op::kDynamicQuantizeLinear, dynamic_quantize},
};

}  // namespace

std::span<const Entry> quantised_rules() { return kRules; }

}  // namespace ark::shape_rules
