#include "base/ir/ops.h"

#include <array>
#include <map>

namespace ark {
namespace {

constexpr std::size_t kOps = static_cast<std::size_t>(Op::kCount);

// In the order of the enum: the size of the array and the test of names keep them together.
constexpr std::array<std::string_view, kOps> kNames = {
    "Identity",
    "Neg",
    "Abs",
    "Sign",
    "Reciprocal",
    "Sqrt",
    "Rsqrt",
    "Exp",
    "Log",
    "Sin",
    "Cos",
    "Tan",
    "Asin",
    "Acos",
    "Atan",
    "Sinh",
    "Cosh",
    "Tanh",
    "Asinh",
    "Acosh",
    "Atanh",
    "Erf",
    "Sigmoid",
    "Relu",
    "Silu",
    "Softplus",
    "Softsign",
    "Selu",
    "Elu",
    "Celu",
    "LeakyRelu",
    "ThresholdedRelu",
    "HardSigmoid",
    "HardSwish",
    "Mish",
    "Gelu",
    "QuickGelu",
    "Floor",
    "Ceil",
    "Round",
    "Not",
    "BitNot",
    "IsNaN",
    "IsInf",
    "Cast",
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Mod",
    "Pow",
    "Min",
    "Max",
    "And",
    "Or",
    "Xor",
    "BitAnd",
    "BitOr",
    "BitXor",
    "BitShift",
    "Equal",
    "Less",
    "LessOrEqual",
    "Greater",
    "GreaterOrEqual",
    "PRelu",
    "Where",
    "Clip",
    "Dims",
    "ConstantOfShape",
    "Range",
    "Random",
    "Reshape",
    "Transpose",
    "Expand",
    "Slice",
    "Concat",
    "Split",
    "Pad",
    "Tile",
    "Gather",
    "GatherElements",
    "GatherND",
    "ScatterElements",
    "ScatterND",
    "Trilu",
    "OneHot",
    "NonZero",
    "Compress",
    "Unique",
    "DepthToSpace",
    "SpaceToDepth",
    "ReverseSequence",
    "EyeLike",
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ArgMax",
    "ArgMin",
    "CumSum",
    "TopK",
    "Softmax",
    "LogSoftmax",
    "LayerNorm",
    "RmsNorm",
    "GroupNorm",
    "BatchNorm",
    "LpNorm",
    "Lrn",
    "MatMul",
    "Einsum",
    "Conv",
    "ConvTranspose",
    "MaxPool",
    "AveragePool",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "Resize",
    "QuantizeLinear",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "ConvInteger",
    "MatMulNBits",
    "Attention",
    "Rotary",
    "PagedAttention",
    "SelectRows",
    "AllReduce",
    "AllGather",
    "If",
    "Loop",
    "Scan",
};
static_assert(!kNames.back().empty(), "every operator has a name");

}  // namespace

std::string_view name_of(Op op) { return op < Op::kCount ? kNames[static_cast<std::size_t>(op)] : "?"; }

Op op_from_name(std::string_view name) {
  static const auto* by_name = [] {
    auto* map = new std::map<std::string_view, Op>;
    for (std::size_t i = 0; i < kOps; ++i) map->emplace(kNames[i], static_cast<Op>(i));
    return map;
  }();
  const auto it = by_name->find(name);
  return it == by_name->end() ? Op::kCount : it->second;
}

bool is_unary_pointwise(Op op) { return op <= Op::kCast; }
bool is_binary_pointwise(Op op) { return op >= Op::kAdd && op <= Op::kPRelu; }
bool is_pointwise(Op op) {
  return is_unary_pointwise(op) || is_binary_pointwise(op) || op == Op::kWhere || op == Op::kClip;
}

}  // namespace ark
