#include "engine/cuda/pointwise_source.h"

#include <bit>
#include <cmath>
#include <map>
#include <sstream>

#include "base/error.h"

namespace ark::cuda {
namespace {

// $a, $b: registers; $p, $q: parameters. Functions: engine/cuda/bodies/math.h.
const std::map<Op, const char*>& templates() {
  static const std::map<Op, const char*> kAll = {
      {Op::kIdentity, "$a"},
      {Op::kNeg, "-$a"},
      {Op::kAbs, "dev::abs($a)"},
      {Op::kSign, "($a > 0 ? 1.0f : $a < 0 ? -1.0f : $a)"},
      {Op::kReciprocal, "1.0f / $a"},
      {Op::kSqrt, "dev::sqrt($a)"},
      {Op::kRsqrt, "1.0f / dev::sqrt($a)"},
      {Op::kExp, "dev::exp($a)"},
      {Op::kLog, "dev::log($a)"},
      {Op::kSin, "dev::sin($a)"},
      {Op::kCos, "dev::cos($a)"},
      {Op::kTanh, "dev::tanh($a)"},
      {Op::kErf, "dev::erf($a)"},
      {Op::kSigmoid, "sigmoid($a)"},
      {Op::kRelu, "relu($a)"},
      {Op::kSilu, "silu($a)"},
      {Op::kQuickGelu, "$a * sigmoid($p * $a)"},
      {Op::kSoftplus, "softplus($a)"},
      {Op::kSoftsign, "$a / (1.0f + dev::abs($a))"},
      {Op::kElu, "($a > 0 ? $a : $p * (dev::exp($a) - 1.0f))"},
      {Op::kLeakyRelu, "($a < 0 ? $p * $a : $a)"},
      {Op::kThresholdedRelu, "($a > $p ? $a : 0.0f)"},
      {Op::kHardSigmoid, "dev::max(0.0f, dev::min(1.0f, $p * $a + $q))"},
      {Op::kHardSwish, "$a * dev::max(0.0f, dev::min(1.0f, $a / 6.0f + 0.5f))"},
      {Op::kMish, "$a * dev::tanh(softplus($a))"},
      {Op::kClip, "dev::min($q, dev::max($p, $a))"},
      {Op::kFloor, "dev::floor($a)"},
      {Op::kCeil, "dev::ceil($a)"},
      {Op::kRound, "dev::round_even($a)"},
      {Op::kAdd, "$a + $b"},
      {Op::kSub, "$a - $b"},
      {Op::kMul, "$a * $b"},
      {Op::kDiv, "$a / $b"},
      {Op::kPow, "dev::pow($a, $b)"},
      {Op::kMin, "min_nan($a, $b)"},
      {Op::kMax, "max_nan($a, $b)"},
      {Op::kPRelu, "($a < 0 ? $a * $b : $a)"},
  };
  return kAll;
}

// By its bits: exact, also for infinities and NaN.
std::string number(float v) {
  std::ostringstream text;
  text << "dev::as_f32(0x" << std::hex << std::bit_cast<uint32_t>(v) << "u)";
  return text.str();
}

std::string reg(int32_t r) { return "r" + std::to_string(r); }

std::string expression(const PointwiseStep& step) {
  if (step.op == Op::kConstantOfShape) return number(step.p);
  if (step.input != kNone) return "in[" + std::to_string(step.input) + "]";
  std::string form;
  if (step.op == Op::kGelu) {
    form = step.p != 0 ? "gelu_tanh($a)" : "gelu($a)";
  } else if (step.op == Op::kMod) {
    form = step.p != 0 ? "dev::fmod($a, $b)" : "$a - $b * dev::floor($a / $b)";
  } else if (const auto it = templates().find(step.op); it != templates().end()) {
    form = it->second;
  } else {
    throw Error(Code::kUnsupported, "operator " + std::string(ark::name_of(step.op)) +
                                        " has no device code; run with --device cpu");
  }
  std::string text;
  for (std::size_t i = 0; i < form.size(); ++i) {
    if (form[i] != '$') {
      text += form[i];
      continue;
    }
    const char what = form[++i];
    text += what == 'a' ? reg(step.a) : what == 'b' ? reg(step.b) : number(what == 'p' ? step.p : step.q);
  }
  return text;
}

}  // namespace

DeviceVariant pointwise_source(const Variant& variant, std::size_t inputs) {
  std::string body;
  for (std::size_t s = 0; s < variant.pointwise.size(); ++s) {
    body +=
        "    const float " + reg(static_cast<int32_t>(s)) + " = " + expression(variant.pointwise[s]) + ";\n";
  }
  // $N: the case's number, which the caller knows.
  std::string definition =
      "struct Expression$N {\n  static constexpr int kInputs = " + std::to_string(inputs) +
      ";\n  ARK_DEVICE static float apply(const float (&in)[kInputs]) {\n" + body + "    return " +
      reg(static_cast<int32_t>(variant.pointwise.size()) - 1) + ";\n  }\n};\n";
  return {"Pointwise<Expression$N>", std::move(definition)};
}

}  // namespace ark::cuda
