// Operators that draw numbers. Results must not depend on hidden state, so a node draws the same numbers in every run:
// hashes of an element's place and of the node's seed or label. No two nodes without a seed draw alike.
#include <bit>
#include <cmath>

#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

uint32_t seed_of(OpContext& c) {
  if (c.has_attr("seed")) return std::bit_cast<uint32_t>(static_cast<float>(c.attr_float("seed", 0)));
  uint32_t hash = 2166136261u;
  for (const char letter : c.label) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619u;
  return hash;
}

// f32 of this shape, evenly spread over (0, 1): the finalizer of MurmurHash3 over places.
ValueId even_draws(OpContext& c, const Shape& shape, uint32_t seed) {
  const auto word = [&](uint32_t value) { return scalar(c, value, DType::kU32); };
  const auto moved = [&](ValueId x, uint32_t bits) { return c.emit(Op::kBitShift, {x, word(bits)}); };
  const auto mixed = [&](ValueId x, uint32_t bits) { return binary(c, Op::kBitXor, x, moved(x, bits)); };
  const auto times = [&](ValueId x, uint32_t factor) { return binary(c, Op::kMul, x, word(factor)); };
  const ValueId place = cast(c, range(c, 0, element_count(shape)), DType::kU32);
  ValueId x = binary(c, Op::kAdd, times(place, 0x9e3779b1u), word(seed));
  x = times(mixed(x, 16), 0x85ebca6bu);
  x = times(mixed(x, 13), 0xc2b2ae35u);
  const ValueId whole = cast(c, moved(mixed(x, 16), 9), DType::kF32);  // 23 bits: with a half all of f32's
  const ValueId middle = binary(c, Op::kAdd, whole, scalar(c, 0.5, DType::kF32));
  return reshape(c, binary(c, Op::kMul, middle, scalar(c, 0x1p-23, DType::kF32)), shape);
}

// The shape and type to draw: of the input, or of the attribute.
template <bool like>
Shape shape_to_draw(OpContext& c) {
  if (like) return shape_of(c, c.input(0));
  const auto sizes = c.attr_ints("shape");
  return Shape(sizes.begin(), sizes.end());
}
template <bool like>
void give_draws(OpContext& c, ValueId draws, double factor, double offset) {
  const ValueId y = binary(c, Op::kAdd, binary(c, Op::kMul, draws, scalar(c, factor, DType::kF32)),
                           scalar(c, offset, DType::kF32));
  const DType type =
      like && !c.has_attr("dtype") ? dtype_of(c, c.input(0)) : dtype_numbered(c.attr_int("dtype", 1));
  if (!is_floating(type)) c.fail("draws numbers of a type other than floating point");
  c.outputs[0] = cast(c, y, type);
}

template <bool like>
void random_uniform(OpContext& c) {
  const double low = c.attr_float("low", 0), high = c.attr_float("high", 1);
  give_draws<like>(c, even_draws(c, shape_to_draw<like>(c), seed_of(c)), high - low, low);
}

template <bool like>
void random_normal(OpContext& c) {  // by Box and Muller
  const Shape shape = shape_to_draw<like>(c);
  const auto real = [&](double value) { return scalar(c, value, DType::kF32); };
  const ValueId log = c.emit(Op::kLog, {even_draws(c, shape, seed_of(c))});
  const ValueId radius = c.emit(Op::kSqrt, {binary(c, Op::kMul, log, real(-2))});
  const ValueId turn = binary(c, Op::kMul, even_draws(c, shape, ~seed_of(c)), real(2 * M_PI));
  give_draws<like>(c, binary(c, Op::kMul, radius, c.emit(Op::kCos, {turn})), c.attr_float("scale", 1),
                   c.attr_float("mean", 0));
}

void bernoulli(OpContext& c) {
  const Shape shape = shape_of(c, c.input(0));  // a copy: new values move what it lies in
  const ValueId x = c.input(0), draws = even_draws(c, shape, seed_of(c));
  const ValueId hit = binary(c, Op::kLess, draws, cast(c, x, DType::kF32));
  c.outputs[0] = cast(c, hit, c.has_attr("dtype") ? dtype_numbered(c.attr_int("dtype", 1)) : dtype_of(c, x));
}

}  // namespace

std::span<const Entry> random_table() {
  static constexpr Entry kTable[] = {
      {kOnnx, "RandomNormal", random_normal<false>},
      {kOnnx, "RandomNormalLike", random_normal<true>},
      {kOnnx, "RandomUniform", random_uniform<false>},
      {kOnnx, "RandomUniformLike", random_uniform<true>},
      {kOnnx, "Bernoulli", bernoulli},
  };
  return kTable;
}

}  // namespace ark::ops
