// Matrix products.

#include "base/ir/keys.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

void matmul(OpContext& c) { c.outputs[0] = c.emit(Op::kMatMul, {c.input(0), c.input(1)}); }

// A product, and what Gemm and its kin do to it, as nodes of their own: lowering joins them where it can.
ValueId product(OpContext& c, ValueId a, ValueId b, const Attributes& attributes, double alpha) {
  const ValueId y = c.emit(Op::kMatMul, {a, b}, attributes);
  return alpha == 1 ? y : binary(c, Op::kMul, y, scalar(c, alpha, dtype_of(c, y)));
}

void gemm(OpContext& c) {
  if (c.rank(0) != 2 || c.rank(1) != 2) c.fail("Gemm needs matrices");
  Attributes attributes;
  if (c.attr_int("transA", 0)) attributes.set(key::kTransA, 1);
  if (c.attr_int("transB", 0)) attributes.set(key::kTransB, 1);
  const double alpha = c.attr_float("alpha", 1), beta = c.attr_float("beta", 1);
  c.outputs[0] = product(c, c.input(0), c.input(1), attributes, alpha);
  if (!c.has_input(2) || beta == 0) return;
  const ValueId bias = c.input(2);
  c.outputs[0] = binary(c, Op::kAdd, c.outputs[0],
                        beta == 1 ? bias : binary(c, Op::kMul, bias, scalar(c, beta, dtype_of(c, bias))));
}

// transBatch moves the first axis behind the batch axes: [M, B..., K] -> [B..., M, K].
ValueId batch_first(OpContext& c, ValueId x) {
  std::vector<int64_t> perm;
  const int64_t rank = rank_of(c, x);
  for (int64_t i = 1; i + 1 < rank; ++i) perm.push_back(i);
  perm.push_back(0);
  perm.push_back(rank - 1);
  return rank > 2 ? transpose(c, x, perm) : x;
}

void fused_matmul(OpContext& c) {
  ValueId a = c.input(0), b = c.input(1);
  if (c.attr_int("transBatchA", 0)) a = batch_first(c, a);
  if (c.attr_int("transBatchB", 0)) b = batch_first(c, b);
  Attributes attributes;
  if (c.attr_int("transA", 0) && rank_of(c, a) > 1) attributes.set(key::kTransA, 1);
  if (c.attr_int("transB", 0) && rank_of(c, b) > 1) attributes.set(key::kTransB, 1);
  c.outputs[0] = product(c, a, b, attributes, c.attr_float("alpha", 1));
}

// com.microsoft: Gemm and the activation behind it.
void fused_gemm(OpContext& c) {
  gemm(c);
  const std::string activation = c.attr_string("activation", "");
  if (activation.empty()) return;
  c.outputs[0] = activated(c, c.outputs[0], activation,
                           [&](const std::string& name, std::size_t) -> std::optional<double> {
                             const std::string given = "activation_" + name;
                             return c.has_attr(given) ? std::optional(c.attr_float(given, 0)) : std::nullopt;
                           });
}

void gemm_fast_gelu(OpContext& c) {
  const ValueId y = add_input(c, c.emit(Op::kMatMul, {c.input(0), c.input(1)}), 2);
  c.outputs[0] = c.emit(Op::kGelu, {y}, {{key::kApproximate, "tanh"}});
}

void einsum(OpContext& c) {
  std::vector<ValueId> in;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) in.push_back(c.input(i));
  std::string equation = c.attr_string("equation", "");
  std::erase(equation, ' ');
  c.outputs[0] = c.emit(Op::kEinsum, in, {{key::kEquation, equation}});
}

}  // namespace

std::span<const Entry> product_table() {
  static constexpr Entry kTable[] = {
      {kOnnx, "MatMul", matmul},
      {kOnnx, "Gemm", gemm},
      {kMicrosoft, "FusedMatMul", fused_matmul},
      {kMicrosoft, "TransposeMatMul", fused_matmul},
      {kMicrosoft, "FusedGemm", fused_gemm},
      {kMicrosoft, "GemmFastGelu", gemm_fast_gelu},
      {kOnnx, "Einsum", einsum},
  };
  return kTable;
}

}  // namespace ark::ops
