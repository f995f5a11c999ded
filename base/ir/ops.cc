#include "base/ir/ops.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/ir/keys.h"
#include "base/ir/op_attributes.h"

namespace ark {
namespace {

constexpr std::size_t kOps = static_cast<std::size_t>(Op::kCount);

struct Row {
  Op op;
  std::string_view name;
  std::vector<AttributeType> attributes;
};

// clang-format off
const std::vector<Row>& rows() {
  const std::vector<AttributeType> reduction{key::kAxes, key::kKeepdims, key::kNoopWithEmptyAxes},
      window{key::kGroup, key::kStrides, key::kDilations, key::kPads, key::kAutoPad};
  static const auto* all = new std::vector<Row>{
    {Op::kIdentity, "Identity"},
    {Op::kNeg, "Neg"},
    {Op::kAbs, "Abs"},
    {Op::kSign, "Sign"},
    {Op::kReciprocal, "Reciprocal"},
    {Op::kSqrt, "Sqrt"},
    {Op::kRsqrt, "Rsqrt"},
    {Op::kExp, "Exp"},
    {Op::kLog, "Log"},
    {Op::kSin, "Sin"},
    {Op::kCos, "Cos"},
    {Op::kTan, "Tan"},
    {Op::kAsin, "Asin"},
    {Op::kAcos, "Acos"},
    {Op::kAtan, "Atan"},
    {Op::kSinh, "Sinh"},
    {Op::kCosh, "Cosh"},
    {Op::kTanh, "Tanh"},
    {Op::kAsinh, "Asinh"},
    {Op::kAcosh, "Acosh"},
    {Op::kAtanh, "Atanh"},
    {Op::kErf, "Erf"},
    {Op::kSigmoid, "Sigmoid"},
    {Op::kRelu, "Relu"},
    {Op::kSilu, "Silu"},
    {Op::kSoftplus, "Softplus"},
    {Op::kSoftsign, "Softsign"},
    {Op::kSelu, "Selu", {key::kAlpha, key::kGamma}},
    {Op::kElu, "Elu", {key::kAlpha}},
    {Op::kCelu, "Celu", {key::kAlpha}},
    {Op::kLeakyRelu, "LeakyRelu", {key::kAlpha}},
    {Op::kThresholdedRelu, "ThresholdedRelu", {key::kAlpha}},
    {Op::kHardSigmoid, "HardSigmoid", {key::kAlpha, key::kBeta}},
    {Op::kHardSwish, "HardSwish"},
    {Op::kMish, "Mish"},
    {Op::kGelu, "Gelu", {key::kApproximate}},
    {Op::kQuickGelu, "QuickGelu", {key::kAlpha}},
    {Op::kFloor, "Floor"},
    {Op::kCeil, "Ceil"},
    {Op::kRound, "Round"},
    {Op::kNot, "Not"},
    {Op::kBitNot, "BitNot"},
    {Op::kIsNaN, "IsNaN"},
    {Op::kIsInf, "IsInf", {key::kDetectNegative, key::kDetectPositive}},
    {Op::kCast, "Cast", {key::kTo}},
    {Op::kAdd, "Add"},
    {Op::kSub, "Sub"},
    {Op::kMul, "Mul"},
    {Op::kDiv, "Div"},
    {Op::kMod, "Mod", {key::kFmod}},
    {Op::kPow, "Pow"},
    {Op::kMin, "Min"},
    {Op::kMax, "Max"},
    {Op::kAnd, "And"},
    {Op::kOr, "Or"},
    {Op::kXor, "Xor"},
    {Op::kBitAnd, "BitAnd"},
    {Op::kBitOr, "BitOr"},
    {Op::kBitXor, "BitXor"},
    {Op::kBitShift, "BitShift", {key::kLeft}},
    {Op::kEqual, "Equal"},
    {Op::kLess, "Less"},
    {Op::kLessOrEqual, "LessOrEqual"},
    {Op::kGreater, "Greater"},
    {Op::kGreaterOrEqual, "GreaterOrEqual"},
    {Op::kPRelu, "PRelu"},
    {Op::kWhere, "Where"},
    {Op::kClip, "Clip"},
    {Op::kDims, "Dims", {key::kValues, key::kScalar}},
    {Op::kConstantOfShape, "ConstantOfShape", {key::kShape, key::kValue}},
    {Op::kRange, "Range", {key::kStart, key::kLimit, key::kDelta, key::kTo}},
    {Op::kRandom, "Random"},
    {Op::kReshape, "Reshape", {key::kShape, key::kAllowzero}},
    {Op::kTranspose, "Transpose", {key::kPerm}},
    {Op::kExpand, "Expand", {key::kShape}},
    {Op::kSlice, "Slice", {key::kAxes, key::kStarts, key::kEnds, key::kSteps}},
    {Op::kConcat, "Concat", {key::kAxis}},
    {Op::kSplit, "Split", {key::kAxis, key::kSizes}},
    {Op::kPad, "Pad", {key::kPadding, key::kMode}},
    {Op::kTile, "Tile", {key::kRepeats}},
    {Op::kGather, "Gather", {key::kAxis}},
    {Op::kGatherElements, "GatherElements", {key::kAxis}},
    {Op::kGatherND, "GatherND", {key::kBatchDims}},
    {Op::kScatterElements, "ScatterElements", {key::kAxis, key::kReduction}},
    {Op::kScatterND, "ScatterND", {key::kReduction}},
    {Op::kTrilu, "Trilu", {key::kUpper, key::kDiagonal}},
    {Op::kOneHot, "OneHot", {key::kAxis}},
    {Op::kNonZero, "NonZero"},
    {Op::kCompress, "Compress", {key::kAxis}},
    {Op::kUnique, "Unique", {key::kAxis, key::kSorted}},
    {Op::kDepthToSpace, "DepthToSpace", {key::kBlocksize, key::kMode}},
    {Op::kSpaceToDepth, "SpaceToDepth", {key::kBlocksize, key::kMode}},
    {Op::kReverseSequence, "ReverseSequence", {key::kBatchAxis, key::kTimeAxis}},
    {Op::kEyeLike, "EyeLike", {key::kDiagonal, key::kTo}},
    {Op::kReduceSum, "ReduceSum", reduction},
    {Op::kReduceMean, "ReduceMean", reduction},
    {Op::kReduceMax, "ReduceMax", reduction},
    {Op::kReduceMin, "ReduceMin", reduction},
    {Op::kReduceProd, "ReduceProd", reduction},
    {Op::kReduceL1, "ReduceL1", reduction},
    {Op::kReduceL2, "ReduceL2", reduction},
    {Op::kReduceSumSquare, "ReduceSumSquare", reduction},
    {Op::kReduceLogSum, "ReduceLogSum", reduction},
    {Op::kReduceLogSumExp, "ReduceLogSumExp", reduction},
    {Op::kArgMax, "ArgMax", {key::kAxis, key::kKeepdims, key::kSelectLastIndex}},
    {Op::kArgMin, "ArgMin", {key::kAxis, key::kKeepdims, key::kSelectLastIndex}},
    {Op::kCumSum, "CumSum", {key::kAxis, key::kExclusive, key::kReverse}},
    {Op::kTopK, "TopK", {key::kAxis, key::kLargest, key::kSorted, key::kTopK}},
    {Op::kSoftmax, "Softmax", {key::kAxis}},
    {Op::kLogSoftmax, "LogSoftmax", {key::kAxis}},
    {Op::kLayerNorm, "LayerNorm", {key::kAxis, key::kEpsilon}},
    {Op::kRmsNorm, "RmsNorm", {key::kAxis, key::kEpsilon}},
    {Op::kGroupNorm, "GroupNorm", {key::kGroups, key::kEpsilon}},
    {Op::kBatchNorm, "BatchNorm", {key::kEpsilon}},
    {Op::kLpNorm, "LpNorm", {key::kAxis, key::kP}},
    {Op::kLrn, "Lrn", {key::kAlpha, key::kBeta, key::kBias, key::kSize}},
    {Op::kMatMul, "MatMul", {key::kTransA, key::kTransB, key::kAlpha}},
    {Op::kEinsum, "Einsum", {key::kEquation}},
    {Op::kConv, "Conv", window},
    {Op::kConvTranspose, "ConvTranspose", {key::kGroup, key::kStrides, key::kDilations, key::kPads, key::kAutoPad, key::kOutputPadding, key::kOutputShape}},
    {Op::kMaxPool, "MaxPool", {key::kKernelShape, key::kStrides, key::kDilations, key::kPads, key::kAutoPad, key::kCeilMode}},
    {Op::kAveragePool, "AveragePool", {key::kKernelShape, key::kStrides, key::kDilations, key::kPads, key::kAutoPad, key::kCeilMode, key::kCountIncludePad}},
    {Op::kGlobalAveragePool, "GlobalAveragePool"},
    {Op::kGlobalMaxPool, "GlobalMaxPool"},
    {Op::kResize, "Resize", {key::kMode, key::kCoordinateTransformationMode, key::kNearestMode, key::kCubicCoeffA, key::kExcludeOutside, key::kAntialias, key::kKeepAspectRatioPolicy, key::kAxes, key::kSizes}},
    {Op::kQuantizeLinear, "QuantizeLinear", {key::kAxis, key::kBlockSize, key::kTo}},
    {Op::kDequantizeLinear, "DequantizeLinear", {key::kAxis, key::kBlockSize, key::kTo, key::kZeroPoint}},
    {Op::kDynamicQuantizeLinear, "DynamicQuantizeLinear"},
    {Op::kMatMulInteger, "MatMulInteger"},
    {Op::kConvInteger, "ConvInteger", window},
    {Op::kMatMulNBits, "MatMulNBits", {key::kK, key::kN, key::kBits, key::kBlockSize}},
    {Op::kAttention, "Attention", {key::kScale, key::kCausal, key::kWindow, key::kSoftcap, key::kCleanNan}},
    {Op::kRotary, "Rotary", {key::kInterleaved, key::kRotaryDim, key::kHeadAxis}},
    {Op::kPagedAttention, "PagedAttention", {key::kCache, key::kScale, key::kWindow, key::kSoftcap}},
    {Op::kSelectRows, "SelectRows"},
    {Op::kAllReduce, "AllReduce"},
    {Op::kAllGather, "AllGather", {key::kAxis}},
    {Op::kIf, "If"},
    {Op::kLoop, "Loop"},
    {Op::kScan, "Scan", {key::kNumScanInputs, key::kScanInputAxes, key::kScanInputDirections, key::kScanOutputAxes, key::kScanOutputDirections}},
  };
  return *all;
}
// clang-format on

const std::array<const Row*, kOps>& by_op() {
  static const auto* table = [] {
    auto* t = new std::array<const Row*, kOps>{};
    for (const Row& row : rows()) (*t)[static_cast<std::size_t>(row.op)] = &row;
    return t;
  }();
  return *table;
}

const Row* row_of(Op op) { return op < Op::kCount ? by_op()[static_cast<std::size_t>(op)] : nullptr; }

}  // namespace

std::string_view name_of(Op op) {
  const Row* row = row_of(op);
  return row ? row->name : "?";
}

Op op_from_name(std::string_view name) {
  static const auto* by_name = [] {
    auto* map = new std::map<std::string_view, Op>;
    for (const Row& row : rows()) map->emplace(row.name, row.op);
    return map;
  }();
  const auto it = by_name->find(name);
  return it == by_name->end() ? Op::kCount : it->second;
}

std::span<const AttributeType> attributes_of(Op op) {
  const Row* row = row_of(op);
  return row ? std::span<const AttributeType>(row->attributes) : std::span<const AttributeType>{};
}

std::string attribute_fault(Op op, const Attributes& attributes) {
  const auto allowed = attributes_of(op);
  for (const auto& [name, value] : attributes.values()) {
    const auto it = std::find_if(allowed.begin(), allowed.end(),
                                 [&, &name = name](const AttributeType& a) { return a.name == name; });
    if (it == allowed.end()) return std::string(name_of(op)) + " has no attribute '" + name + "'";
    if (it->type != value.index())
      return "attribute '" + name + "' of " + std::string(name_of(op)) + " has another type than its key";
  }
  return "";
}

bool is_unary_pointwise(Op op) { return op <= Op::kCast; }
bool is_binary_pointwise(Op op) { return op >= Op::kAdd && op <= Op::kPRelu; }
bool is_pointwise(Op op) {
  return is_unary_pointwise(op) || is_binary_pointwise(op) || op == Op::kWhere || op == Op::kClip;
}

}  // namespace ark
