#include "base/ir/ops.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/ir/keys.h"
#include "base/ir/op_attributes.h"
#include "base/ir/pointwise_host.h"
#include "base/ir/rowwise_host.h"

namespace ark {
namespace {

constexpr std::size_t kOps = static_cast<std::size_t>(Op::kCount);

struct Row {
  Op op;
  std::string_view name;
  std::vector<AttributeType> attributes;
};

AttributeType attribute_of(const pointwise::Parameter& p) {
  switch (p.type) {
    case pointwise::ParameterType::kInt:
      return Key<int64_t>{p.name};
    case pointwise::ParameterType::kText:
      return Key<std::string>{p.name};
    case pointwise::ParameterType::kReal:
      break;
  }
  return Key<double>{p.name};
}

Row row_of(const pointwise::Row& from) {
  Row row{from.op, from.name, {}};
  for (const auto& p : {from.p, from.q})
    if (p.name) row.attributes.push_back(attribute_of(p));
  return row;
}

Row row_of(const rowwise::Row& from) {
  Row row{from.op, from.name, {key::kAxis}};
  if (from.p.name) row.attributes.push_back(attribute_of(from.p));
  return row;
}

// clang-format off
std::vector<Row> make_rows() {
  const std::vector<AttributeType> reduction{key::kAxes, key::kKeepdims, key::kNoopWithEmptyAxes},
      window{key::kGroup, key::kStrides, key::kDilations, key::kPads, key::kAutoPad},
      pool{key::kKernelShape, key::kStrides, key::kDilations, key::kPads, key::kAutoPad, key::kCeilMode},
      recurrent{key::kDirection, key::kActivations, key::kActivationParameters, key::kClip};
  const auto with = [](std::vector<AttributeType> some, const std::vector<AttributeType>& more) {
    some.insert(some.end(), more.begin(), more.end());
    return some;
  };
  std::vector<Row> all{
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
    {Op::kLookup, "Lookup"},
    {Op::kBitCast, "BitCast", {key::kTo}},
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
    {Op::kCumProd, "CumProd", {key::kAxis, key::kExclusive, key::kReverse}},
    {Op::kTopK, "TopK", {key::kAxis, key::kLargest, key::kSorted, key::kTopK}},
    {Op::kLayerNorm, "LayerNorm", {key::kAxis, key::kEpsilon}},
    {Op::kRmsNorm, "RmsNorm", {key::kAxis, key::kEpsilon}},
    {Op::kGroupNorm, "GroupNorm", {key::kGroups, key::kEpsilon}},
    {Op::kBatchNorm, "BatchNorm", {key::kEpsilon}},
    {Op::kLrn, "Lrn", {key::kAlpha, key::kBeta, key::kBias, key::kSize}},
    {Op::kDft, "Dft", {key::kAxis, key::kInverse, key::kOnesided}},
    {Op::kMelWeightMatrix, "MelWeightMatrix", {key::kTo}},
    {Op::kDet, "Det"},
    {Op::kMatMul, "MatMul", {key::kTransA, key::kTransB, key::kAccuracyLevel}},
    {Op::kExpertMatMul, "ExpertMatMul"},
    {Op::kEinsum, "Einsum", {key::kEquation}},
    {Op::kConv, "Conv", window},
    {Op::kConvTranspose, "ConvTranspose", with(window, {key::kOutputPadding, key::kOutputShape})},
    {Op::kMaxPool, "MaxPool", pool},
    {Op::kAveragePool, "AveragePool", with(pool, {key::kCountIncludePad})},
    {Op::kGlobalAveragePool, "GlobalAveragePool"},
    {Op::kGlobalMaxPool, "GlobalMaxPool"},
    {Op::kMaxUnpool, "MaxUnpool", {key::kKernelShape, key::kStrides, key::kPads, key::kShape}},
    {Op::kCol2Im, "Col2Im", {key::kShape, key::kKernelShape, key::kStrides, key::kDilations, key::kPads}},
    {Op::kDeformConv, "DeformConv", with(window, {key::kOffsetGroup, key::kKernelShape})},
    {Op::kGridSample, "GridSample", {key::kMode, key::kPaddingMode, key::kAlignCorners}},
    {Op::kRoiAlign, "RoiAlign",
     {key::kMode, key::kCoordinateTransformationMode, key::kOutputShape, key::kSamplingRatio, key::kScale}},
    {Op::kMaxRoiPool, "MaxRoiPool", {key::kOutputShape, key::kScale}},
    {Op::kNonMaxSuppression, "NonMaxSuppression", {key::kCenterPointBox}},
    {Op::kResize, "Resize",
     {key::kMode, key::kCoordinateTransformationMode, key::kNearestMode, key::kCubicCoeffA,
      key::kExcludeOutside, key::kAntialias, key::kKeepAspectRatioPolicy, key::kExtrapolationValue, key::kAxes,
      key::kSizes}},
    {Op::kQuantizeLinear, "QuantizeLinear", {key::kAxis, key::kBlockSize, key::kTo}},
    {Op::kDequantizeLinear, "DequantizeLinear", {key::kAxis, key::kBlockSize, key::kTo, key::kZeroPoint}},
    {Op::kDynamicQuantizeLinear, "DynamicQuantizeLinear"},
    {Op::kMatMulInteger, "MatMulInteger"},
    {Op::kConvInteger, "ConvInteger", window},
    {Op::kMatMulNBits, "MatMulNBits", {key::kK, key::kN, key::kBits, key::kBlockSize, key::kAccuracyLevel}},
    {Op::kAttention, "Attention", {key::kScale, key::kCausal, key::kWindow, key::kSoftcap, key::kCleanNan, key::kEvicts}},
    {Op::kRotary, "Rotary", {key::kInterleaved, key::kRotaryDim, key::kHeadAxis}},
    {Op::kRnn, "Rnn", recurrent},
    {Op::kGru, "Gru", with(recurrent, {key::kLinearBeforeReset})},
    {Op::kLstm, "Lstm", with(recurrent, {key::kInputForget})},
    {Op::kLinearAttention, "LinearAttention", {key::kScale}},
    {Op::kTreeEnsemble, "TreeEnsemble", {key::kN, key::kAggregate}},
    {Op::kPagedAttention, "PagedAttention", {key::kCache, key::kScale, key::kWindow, key::kSoftcap}},
    {Op::kSelectRows, "SelectRows"},
    {Op::kAllReduce, "AllReduce"},
    {Op::kAllGather, "AllGather", {key::kAxis}},
    {Op::kIf, "If"},
    {Op::kLoop, "Loop"},
    {Op::kScan, "Scan",
     {key::kNumScanInputs, key::kScanInputAxes, key::kScanInputDirections, key::kScanOutputAxes,
      key::kScanOutputDirections}},
  };
  for (const pointwise::Row& row : pointwise::rows()) all.push_back(row_of(row));
  for (const rowwise::Row& row : rowwise::rows()) all.push_back(row_of(row));
  return all;
}
// clang-format on

const std::vector<Row>& rows() {
  static const auto* all = new std::vector<Row>(make_rows());
  return *all;
}

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

bool is_unary_pointwise(Op op) {
  const pointwise::Row* row = pointwise::row_of(op);
  return row && row->arity == 1;
}
bool is_binary_pointwise(Op op) {
  const pointwise::Row* row = pointwise::row_of(op);
  return row && row->arity == 2;
}
bool is_pointwise(Op op) { return pointwise::row_of(op) != nullptr; }
bool is_movement(Op op) {
  return is_one_of(op, {Op::kIdentity, Op::kReshape, Op::kTranspose, Op::kExpand, Op::kSlice, Op::kSplit,
                        Op::kGather, Op::kConcat, Op::kTile});
}

}  // namespace ark
