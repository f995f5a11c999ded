#include "engine/validate/generic_shapes.h"

#include <algorithm>

#include "base/error.h"
#include "base/ir/kernel.h"

namespace ark {
namespace {

// Whether output sizes follow from input sizes and attributes alone.
bool is_static(Op op, std::span<const GenericOperand> inputs) {
  switch (op) {
    case Op::kMatMul:
    case Op::kGather:
    case Op::kConcat:
    case Op::kLayerNorm:
    case Op::kRmsNorm:
    case Op::kSoftmax:
    case Op::kLogSoftmax:
    case Op::kTranspose:
    case Op::kConv:
    case Op::kRotary:
      return true;
    case Op::kReshape:
    case Op::kSlice:
    case Op::kExpand:
    case Op::kSplit:
    case Op::kTile:
    case Op::kReduceSum:
    case Op::kReduceMean:
    case Op::kReduceMax:
    case Op::kReduceMin:
      return std::count_if(inputs.begin(), inputs.end(),
                           [](const auto& i) { return i.dtype != DType::kUndefined; }) == 1;
    default:
      return is_pointwise(op);
  }
}

std::string mismatch(const Kernel& kernel, const Attributes& attributes,
                     std::span<const GenericOperand> inputs, std::span<const GenericOperand> outputs,
                     const SymbolValues& values) {
  std::vector<TensorView> views;
  for (const GenericOperand& in : inputs) {
    TensorView& view = views.emplace_back();
    view.dtype = in.dtype;
    for (const Expr& e : in.shape) view.dims.at(static_cast<std::size_t>(view.rank++)) = e.evaluate(values);
  }
  const std::vector<TensorView> results(outputs.size());  // only their number counts
  const KernelCall call{kernel.op, &attributes, views, results};
  const std::vector<OutputType> types = kernel.shapes(call);
  for (std::size_t i = 0; i < std::min(types.size(), outputs.size()); ++i) {
    if (outputs[i].dtype == DType::kUndefined) continue;
    Dims dims;
    for (const Expr& e : outputs[i].shape) dims.push_back(e.evaluate(values));
    if (types[i].dims != dims || types[i].dtype != outputs[i].dtype)
      return "output " + std::to_string(i) + " is not what the kernel writes";
  }
  return types.size() < outputs.size() ? "more outputs than the kernel writes" : "";
}

}  // namespace

Attributes evaluated(const Attributes& attributes, const SymbolValues& values) {
  Attributes result = attributes;
  result.change_sizes([&](const Expr& e) { return Expr(e.evaluate(values)); });
  return result;
}

std::string check_generic(Op op, const Attributes& attributes, std::span<const GenericOperand> inputs,
                          std::span<const GenericOperand> outputs, const SymbolValues& most) {
  const Kernel* kernel = find_kernel(op);
  if (!kernel) return "no kernel for " + std::string(name_of(op));
  if (!is_static(op, inputs)) return "";
  SymbolValues half = most;
  for (auto& [name, value] : half) value = (value + 1) / 2;
  for (const SymbolValues& values : {most, half}) {
    const std::string problem = mismatch(*kernel, evaluated(attributes, values), inputs, outputs, values);
    if (!problem.empty()) return problem;
  }
  return "";
}

}  // namespace ark
