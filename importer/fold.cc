#include "importer/fold.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/ir/kernel.h"
#include "base/ir/keys.h"

namespace ark {
namespace {

constexpr int64_t kMostElements = 64'000'000;  // of all results of one node, and multiply-adds of one product

// Whether the operator means something on these numbers. What does not (or what each runtime does its own way) is
// left in the graph: it may be dead.
bool is_defined(const Node& node, const std::vector<Tensor>& in) {
  const auto every = [](const Tensor& t, auto&& is) {
    for (int64_t i = 0; i < t.size(); ++i)
      if (!is(i)) return false;
    return true;
  };
  switch (node.op) {
    case Op::kDiv:
    case Op::kMod:
      return is_floating(in[0].dtype) || every(in[1], [&](int64_t i) { return in[1].integer(i) != 0; });
    case Op::kPow:
      return is_floating(in[0].dtype) || !is_floating(in[1].dtype);
    case Op::kCast: {
      const auto to = static_cast<DType>(node.attributes.get(key::kTo));
      return !is_floating(in[0].dtype) || !is_integer(to) ||
             every(in[0], [&](int64_t i) { return std::fabs(in[0].real(i)) < 9.2e18; });
    }
    default:
      return true;
  }
}

void run_tiles(const Kernel& kernel, const KernelCall& call) {
  const int64_t tiles = kernel.grid(call);
  for (int64_t tile = 0; tile < tiles; ++tile) kernel.tile(call, tile);
}

Tensor converted(const Tensor& x, DType to) {
  Tensor y = Tensor::zeros(to, x.dims);
  const Attributes attributes{{key::kTo, static_cast<int64_t>(to)}};
  const TensorView in = view_of(x), out = view_of(y);
  run_tiles(*find_kernel(Op::kCast), {Op::kCast, &attributes, {&in, 1}, {&out, 1}});
  return y;
}

// Runs `kernel` over tensors of its own making; nullopt if they would be too large.
std::optional<std::vector<Tensor>> run(const Kernel& kernel, KernelCall call,
                                       const std::vector<DType>& dtypes, int64_t most) {
  std::vector<TensorView> outputs(dtypes.size());
  call.outputs = outputs;
  const std::vector<OutputType> types = kernel.shapes(call);
  if (types.size() < dtypes.size()) return std::nullopt;
  int64_t elements = 0;
  for (std::size_t i = 0; i < dtypes.size(); ++i) {
    elements = std::min(most, element_count(types[i].dims)) + elements;
    if (elements >= most) return std::nullopt;
  }
  if (call.op == Op::kMatMul && !call.inputs[0].shape().empty()) {
    const TensorView& a = call.inputs[0];
    const bool turned = a.rank > 1 && call.attributes->get_or(key::kTransA, 0);
    const int64_t depth = a.dims[a.rank - (turned ? 2 : 1)];
    if (depth > 0 && elements > kMostElements / depth) return std::nullopt;
  }
  std::vector<Tensor> results;
  for (std::size_t i = 0; i < dtypes.size(); ++i) {
    results.push_back(Tensor::zeros(types[i].dtype, types[i].dims));
    outputs[i] = view_of(results[i]);
  }
  run_tiles(kernel, call);
  for (std::size_t i = 0; i < dtypes.size(); ++i)
    if (dtypes[i] != DType::kUndefined && dtypes[i] != results[i].dtype)
      results[i] = converted(results[i], dtypes[i]);
  return results;
}

}  // namespace

bool can_evaluate(Op op) {
  return is_unary_pointwise(op) || is_binary_pointwise(op) || is_movement(op) || is_reduction(op) ||
         is_one_of(op,
                   {Op::kWhere, Op::kClip, Op::kDims, Op::kConstantOfShape, Op::kRange, Op::kPad, Op::kTrilu,
                    Op::kEyeLike, Op::kGatherElements, Op::kGatherND, Op::kScatterElements, Op::kScatterND,
                    Op::kOneHot, Op::kNonZero, Op::kCumSum, Op::kMatMul, Op::kDequantizeLinear});
}

std::optional<std::vector<Tensor>> evaluate(const Node& node, const std::vector<Tensor>& inputs,
                                            const std::vector<DType>& dtypes, int64_t most) {
  const auto is_string = [](DType t) { return t == DType::kString; };
  if (!can_evaluate(node.op) || node.attributes.has_symbols() ||
      std::any_of(dtypes.begin(), dtypes.end(), is_string) ||
      std::any_of(inputs.begin(), inputs.end(), [&](const Tensor& t) { return is_string(t.dtype); }) ||
      !is_defined(node, inputs))
    return std::nullopt;
  std::vector<TensorView> views;
  try {
    for (const Tensor& t : inputs) views.push_back(t.dtype == DType::kUndefined ? TensorView{} : view_of(t));
    return run(*find_kernel(node.op), {node.op, &node.attributes, views, {}}, dtypes,
               std::min(most, kMostElements));
  } catch (const Error& error) {
    if (error.code() == Code::kUnsupported) return std::nullopt;
    throw Error(Code::kBadModel, "node " + escaped(node.name) + ": " + error.what());
  }
}

}  // namespace ark
