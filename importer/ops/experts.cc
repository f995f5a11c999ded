// com.microsoft MoE and QMoE: a router's best experts of each token, their gated products, the sum by their shares.
#include <limits>

#include "base/ir/keys.h"
#include "base/ir/quantized.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

// Where MoE and QMoE have their operands; those of the first, second and third product.
struct Places {
  std::size_t weights[3], biases[3];
  std::size_t scales[3] = {}, zeros[3] = {};  // QMoE
};
constexpr Places kReals{{2, 4, 6}, {3, 5, 7}};
constexpr Places kCodes{{2, 5, 8}, {4, 7, 10}, {3, 6, 9}, {11, 12, 13}};

struct Sizes {
  int64_t experts, hidden, inner;
};

// The weights of one product: of all experts, one below the other.
struct Stack {
  ConstantPtr weights, scales, zeros;  // codes, if there are scales
  int64_t bits = 0, block = 0;
  int64_t experts, rows, columns;  // of one expert
};

ConstantPtr constant_of(OpContext& c, std::size_t i, const char* what) {
  ConstantPtr constant = c.graph.value(c.input(i)).constant;
  if (!constant) c.unsupported(std::string(what) + " that are no constant");
  return constant;
}

void check_dims(OpContext& c, const Constant& constant, const Dims& wanted, const char* what) {
  if (constant.dims == wanted) return;
  const auto text = [](const Dims& dims) { return str(Shape(dims.begin(), dims.end())); };
  c.fail(std::string(what) + " of shape " + text(constant.dims) + " where the others ask for " +
         text(wanted));
}

ConstantPtr with_dims(const ConstantPtr& constant, const Dims& dims) {
  if (ConstantPtr view = reshaped(constant, dims)) return view;
  Tensor dense = materialise(*constant);
  dense.dims = dims;
  return make_constant(std::move(dense), constant->name);
}

// Zero points as numbers of their own; bytes are filled up at the end of each row.
ConstantPtr unpacked_zeros(OpContext& c, std::size_t i, int64_t bits, const Dims& places) {
  ConstantPtr zeros = constant_of(c, i, "zero points");
  Dims packed = places;
  packed.back() = (packed.back() * bits + 7) / 8;
  check_dims(c, *zeros, packed, "zero points");
  if (zeros->dtype != DType::kU8) c.unsupported("zero points of type " + std::string(name_of(zeros->dtype)));
  if (bits == 8) return zeros;
  zeros = as_packed(zeros, DType::kU4);
  if (!zeros) c.unsupported("zero points that are a view of others");
  return make_constant(materialise(*sliced(zeros, static_cast<int64_t>(places.size()) - 1, 0, places.back())),
                       zeros->name);
}

Stack stack_of(OpContext& c, const Places& places, std::size_t product, const Sizes& sizes, int64_t rows,
               int64_t columns) {
  static constexpr const char* kBits[] = {"fc1_expert_weight_bits", "fc2_expert_weight_bits",
                                          "fc3_expert_weight_bits"};
  Stack s{.weights = constant_of(c, places.weights[product], "weights"),
          .experts = sizes.experts,
          .rows = rows,
          .columns = columns};
  Dims dims{sizes.experts, rows, columns};
  if (places.scales[product] == 0) {
    check_dims(c, *s.weights, dims, "weights");
    return s;
  }
  s.bits = c.attr_int(kBits[product], c.attr_int("expert_weight_bits", 4));
  if (s.bits != 4 && s.bits != 8)
    c.unsupported(std::to_string(s.bits) + "-bit weights of experts; ark reads those of 4 and 8 bits");
  if (columns % (8 / s.bits) != 0)
    c.fail("rows of " + std::to_string(columns) + " weights do not fill bytes");
  dims[2] = columns * s.bits / 8;
  check_dims(c, *s.weights, dims, "weights");
  s.block = c.attr_int("block_size", 0);
  if (s.block != 0 && (s.block < 16 || (s.block & (s.block - 1)) != 0 || columns % s.block != 0))
    c.fail("block_size " + std::to_string(s.block) + " is no power of two from 16 on that divides " +
           std::to_string(columns));
  Dims blocks{sizes.experts, rows};
  if (s.block != 0) blocks.push_back(columns / s.block);
  s.scales = constant_of(c, places.scales[product], "scales");
  check_dims(c, *s.scales, blocks, "scales");
  if (c.has_input(places.zeros[product])) s.zeros = unpacked_zeros(c, places.zeros[product], s.bits, blocks);
  if (s.block == 0) s.block = columns;
  return s;
}

// All weights as a matrix of `per_row` rows of the stack side by side.
ConstantPtr matrix_of(OpContext& c, const Stack& s, int64_t per_row) {
  const int64_t rows = s.experts * s.rows / per_row, columns = s.columns * per_row;
  if (!s.scales) return with_dims(s.weights, {rows, columns});
  ConstantPtr w = make_quantized({.rows = rows,
                                  .columns = columns,
                                  .bits = static_cast<int32_t>(s.bits),
                                  .block = s.block,
                                  .codes = s.weights,
                                  .code_stride = columns,
                                  .scales = s.scales,
                                  .zeros = s.zeros,
                                  .zero_stride = columns / s.block,
                                  .default_zero = 1 << (s.bits - 1)},
                                 s.weights->name);
  if (!w) c.unsupported("weights and scales of these types");
  return w;
}

// Part `part` of `parts` of each expert's rows: every parts-th one, or neighbours.
std::vector<ValueId> matrices(OpContext& c, const Stack& s, int64_t part, int64_t parts, bool interleaved) {
  const ConstantPtr all = matrix_of(c, s, interleaved ? parts : 1);
  const int64_t rows = s.rows / parts, step = interleaved ? rows : s.rows,
                first = interleaved ? 0 : part * rows, column = interleaved ? part * s.columns : 0;
  std::vector<ValueId> result;
  for (int64_t e = 0; e < s.experts; ++e) {
    const ConstantPtr own = sliced(all, 0, e * step + first, e * step + first + rows);
    result.push_back(c.graph.add_constant(sliced(own, 1, column, column + s.columns)));
  }
  return result;
}

// The same of the biases [E, rows], f32; kNoValue without.
ValueId biases(OpContext& c, std::size_t i, int64_t experts, int64_t rows, int64_t part, int64_t parts,
               bool interleaved) {
  if (!c.has_input(i)) return kNoValue;
  const ConstantPtr all = constant_of(c, i, "biases");
  check_dims(c, *all, {experts, rows}, "biases");
  const Tensor from = materialise(*all);
  const int64_t own = rows / parts;
  Tensor to = Tensor::empty(DType::kF32, {experts, own});
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t r = 0; r < own; ++r)
      to.as<float>()[e * own + r] =
          static_cast<float>(from.real(e * rows + (interleaved ? r * parts + part : part * own + r)));
  return c.graph.add_constant(make_constant(std::move(to), all->name));
}

struct Routing {
  ValueId experts, shares;  // [..., k]
};

Routing route(OpContext& c, bool quantized, ValueId scores, ValueId weights, const Sizes& sizes) {
  if (c.attr_int("use_sparse_mixer", 0)) c.unsupported("use_sparse_mixer; export with plain top-k routing");
  const int64_t k = c.attr_int("k", 1), axis = rank_of(c, scores) - 1;
  if (k < 1 || k > sizes.experts)
    c.fail("k is " + std::to_string(k) + ", of " + std::to_string(sizes.experts) + " experts");
  const bool normalize = c.attr_int("normalize_routing_weights", 0) != 0;
  const auto softmax = [&](ValueId x) { return c.emit(Op::kSoftmax, {x}, {{key::kAxis, axis}}); };
  // QMoE's shares always are those of the chosen experts alone.
  const bool of_all = !normalize && !quantized;
  const auto best = c.emit_many(
      Op::kTopK, {of_all ? softmax(scores) : scores},
      {{key::kAxis, axis}, {key::kLargest, 1}, {key::kSorted, 1}, {key::kTopK, Shape{Expr(k)}}}, 2);
  if (weights == kNoValue) return {best[1], of_all ? best[0] : softmax(best[0])};
  const ValueId shares = c.emit(Op::kGatherElements, {weights, best[1]}, {{key::kAxis, axis}});
  if (!normalize) return {best[1], shares};
  const ValueId sum =
      c.emit(Op::kReduceSum, {shares}, {{key::kAxes, std::vector<int64_t>{axis}}, {key::kKeepdims, 1}});
  return {best[1], binary(c, Op::kDiv, shares, sum)};
}

ValueId clipped(OpContext& c, ValueId x, double least, double most) {
  if (std::isinf(most)) return x;
  return c.emit(Op::kClip, {x, std::isinf(least) ? kNoValue : scalar(c, least, DType::kF32),
                            scalar(c, most, DType::kF32)});
}

// What becomes of the first product `g` and of the one beside it, `l`, if there is one.
ValueId activation(OpContext& c, const std::string& name, ValueId g, ValueId l) {
  if (name == "swiglu") {
    const double limit = c.attr_float("swiglu_limit", std::numeric_limits<double>::infinity()),
                 alpha = c.attr_float("activation_alpha", 1), beta = c.attr_float("activation_beta", 0);
    if (!(limit > 0)) c.fail("swiglu_limit must be positive");
    g = clipped(c, g, -std::numeric_limits<double>::infinity(), limit);
    g = alpha == 1 ? c.emit(Op::kSilu, {g}) : c.emit(Op::kQuickGelu, {g}, {{key::kAlpha, alpha}});
    l = clipped(c, l, -limit, limit);
    return binary(c, Op::kMul, g, beta == 0 ? l : binary(c, Op::kAdd, l, scalar(c, beta, DType::kF32)));
  }
  if (name == "relu") g = c.emit(Op::kRelu, {g});
  if (name == "silu") g = c.emit(Op::kSilu, {g});
  if (name == "gelu") g = c.emit(Op::kGelu, {g}, {{key::kApproximate, "tanh"}});
  return l == kNoValue ? g : binary(c, Op::kMul, g, l);
}

struct Product {
  std::vector<ValueId> matrices;
  ValueId bias;
};

// [..., k, N] of x [..., K].
ValueId multiply(OpContext& c, ValueId x, ValueId experts, const Product& product) {
  std::vector<ValueId> in{x, experts, kNoValue};
  in.insert(in.end(), product.matrices.begin(), product.matrices.end());
  const ValueId y = c.emit(Op::kExpertMatMul, in);
  if (product.bias == kNoValue) return y;
  return binary(c, Op::kAdd, y, c.emit(Op::kGather, {product.bias, experts}, {{key::kAxis, 0}}));
}

// The sum of [..., k, K] by shares.
ValueId combine(OpContext& c, ValueId x, const Routing& routing, const Product& product) {
  std::vector<ValueId> in{x, routing.experts, routing.shares};
  in.insert(in.end(), product.matrices.begin(), product.matrices.end());
  const ValueId y = c.emit(Op::kExpertMatMul, in);
  if (product.bias == kNoValue) return y;
  Shape column = shape_of(c, routing.shares);
  const auto slots = static_cast<int64_t>(column.size()) - 1;
  column.emplace_back(1);
  const ValueId own = c.emit(Op::kGather, {product.bias, routing.experts}, {{key::kAxis, 0}});
  const ValueId shared = binary(c, Op::kMul, own, reshape(c, routing.shares, column));
  return binary(
      c, Op::kAdd, y,
      c.emit(Op::kReduceSum, {shared}, {{key::kAxes, std::vector<int64_t>{slots}}, {key::kKeepdims, 0}}));
}

Sizes sizes_of(OpContext& c, const Places& places) {
  constexpr int64_t kMostExperts = 4096;
  const Sizes s{constant_dim(c, c.input(1), static_cast<std::size_t>(c.rank(1)) - 1, "the router's output"),
                constant_dim(c, c.input(0), static_cast<std::size_t>(c.rank(0)) - 1, "the input"),
                constant_dim(c, c.input(places.weights[0]), 1, "the first product")};
  if (s.experts < 1 || s.experts > kMostExperts)
    c.fail(std::to_string(s.experts) + " experts; ark runs 1 to " + std::to_string(kMostExperts));
  if (s.hidden < 1 || s.inner < 1) c.fail("experts without weights");
  return s;
}

void experts(OpContext& c, bool quantized) {
  const Places& places = quantized ? kCodes : kReals;
  if (c.rank(0) < 2 || c.rank(1) != 2) c.fail("needs rows of tokens, and a router's output of rank 2");
  Sizes sizes = sizes_of(c, places);
  const std::string name = c.attr_word("activation_type", {"relu", "gelu", "silu", "swiglu", "identity"});
  const int64_t fusion = c.attr_int("swiglu_fusion", 0);
  if (fusion < 0 || fusion > 2) c.fail("swiglu_fusion is 0, 1 or 2");
  const bool fused = name == "swiglu" && fusion != 0, beside = c.has_input(places.weights[2]);
  if (name == "swiglu" && fused == beside)
    c.fail("swiglu needs its second factor either in the first product or as a third one");
  if (fused && sizes.inner % 2 != 0) c.fail("a fused product has an odd number of rows");
  const int64_t rows = sizes.inner, parts = fused ? 2 : 1;
  sizes.inner /= parts;
  const auto product = [&](std::size_t i, int64_t n, int64_t k, int64_t part, int64_t of) {
    return Product{matrices(c, stack_of(c, places, i, sizes, n, k), part, of, fusion == 1),
                   biases(c, places.biases[i], sizes.experts, n, part, of, fusion == 1)};
  };
  // Rounded once, at the end: types of 16 bits say how numbers are stored.
  const DType type = dtype_of(c, c.input(0));
  const ValueId x = cast(c, c.input(0), DType::kF32);
  Shape lead = shape_of(c, x);
  lead.back() = sizes.experts;
  const auto by_token = [&](std::size_t i) { return reshape(c, cast(c, c.input(i), DType::kF32), lead); };
  const bool weighed = quantized && c.has_input(14);
  const Routing routing = route(c, quantized, by_token(1), weighed ? by_token(14) : kNoValue, sizes);
  const ValueId g = multiply(c, x, routing.experts, product(0, rows, sizes.hidden, 0, parts));
  ValueId l = kNoValue;
  if (fused) l = multiply(c, x, routing.experts, product(0, rows, sizes.hidden, 1, parts));
  if (beside && !fused) l = multiply(c, x, routing.experts, product(2, rows, sizes.hidden, 0, 1));
  const ValueId h = activation(c, name, g, l);
  c.outputs[0] = cast(c, combine(c, h, routing, product(1, sizes.hidden, sizes.inner, 0, 1)), type);
}

void moe(OpContext& c) { experts(c, false); }

void qmoe(OpContext& c) {
  if (const std::string type = c.attr_string("quant_type", "int"); type != "int")
    c.unsupported("quant_type '" + type.substr(0, 40) + "'; ark reads integer codes");
  if (c.attr_int("weights_prepacked", -1) == 1)
    c.unsupported("weights packed for one device (weights_prepacked 1); export with 0");
  for (std::size_t i = 15; i < c.inputs.size(); ++i)
    if (c.has_input(i)) c.unsupported("scales of whole experts or of activations; ark reads integer codes");
  experts(c, true);
}

}  // namespace

std::span<const Entry> experts_table() {
  static constexpr Entry kTable[] = {{kMicrosoft, "MoE", moe}, {kMicrosoft, "QMoE", qmoe}};
  return kTable;
}

}  // namespace ark::ops
