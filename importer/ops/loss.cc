// Losses, which files that were made for training keep: by gathering each target's score.
#include "base/ir/keys.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

// (scores [N, C, ...], target [N, ...], weights [C]?): minus the target's score, times the weight of its class.
ValueId negative_log_likelihood(OpContext& c, ValueId scores) {
  const Shape shape = shape_of(c, scores), places = shape_of(c, c.input(1));
  if (shape.size() < 2 || places.size() + 1 != shape.size())
    c.fail("the target must have one axis less than the scores");
  const DType type = dtype_of(c, scores);
  ValueId target = cast(c, c.input(1), DType::kI64), ignored = kNoValue;
  if (c.has_attr("ignore_index")) {
    const ValueId index = scalar(c, static_cast<double>(c.attr_int("ignore_index", 0)), DType::kI64);
    ignored = binary(c, Op::kEqual, target, index);
    target = c.emit(Op::kWhere, {ignored, scalar(c, 0, DType::kI64), target});
  }
  Shape with_class = places;
  with_class.insert(with_class.begin() + 1, Expr(1));
  const ValueId found =
      c.emit(Op::kGatherElements, {scores, reshape(c, target, with_class)}, {{key::kAxis, 1}});
  ValueId loss = c.emit(Op::kNeg, {reshape(c, found, places)}), weight = kNoValue;
  if (c.has_input(2)) {
    weight = c.emit(Op::kGather, {c.inputs[2], target}, {{key::kAxis, 0}});
    loss = binary(c, Op::kMul, loss, weight);
  }
  const ValueId zero = scalar(c, 0, type);
  if (ignored != kNoValue) {
    if (weight == kNoValue) weight = scalar(c, 1, type);
    weight = c.emit(Op::kWhere, {ignored, zero, weight});
    loss = c.emit(Op::kWhere, {ignored, zero, loss});
  }
  const std::string reduction = c.attr_word("reduction", {"mean", "none", "sum"});
  const auto total = [&](Op op, ValueId x) { return c.emit(op, {x}, {{key::kKeepdims, 0}}); };
  if (reduction == "none") return loss;
  if (reduction == "sum") return total(Op::kReduceSum, loss);
  if (weight == kNoValue) return total(Op::kReduceMean, loss);
  return binary(c, Op::kDiv, total(Op::kReduceSum, loss), total(Op::kReduceSum, weight));
}

void nll_loss(OpContext& c) { c.outputs[0] = negative_log_likelihood(c, c.input(0)); }

void softmax_cross_entropy(OpContext& c) {
  if (c.rank(0) < 2) c.fail("the scores must have rank 2 or more");
  c.outputs[1] = c.emit(Op::kLogSoftmax, {c.input(0)}, {{key::kAxis, 1}});
  c.outputs[0] = negative_log_likelihood(c, c.outputs[1]);
}

}  // namespace

std::span<const Entry> loss_table() {
  static constexpr Entry kTable[] = {
      {kOnnx, "NegativeLogLikelihoodLoss", nll_loss},
      {kOnnx, "SoftmaxCrossEntropyLoss", softmax_cross_entropy},
  };
  return kTable;
}

}  // namespace ark::ops
