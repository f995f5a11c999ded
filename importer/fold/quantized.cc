#include "base/ir/keys.h"
#include "importer/fold/array.h"

namespace ark::fold {
namespace {

// As the kernel computes it: one difference, one product in f32. The shape rule has checked the sizes.
Results dequantize(const Call& c) {
  const Array &x = c.in[0], &scale = c.in[1];
  const auto rank = x.dims.size();
  const bool single = scale.size() == 1;
  const auto axis = single ? 0 : static_cast<std::size_t>(c.axis(rank));
  const int64_t block = c.attributes().get_or(key::kBlockSize, 0),
                default_zero = c.attributes().get_or(key::kZeroPoint, 0);
  const auto strides = strides_of(scale.dims);
  const bool blocked = block > 0 && !single;
  if (c.has(2) && c.in[2].size() != scale.size()) return std::nullopt;
  if (!single && (blocked ? scale.dims.size() != rank : scale.size() != x.dims[axis])) return std::nullopt;
  Array y = Array::zeros(x.dims, true);
  if (y.size() == 0) return {{std::move(y)}};
  Counter at(x.dims);
  std::size_t i = 0;
  do {
    int64_t place = 0;
    for (std::size_t a = 0; blocked && a < rank; ++a)
      place += (a == axis ? at.at()[a] / block : at.at()[a]) * strides[a];
    if (!blocked && !single) place = at.at()[axis];
    if (place >= scale.size()) return std::nullopt;
    const double zero = c.has(2) ? c.in[2].number(place) : static_cast<double>(default_zero);
    y.reals[i] = static_cast<float>(x.number(static_cast<int64_t>(i)) - zero) *
                 static_cast<float>(scale.number(place));
    ++i;
  } while (at.next());
  return {{std::move(y)}};
}

}  // namespace

Evaluator quantized_evaluator(Op op) { return op == Op::kDequantizeLinear ? dequantize : nullptr; }

}  // namespace ark::fold
