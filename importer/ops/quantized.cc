// Quantization: QDQ, dynamic int8, weight-only int4 and int8.
#include "base/ir/quantized.h"

#include <algorithm>

#include "base/ir/keys.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {

ValueId scaled_product(OpContext& c, ValueId a, ValueId a_zero, ValueId a_scale, std::size_t b,
                       std::size_t b_scale, std::size_t b_zero) {
  const ValueId product =
      c.emit(Op::kMatMulInteger, {a, c.input(b), a_zero, c.has_input(b_zero) ? c.inputs[b_zero] : kNoValue});
  return binary(c, Op::kMul, cast(c, product, DType::kF32), binary(c, Op::kMul, a_scale, c.input(b_scale)));
}

namespace {

DType requested(OpContext& c, const char* name, DType fallback) {
  const int64_t number = c.attr_int(name, 0);
  if (number == 0) return fallback;
  const DType type = dtype_numbered(number);
  if (bits_of(type) == 0) c.unsupported("element type " + std::to_string(number));
  return type;
}

// `axis` counts only where scales are a vector or blocked; it is 1 by default, even for a rank of 1.
Attributes scaling(OpContext& c) {
  const int64_t rank = c.rank(0);
  const bool scalar_scale =
      rank_of(c, c.input(1)) == 0 || element_count(shape_of(c, c.input(1))).is_constant(1);
  int64_t axis = c.attr_int("axis", 1);
  if (scalar_scale && rank_of(c, c.input(1)) <= 1)
    axis = 0;
  else
    axis = c.axis(axis, static_cast<int>(rank));
  return {{key::kAxis, axis}, {key::kBlockSize, c.attr_int("block_size", 0)}};
}

std::vector<ValueId> with_zero_point(OpContext& c) {
  std::vector<ValueId> in{c.input(0), c.input(1)};
  if (c.has_input(2)) in.push_back(c.inputs[2]);
  return in;
}

void quantize(OpContext& c) {
  Attributes attributes = scaling(c);
  attributes.set(key::kTo, static_cast<int64_t>(requested(c, "output_dtype", DType::kU8)));
  c.outputs[0] = c.emit(Op::kQuantizeLinear, with_zero_point(c), attributes);
}

void dequantize(OpContext& c) {
  Attributes attributes = scaling(c);
  attributes.set(key::kTo, static_cast<int64_t>(requested(c, "output_dtype", dtype_of(c, c.input(1)))));
  c.outputs[0] = c.emit(Op::kDequantizeLinear, with_zero_point(c), attributes);
}

void dynamic_quantize(OpContext& c) {
  const auto results = c.emit_many(Op::kDynamicQuantizeLinear, {c.input(0)}, {}, 3);
  for (std::size_t i = 0; i < 3 && i < c.outputs.size(); ++i) c.outputs[i] = results[i];
}

void matmul_integer(OpContext& c) {
  std::vector<ValueId> in{c.input(0), c.input(1)};
  for (std::size_t i = 2; i < 4; ++i) in.push_back(c.has_input(i) ? c.inputs[i] : kNoValue);
  c.outputs[0] = c.emit(Op::kMatMulInteger, in);
}

// com.microsoft: (a, b, scales, zero_points?, g_idx?, bias?)
void matmul_nbits(OpContext& c) {
  const int64_t bits = c.attr_int("bits", 4), block = c.attr_int("block_size", 0);
  if (bits != 4 && bits != 8 && bits != 2) c.unsupported(std::to_string(bits) + "-bit weights");
  if (block < 16 || (block & (block - 1)) != 0) c.fail("block_size must be a power of two, 16 at least");
  if (c.attr_int("weight_prepacked", 0)) c.unsupported("weights that were packed for another program");
  if (c.attr_int("K", 0) <= 0 || c.attr_int("N", 0) <= 0) c.fail("K and N must be positive");
  std::vector<ValueId> in{c.input(0), c.input(1), c.input(2)};
  for (std::size_t i = 3; i < 6; ++i) in.push_back(c.has_input(i) ? c.inputs[i] : kNoValue);
  while (in.back() == kNoValue) in.pop_back();
  constexpr int64_t kMost = int64_t{1} << 40;  // far beyond any matrix; sums of such sizes are safe
  if (block > kMost || c.attr_int("K", 0) > kMost || c.attr_int("N", 0) > kMost)
    c.fail("block_size, K or N is larger than 2^40");
  Attributes attributes{{key::kK, c.attr_int("K", 0)},
                        {key::kN, c.attr_int("N", 0)},
                        {key::kBits, bits},
                        {key::kBlockSize, block}};
  if (const int64_t level = std::clamp<int64_t>(c.attr_int("accuracy_level", 0), 0, 4); level != 0)
    attributes.set(key::kAccuracyLevel, level);
  c.outputs[0] = c.emit(Op::kMatMulNBits, in, attributes);
  const ConstantPtr places = c.has_input(4) ? c.graph.value(c.inputs[4]).constant : nullptr;
  if (!places) return;
  const int64_t blocks = (c.attr_int("K", 0) - 1) / block + 1;
  const Tensor t = materialise(*places);
  for (int64_t i = 0; i < std::min(t.size(), c.attr_int("K", 0)); ++i)
    if (t.integer(i) < 0 || t.integer(i) >= blocks)
      c.fail("g_idx names block " + std::to_string(t.integer(i)) + " of " + std::to_string(blocks));
}

// com.microsoft: (a, b u8, largest of each block): a product with [N, K], blocks of the elements one behind the other.
void matmul_bnb4(OpContext& c) {
  const int64_t k = c.attr_int("K", 0), n = c.attr_int("N", 0), block = c.attr_int("block_size", 0),
                kind = c.attr_int("quant_type", 0);
  if (kind != 0 && kind != 1) c.unsupported("quant_type " + std::to_string(kind) + "; 0 is FP4, 1 is NF4");
  if (c.attr_int("transB", 1) != 1) c.unsupported("transB 0");
  if (block < 16 || (block & (block - 1)) != 0) c.fail("block_size must be a power of two, 16 at least");
  const ConstantPtr codes = c.graph.value(c.input(1)).constant, scales = c.graph.value(c.input(2)).constant;
  if (!codes || !scales) c.unsupported("weights that are no constants");
  if (k <= 0 || n <= 0 || n > 2 * codes->size() / k || scales->size() != (n * k - 1) / block + 1)
    c.fail(std::to_string(codes->size()) + " bytes and " + std::to_string(scales->size()) +
           " scales are not those of K " + std::to_string(k) + ", N " + std::to_string(n) +
           " and block_size " + std::to_string(block));
  const bool whole = k % block == 0;  // blocks in each row; else they are cut as one row
  ConstantPtr w = make_quantized({.rows = whole ? n : 1,
                                  .columns = whole ? k : n * k,
                                  .floating = kind == 0 ? DType::kFP4 : DType::kNF4,
                                  .block = block,
                                  .codes = codes,
                                  .code_stride = whole ? k : n * k,
                                  .scales = scales},
                                 codes->name);
  if (!w) c.unsupported("weights of these types");
  if (!whole) {
    Tensor dense = materialise(*w);
    dense.dims = {n, k};
    w = make_constant(std::move(dense), codes->name);
  }
  const DType type = dtype_of(c, c.input(0));
  const ValueId y =
      c.emit(Op::kMatMul, {cast(c, c.input(0), DType::kF32), c.graph.add_constant(w)}, {{key::kTransB, 1}});
  c.outputs[0] = cast(c, y, type);
}

// Several codes a byte, the first in the low bits, as elements of their own; the last axis is `size` long.
ValueId unpacked(OpContext& c, std::size_t i, DType type, const Expr& size) {
  const ConstantPtr packed = c.graph.value(c.input(i)).constant;
  const ConstantPtr codes = packed ? as_packed(packed, type) : nullptr;
  if (!codes) c.unsupported("packed codes that are no constant");
  const auto last = static_cast<int64_t>(codes->dims.size()) - 1;
  if (!size.constant() || *size.constant() > codes->dims.back())
    c.fail("has " + std::to_string(codes->dims.back()) + " zero points a row for " + size.str() + " scales");
  return slice_axis(c, c.graph.add_constant(codes), last, 0, size);
}

// com.microsoft: (data, indices, scales, zero_points?): rows of a quantized table. 4 bits lie in tensors of
// their type, or packed in bytes along the last axis, as 2 bits do.
void gather_block_quantized(OpContext& c) {
  const int64_t bits = c.attr_int("bits", 4), block = c.attr_int("block_size", 128), rank = c.rank(0);
  const bool bytes = dtype_of(c, c.input(0)) == DType::kU8, packed = bytes && bits < 8;
  if (bits_of(dtype_of(c, c.input(0))) > 8 || !is_integer(dtype_of(c, c.input(0))))
    c.unsupported("codes of type " + std::string(name_of(dtype_of(c, c.input(0)))));
  if (bytes && bits != 2 && bits != 4 && bits != 8)
    c.unsupported(std::to_string(bits) + "-bit codes; ark reads tables of 2, 4 and 8 bits");
  const DType type = bits == 2 ? DType::kU2 : DType::kU4;
  if (block < 16 || (block & (block - 1)) != 0) c.fail("block_size must be a power of two, 16 at least");
  const int64_t along = c.axis(c.attr_int("quantize_axis", 1), static_cast<int>(rank)),
                axis = c.axis(c.attr_int("gather_axis", 0), static_cast<int>(rank));
  const Shape scales = shape_of(c, c.input(2));
  if (static_cast<int64_t>(scales.size()) != rank) c.fail("scales have another rank than the data");
  ValueId data = c.input(0);
  if (packed) {
    const Shape& stored = shape_of(c, data);
    data = unpacked(c, 0, type, stored.back() * (8 / bits));
  }
  std::vector<ValueId> in{data, c.input(2)};
  if (c.has_input(3)) in.push_back(packed ? unpacked(c, 3, type, scales.back()) : c.inputs[3]);
  const ValueId table = c.emit(Op::kDequantizeLinear, in,
                               {{key::kAxis, along},
                                {key::kBlockSize, block},
                                {key::kZeroPoint, bytes ? int64_t{1} << (bits - 1) : int64_t{0}},
                                {key::kTo, static_cast<int64_t>(dtype_of(c, c.input(2)))}});
  c.outputs[0] = c.emit(Op::kGather, {table, c.input(1)}, {{key::kAxis, axis}});
}

// com.microsoft: (a, b, a_scale, b_scale, a_zero?, b_zero?, bias?)
void matmul_integer_to_float(OpContext& c) {
  const ValueId zero = c.has_input(4) ? c.inputs[4] : kNoValue;
  c.outputs[0] = add_input(c, scaled_product(c, c.input(0), zero, c.input(2), 1, 3, 5), 6);
}

// com.microsoft: (a f32, b, b_scale, b_zero?, bias?)
void dynamic_quantize_matmul(OpContext& c) {
  const auto a = c.emit_many(Op::kDynamicQuantizeLinear, {c.input(0)}, {}, 3);
  c.outputs[0] = add_input(c, scaled_product(c, a[0], a[2], a[1], 1, 2, 3), 4);
}

}  // namespace

std::span<const Entry> quantized_table() {
  static constexpr Entry kTable[] = {
      {kOnnx, "QuantizeLinear", quantize},
      {kMicrosoft, "QuantizeLinear", quantize},
      {kOnnx, "DequantizeLinear", dequantize},
      {kMicrosoft, "DequantizeLinear", dequantize},
      {kOnnx, "DynamicQuantizeLinear", dynamic_quantize},
      {kOnnx, "MatMulInteger", matmul_integer},
      {kMicrosoft, "MatMulNBits", matmul_nbits},
      {kMicrosoft, "MatMulBnb4", matmul_bnb4},
      {kMicrosoft, "GatherBlockQuantized", gather_block_quantized},
      {kMicrosoft, "MatMulIntegerToFloat", matmul_integer_to_float},
      {kMicrosoft, "DynamicQuantizeMatMul", dynamic_quantize_matmul},
  };
  return kTable;
}

}  // namespace ark::ops
