// The names and types of all attributes of canonical operators (base/ir/ops.h says what they mean) and of a program's
// variants (engine/program/program.h): a misspelt name or another type does not compile. Which operator has which:
// base/ir/op_attributes.h. What only pointwise functions read stands in the rows of base/ir/pointwise.h alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ir/attributes.h"

namespace ark::key {

// Integers; flags are 0 or 1, types are DType.
inline constexpr Key<int64_t> kAccuracyLevel{"accuracy_level"};  // 0 unset, 1 f32, 2 f16, 3 bf16, 4 int8
inline constexpr Key<int64_t> kAlignCorners{"align_corners"};
inline constexpr Key<int64_t> kAllowzero{"allowzero"};
inline constexpr Key<int64_t> kAntialias{"antialias"};
inline constexpr Key<int64_t> kAxis{"axis"};
inline constexpr Key<int64_t> kBatchAxis{"batch_axis"};
inline constexpr Key<int64_t> kBatchDims{"batch_dims"};
inline constexpr Key<int64_t> kBits{"bits"};
inline constexpr Key<int64_t> kBlockSize{"block_size"};
inline constexpr Key<int64_t> kBlocksize{"blocksize"};
inline constexpr Key<int64_t> kCache{"cache"};
inline constexpr Key<int64_t> kCausal{"causal"};
inline constexpr Key<int64_t> kCeilMode{"ceil_mode"};
inline constexpr Key<int64_t> kCenterPointBox{"center_point_box"};
inline constexpr Key<int64_t> kCleanNan{"clean_nan"};
inline constexpr Key<int64_t> kCountIncludePad{"count_include_pad"};
inline constexpr Key<int64_t> kDiagonal{"k"};  // Trilu, EyeLike
inline constexpr Key<int64_t> kEvicts{"evicts"};
inline constexpr Key<int64_t> kExcludeOutside{"exclude_outside"};
inline constexpr Key<int64_t> kExclusive{"exclusive"};
inline constexpr Key<int64_t> kFirst{"first"};
inline constexpr Key<int64_t> kFmod{"fmod"};
inline constexpr Key<int64_t> kGroup{"group"};
inline constexpr Key<int64_t> kGroups{"groups"};
inline constexpr Key<int64_t> kHeadAxis{"head_axis"};
inline constexpr Key<int64_t> kInputForget{"input_forget"};
inline constexpr Key<int64_t> kInterleaved{"interleaved"};
inline constexpr Key<int64_t> kInverse{"inverse"};
inline constexpr Key<int64_t> kK{"K"};
inline constexpr Key<int64_t> kKeepdims{"keepdims"};
inline constexpr Key<int64_t> kLargest{"largest"};
inline constexpr Key<int64_t> kLeft{"left"};
inline constexpr Key<int64_t> kLinearBeforeReset{"linear_before_reset"};
inline constexpr Key<int64_t> kN{"N"};
inline constexpr Key<int64_t> kNoopWithEmptyAxes{"noop_with_empty_axes"};
inline constexpr Key<int64_t> kNumScanInputs{"num_scan_inputs"};
inline constexpr Key<int64_t> kOffsetGroup{"offset_group"};
inline constexpr Key<int64_t> kOnesided{"onesided"};
inline constexpr Key<int64_t> kP{"p"};
inline constexpr Key<int64_t> kReverse{"reverse"};
inline constexpr Key<int64_t> kRms{"rms"};
inline constexpr Key<int64_t> kRotaryDim{"rotary_dim"};
inline constexpr Key<int64_t> kSamplingRatio{"sampling_ratio"};
inline constexpr Key<int64_t> kScalar{"scalar"};
inline constexpr Key<int64_t> kSelectLastIndex{"select_last_index"};
inline constexpr Key<int64_t> kSize{"size"};
inline constexpr Key<int64_t> kSorted{"sorted"};
inline constexpr Key<int64_t> kTimeAxis{"time_axis"};
inline constexpr Key<int64_t> kTo{"to"};
inline constexpr Key<int64_t> kTransA{"trans_a"};
inline constexpr Key<int64_t> kTransB{"trans_b"};
inline constexpr Key<int64_t> kUpper{"upper"};
inline constexpr Key<int64_t> kWindow{"window"};
inline constexpr Key<int64_t> kZeroPoint{"zero_point"};

// Reals.
inline constexpr Key<double> kAlpha{"alpha"};
inline constexpr Key<double> kBeta{"beta"};
inline constexpr Key<double> kBias{"bias"};
inline constexpr Key<double> kClip{"clip"};
inline constexpr Key<double> kCubicCoeffA{"cubic_coeff_a"};
inline constexpr Key<double> kEpsilon{"epsilon"};
inline constexpr Key<double> kExtrapolationValue{"extrapolation_value"};
inline constexpr Key<double> kParameter{"parameter"};  // of a row of base/ir/rowwise.h; 0 where it has none
inline constexpr Key<double> kScale{"scale"};
inline constexpr Key<double> kSoftcap{"softcap"};

// Texts.
inline constexpr Key<std::string> kAggregate{"aggregate"};
inline constexpr Key<std::string> kApproximate{"approximate"};
inline constexpr Key<std::string> kAutoPad{"auto_pad"};
inline constexpr Key<std::string> kCoordinateTransformationMode{"coordinate_transformation_mode"};
inline constexpr Key<std::string> kDirection{"direction"};
inline constexpr Key<std::string> kEquation{"equation"};
inline constexpr Key<std::string> kKeepAspectRatioPolicy{"keep_aspect_ratio_policy"};
inline constexpr Key<std::string> kMode{"mode"};
inline constexpr Key<std::string> kNearestMode{"nearest_mode"};
inline constexpr Key<std::string> kPaddingMode{"padding_mode"};
inline constexpr Key<std::string> kReduction{"reduction"};

// Lists of integers.
inline constexpr Key<std::vector<int64_t>> kAxes{"axes"};
inline constexpr Key<std::vector<int64_t>> kBorders{"borders"};  // of all ranks' parts
inline constexpr Key<std::vector<int64_t>> kDilations{"dilations"};
inline constexpr Key<std::vector<int64_t>> kHeadMap{"head_map"};
inline constexpr Key<std::vector<int64_t>> kKernelShape{"kernel_shape"};
inline constexpr Key<std::vector<int64_t>> kOutputPadding{"output_padding"};
inline constexpr Key<std::vector<int64_t>> kOutputShape{"output_shape"};
inline constexpr Key<std::vector<int64_t>> kPads{"pads"};  // windows: of the spatial axes
inline constexpr Key<std::vector<int64_t>> kPerm{"perm"};
inline constexpr Key<std::vector<int64_t>> kScanInputAxes{"scan_input_axes"};
inline constexpr Key<std::vector<int64_t>> kScanInputDirections{"scan_input_directions"};
inline constexpr Key<std::vector<int64_t>> kScanOutputAxes{"scan_output_axes"};
inline constexpr Key<std::vector<int64_t>> kScanOutputDirections{"scan_output_directions"};
inline constexpr Key<std::vector<int64_t>> kSteps{"steps"};
inline constexpr Key<std::vector<int64_t>> kStrides{"strides"};

// Lists of texts and of reals.
inline constexpr Key<std::vector<std::string>> kActivations{"activations"};
inline constexpr Key<std::vector<double>> kActivationParameters{"activation_parameters"};

// Sizes that may hold symbols.
inline constexpr Key<Shape> kDelta{"delta"};
inline constexpr Key<Shape> kEnds{"ends"};
inline constexpr Key<Shape> kLimit{"limit"};
inline constexpr Key<Shape> kPadding{"pads"};  // Pad: of all axes
inline constexpr Key<Shape> kRepeats{"repeats"};
inline constexpr Key<Shape> kShape{"shape"};
inline constexpr Key<Shape> kSizes{"sizes"};
inline constexpr Key<Shape> kStart{"start"};
inline constexpr Key<Shape> kStarts{"starts"};
inline constexpr Key<Shape> kTopK{"k"};  // TopK: one element
inline constexpr Key<Shape> kValues{"values"};

// Tensors.
inline constexpr Key<Tensor> kValue{"value"};

}  // namespace ark::key
