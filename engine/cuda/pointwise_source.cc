#include "engine/cuda/pointwise_source.h"

#include <bit>
#include <sstream>

#include "base/error.h"
#include "base/ir/pointwise_host.h"

namespace ark::cuda {
namespace {

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
  const pointwise::Row* row = pointwise::row_of(step.op);
  if (!row || !pointwise::is_fusible(*row))
    throw Error(Code::kUnsupported, "operator " + std::string(ark::name_of(step.op)) +
                                        " has no device code; run with --device cpu");
  std::string text = "pointwise::" + std::string(row->name) + "::of(" + reg(step.a);
  if (pointwise::operands_of(*row) == 2) text += ", " + reg(step.b);
  for (int i = 0; i < pointwise::parameters_of(*row); ++i) text += ", " + number(i == 0 ? step.p : step.q);
  return text + ")";
}

}  // namespace

DeviceVariant pointwise_source(const Variant& variant, std::size_t inputs) {
  std::string body;
  for (std::size_t s = 0; s < variant.pointwise.size(); ++s) {
    body +=
        "    const Number " + reg(static_cast<int32_t>(s)) + " = " + expression(variant.pointwise[s]) + ";\n";
  }
  // $N: the case's number, which the caller knows.
  std::string definition =
      "struct Expression$N {\n  static constexpr int kInputs = " + std::to_string(inputs) +
      ";\n  ARK_DEVICE static float apply(const float (&in)[kInputs]) {\n" + body + "    return " +
      reg(static_cast<int32_t>(variant.pointwise.size()) - 1) + ".v;\n  }\n};\n";
  return {"Pointwise<Expression$N>", std::move(definition)};
}

}  // namespace ark::cuda
