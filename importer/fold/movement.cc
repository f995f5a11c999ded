#include <algorithm>
#include <cmath>

#include "base/ir/keys.h"
#include "importer/fold/array.h"

namespace ark::fold {
namespace {

Results dims(const Call& c) {
  const auto values = c.sizes(key::kValues);
  if (!values) return std::nullopt;
  Array y{{static_cast<int64_t>(values->size())}, false, {}, *values};
  if (c.attributes().get_or(key::kScalar, 0)) y.dims.clear();
  return {{std::move(y)}};
}

Results constant_of_shape(const Call& c) {
  auto shape = c.sizes(key::kShape);
  if (!shape && c.has(0)) shape = c.in[0].ints;
  if (!shape) return std::nullopt;
  const Array value = widen(c.attributes().get(key::kValue));
  const std::vector<int64_t> index(static_cast<std::size_t>(element_count(*shape)), 0);
  return {{value.pick(*shape, index)}};
}

Results range(const Call& c) {
  if (c.attributes().has(key::kStart)) {
    const auto start = c.sizes(key::kStart), limit = c.sizes(key::kLimit), delta = c.sizes(key::kDelta);
    if (!start || !limit || !delta || (*delta)[0] == 0) return std::nullopt;
    Array y{{0}, false, {}, {}};
    for (int64_t x = (*start)[0]; (*delta)[0] > 0 ? x < (*limit)[0] : x > (*limit)[0]; x += (*delta)[0])
      y.ints.push_back(x);
    y.dims[0] = y.size();
    return {{std::move(y)}};
  }
  for (const Array& bound : c.in)
    if (bound.size() != 1) c.fail("start, limit and delta must be scalars");
  const double start = c.in[0].number(0), limit = c.in[1].number(0), delta = c.in[2].number(0);
  const double count = std::max(0.0, std::ceil((limit - start) / delta));
  if (!(count <= 16e6)) return std::nullopt;
  Array y = Array::zeros({static_cast<int64_t>(count)}, c.in[0].real);
  for (int64_t i = 0; i < y.size(); ++i) {
    const auto k = static_cast<std::size_t>(i);
    if (y.real)
      y.reals[k] = start + static_cast<double>(i) * delta;
    else
      y.ints[k] = c.in[0].integer(0) + i * c.in[2].integer(0);
  }
  return {{std::move(y)}};
}

Results reshape(const Call& c) {
  const auto shape = c.sizes(key::kShape);
  if (!shape) return std::nullopt;
  if (element_count(*shape) != c.in[0].size())
    c.fail("cannot reshape a constant to another number of elements");
  Array y = c.in[0];
  y.dims = *shape;
  return {{std::move(y)}};
}

// out[at] = in[begin + at * step, axes permuted], for everything that walks in strides.
Array strided(const Array& x, const Dims& out, int64_t first, const std::vector<int64_t>& steps) {
  std::vector<int64_t> index;
  index.reserve(static_cast<std::size_t>(element_count(out)));
  Counter counter(out);
  if (element_count(out) > 0) do {
      int64_t at = first;
      for (std::size_t i = 0; i < out.size(); ++i) at += counter.at()[i] * steps[i];
      index.push_back(at);
    } while (counter.next());
  return x.pick(out, index);
}

Results transpose(const Call& c) {
  const auto& perm = c.attributes().get(key::kPerm);
  const auto strides = strides_of(c.in[0].dims);
  Dims out;
  std::vector<int64_t> steps;
  for (const int64_t p : perm) {
    out.push_back(c.in[0].dims[p]);
    steps.push_back(strides[p]);
  }
  return {{strided(c.in[0], out, 0, steps)}};
}

Results expand(const Call& c) {
  auto shape = c.sizes(key::kShape);
  if (!shape && c.has(1)) shape = c.in[1].ints;
  if (!shape) return std::nullopt;
  const Dims out = broadcast_dims(c, c.in[0].dims, *shape);
  return {{c.in[0].pick(out, broadcast_index(c.in[0].dims, out))}};
}

Results slice(const Call& c) {
  const auto starts = c.sizes(key::kStarts), ends = c.sizes(key::kEnds);
  if (!starts || !ends) return std::nullopt;
  const auto& axes = c.attributes().get(key::kAxes);
  const auto& steps = c.attributes().get(key::kSteps);
  Dims out = c.in[0].dims;
  std::vector<int64_t> strides = strides_of(out);
  int64_t first = 0;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto a = static_cast<std::size_t>(axes[i]);
    const int64_t span = steps[i] > 0 ? (*ends)[i] - (*starts)[i] : (*starts)[i] - (*ends)[i];
    const int64_t step = std::abs(steps[i]);
    out[a] = span <= 0 ? 0 : (span + step - 1) / step;
    first += (*starts)[i] * strides[a];
    strides[a] *= steps[i];
  }
  return {{strided(c.in[0], out, first, strides)}};
}

// Copies `part` into `whole` at `offset` along `axis`.
template <typename T>
void paste(std::vector<T>& whole, int64_t whole_axis, const std::vector<T>& part, int64_t part_axis,
           int64_t offset, int64_t inner) {
  if (part_axis * inner == 0) return;
  const int64_t outer = static_cast<int64_t>(part.size()) / (part_axis * inner);
  for (int64_t o = 0; o < outer; ++o)
    std::copy_n(part.begin() + o * part_axis * inner, part_axis * inner,
                whole.begin() + (o * whole_axis + offset) * inner);
}

int64_t inner_of(const Dims& dims, std::size_t axis) {
  int64_t n = 1;
  for (std::size_t i = axis + 1; i < dims.size(); ++i) n *= dims[i];
  return n;
}

Results concat(const Call& c) {
  Dims out = c.in[0].dims;
  const auto axis = static_cast<std::size_t>(c.axis(out.size()));
  for (std::size_t i = 1; i < c.in.size(); ++i) out[axis] += c.in[i].dims[axis];
  Array y = Array::zeros(out, c.in[0].real);
  int64_t offset = 0;
  for (const Array& x : c.in) {
    const int64_t inner = inner_of(out, axis);
    if (y.real)
      paste(y.reals, out[axis], x.reals, x.dims[axis], offset, inner);
    else
      paste(y.ints, out[axis], x.ints, x.dims[axis], offset, inner);
    offset += x.dims[axis];
  }
  return {{std::move(y)}};
}

Results split(const Call& c) {
  const auto sizes = c.sizes(key::kSizes);
  if (!sizes) return std::nullopt;
  const Array& x = c.in[0];
  const auto axis = static_cast<std::size_t>(c.axis(x.dims.size()));
  const auto strides = strides_of(x.dims);
  std::vector<Array> parts;
  int64_t begin = 0;
  for (const int64_t size : *sizes) {
    Dims out = x.dims;
    out[axis] = size;
    parts.push_back(strided(x, out, begin * strides[axis], strides));
    begin += size;
  }
  return parts;
}

Results pad(const Call& c) {
  const auto pads = c.sizes(key::kPadding);
  const Array& x = c.in[0];
  if (!pads || c.attributes().get_or(key::kMode, "constant") != "constant") return std::nullopt;
  const std::size_t rank = x.dims.size();
  Dims out = x.dims;
  for (std::size_t i = 0; i < rank; ++i) out[i] += (*pads)[i] + (*pads)[i + rank];
  std::vector<int64_t> index;
  const auto strides = strides_of(x.dims);
  Counter counter(out);
  if (element_count(out) > 0) do {
      int64_t at = 0;
      for (std::size_t i = 0; i < rank && at >= 0; ++i) {
        const int64_t k = counter.at()[i] - (*pads)[i];
        at = k < 0 || k >= x.dims[i] ? -1 : at + k * strides[i];
      }
      index.push_back(at);
    } while (counter.next());
  return {{x.pick(out, index, c.has(2) && c.in[2].size() == 1 ? c.in[2].number(0) : 0)}};
}

Results tile(const Call& c) {
  const auto repeats = c.sizes(key::kRepeats);
  if (!repeats) return std::nullopt;
  const Array& x = c.in[0];
  Dims out = x.dims;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] *= (*repeats)[i];
  const auto strides = strides_of(x.dims);
  std::vector<int64_t> index;
  Counter counter(out);
  if (element_count(out) > 0) do {
      int64_t at = 0;
      for (std::size_t i = 0; i < out.size(); ++i) at += counter.at()[i] % x.dims[i] * strides[i];
      index.push_back(at);
    } while (counter.next());
  return {{x.pick(out, index)}};
}

Results trilu(const Call& c) {
  const Array& x = c.in[0];
  if (x.dims.size() < 2) return std::nullopt;
  const int64_t k = c.has(1) ? c.in[1].integer(0) : c.attributes().get_or(key::kDiagonal, 0);
  const bool upper = c.attributes().get_or(key::kUpper, 1);
  std::vector<int64_t> index(static_cast<std::size_t>(x.size()));
  const int64_t rows = x.dims[x.dims.size() - 2], columns = x.dims.back();
  for (int64_t i = 0; i < x.size(); ++i) {
    const int64_t column = i % columns, row = i / columns % rows;
    index[i] = (upper ? column - row >= k : column - row <= k) ? i : -1;
  }
  return {{x.pick(x.dims, index)}};
}

Results eye_like(const Call& c) {
  const Dims& dims = c.in[0].dims;
  if (dims.size() != 2) return std::nullopt;
  Array y = Array::zeros(dims, is_floating(c.types[0]));
  const int64_t k = std::clamp(c.attributes().get_or(key::kDiagonal, 0), -dims[0], dims[1]);
  for (int64_t row = 0; row < dims[0]; ++row) {
    const int64_t column = row + k;
    if (column < 0 || column >= dims[1]) continue;
    const auto at = static_cast<std::size_t>(row * dims[1] + column);
    if (y.real)
      y.reals[at] = 1;
    else
      y.ints[at] = 1;
  }
  return {{std::move(y)}};
}

}  // namespace

Evaluator movement_evaluator(Op op) {
  switch (op) {
    case Op::kDims:
      return dims;
    case Op::kConstantOfShape:
      return constant_of_shape;
    case Op::kRange:
      return range;
    case Op::kReshape:
      return reshape;
    case Op::kTranspose:
      return transpose;
    case Op::kExpand:
      return expand;
    case Op::kSlice:
      return slice;
    case Op::kConcat:
      return concat;
    case Op::kSplit:
      return split;
    case Op::kPad:
      return pad;
    case Op::kTile:
      return tile;
    case Op::kTrilu:
      return trilu;
    case Op::kEyeLike:
      return eye_like;
    default:
      return nullptr;
  }
}

}  // namespace ark::fold
