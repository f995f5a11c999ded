// The canonical operators: what every opset of ONNX (and the com.microsoft operators that exporters
// emit) is reduced to by the importer. This file is the contract between importer, engine and kernels.
//
// Conventions
// - Broadcasting is numpy's. `axis` attributes are non-negative after canonicalisation.
// - An optional input that is absent is kNoValue, or left out at the end.
// - "shape-like" operands (target shapes, slice bounds, ...) that the importer could fold to symbolic
//   expressions are attributes of type Shape (a list of Expr) and their input is absent; only what is
//   truly data-dependent stays an input tensor (int64).
// - Types: output type = type of the first data input unless said otherwise.
//
// Device code (base/ir/pointwise.h) reads the enum too: nothing of std before the end of it.
#pragma once

namespace ark {

// clang-format off
enum class Op : unsigned char {
  // -- pointwise, one input (x) -> y. Attributes in braces; what they compute: base/ir/pointwise.h
  kIdentity, kNeg, kAbs, kSign, kReciprocal, kSqrt, kRsqrt, kExp, kLog,
  kSin, kCos, kTan, kAsin, kAcos, kAtan, kSinh, kCosh, kTanh, kAsinh, kAcosh, kAtanh,
  kErf, kSigmoid, kRelu, kSilu, kSoftplus, kSoftsign, kSelu /*alpha,gamma*/, kElu /*alpha*/, kCelu /*alpha*/,
  kScaledTanh /*alpha,beta*/,
  kLeakyRelu /*alpha*/, kThresholdedRelu /*alpha*/, kHardSigmoid /*alpha,beta*/, kHardSwish, kMish,
  kGelu /*approximate: "none" (erf) | "tanh"*/, kQuickGelu /*alpha*/,
  kFloor, kCeil, kRound /*half to even*/, kNot /*bool*/, kBitNot,
  kIsNaN /*-> bool*/, kIsInf /*detect_negative, detect_positive -> bool*/,
  kCast /*to: int (DType)*/,
  // -- pointwise, two inputs (a, b) -> y
  kAdd, kSub, kMul, kDiv /*integers truncate*/, kMod /*fmod: int*/, kPow, kMin, kMax,
  kAnd, kOr, kXor, kBitAnd, kBitOr, kBitXor, kBitShift /*left: int*/,
  kEqual, kLess, kLessOrEqual, kGreater, kGreaterOrEqual /*-> bool*/, kPRelu /*(x, slope)*/,
  // -- pointwise, more
  kWhere,  // (condition bool, a, b)
  kClip,   // (x, min scalar?, max scalar?); without them the type's last finite numbers
  // -- from nothing
  kDims,             // () -> i64: {values: Shape, scalar: int}; a rank-1 tensor, or rank 0 if scalar=1
  kConstantOfShape,  // (shape i64?) -> {shape: Shape?, value: Tensor of one element}
  kRange,            // (start?, limit?, delta?) scalars -> rank 1; {start, limit, delta: Shape of one Expr each} when
                     // folded (then i64 or {to} = dtype)
  kRandom,           // refused at load: nothing random is compiled
  // -- movement
  kReshape,     // (x, shape i64?) {shape: Shape?}: the final target, no 0 or -1 left in the attribute; in an
                // input tensor ONNX's 0 and -1 hold {allowzero: int}
  kTranspose,   // (x) {perm: ints}
  kExpand,      // (x, shape i64?) {shape: Shape?}: broadcast; the attribute is the final output shape
  kSlice,       // (x, starts?, ends?, axes?, steps?) {axes: ints, starts: Shape, ends: Shape, steps: ints} folded:
                // starts and ends are already clamped to [0, dim] (for steps < 0: to [-1, dim-1])
  kConcat,      // (x...) {axis}
  kSplit,       // (x, sizes i64?) -> y... {axis, sizes: Shape?}
  kPad,         // (x, pads i64?, value scalar?, axes?) {pads: Shape? (begin of all axes, then end), mode: constant|reflect|edge|wrap}
  kTile,        // (x, repeats i64?) {repeats: Shape?}
  kGather,      // (data, indices) {axis}; negative indices wrap
  kGatherElements,   // (data, indices) {axis}
  kGatherND,         // (data, indices) {batch_dims}
  kScatterElements,  // (data, indices, updates) {axis, reduction: none|add|mul|max|min}
  kScatterND,        // (data, indices, updates) {reduction}
  kTrilu,            // (x, k i64 scalar?) {upper: int, k: int?}
  kOneHot,           // (indices, depth, values) {axis}
  kNonZero,          // (x) -> i64 [rank, n], n data-dependent
  kCompress,         // (x, condition) {axis?}
  kUnique,           // (x) -> up to 4 outputs {axis?, sorted}
  kLookup,           // (x, keys [n], values [n], default, of one element) -> values' type: the value of the first key that
                     // equals the element (NaN equals NaN)
  kBitCast,          // (x) {to}: the same bits as another type of as many
  kDepthToSpace, kSpaceToDepth,  // {blocksize, mode}
  kReverseSequence,              // (x, lengths) {batch_axis, time_axis}
  kEyeLike,                      // (x) {k, to}
  // -- reductions
  kReduceSum, kReduceMean, kReduceMax, kReduceMin, kReduceProd,
  kReduceL1, kReduceL2, kReduceSumSquare, kReduceLogSum, kReduceLogSumExp,
               // (x, axes i64?) {axes: ints? (absent: all), keepdims, noop_with_empty_axes}
  kArgMax, kArgMin,  // (x) -> i64 {axis, keepdims, select_last_index}
  kCumSum, kCumProd,  // (x, axis scalar?) {axis?, exclusive, reverse}
  kTopK,             // (x, k i64?) -> (values, indices i64) {axis, largest, sorted, k: Shape of one?}
  kSoftmax, kLogSoftmax,  // (x) {axis}: whole rows along one axis (base/ir/rowwise.h), as kLpNorm
  // -- normalization; statistics in f32. The normalized axes are axis..rank-1
  kLayerNorm,     // (x, scale?, bias?) -> (y, mean?, inv_std?) {axis, epsilon}
  kRmsNorm,       // (x, scale?) {axis, epsilon}
  kGroupNorm,     // (x [N,C,...], scale [C]?, bias [C]?) {groups?, epsilon}; without groups each channel is one
  kBatchNorm,     // (x, scale, bias, mean, variance) {epsilon}
  kLpNorm, kLrn,  // {axis, p}; {alpha, beta, bias, size}
  // -- signals and matrices
  kDft,  // (x [..., 1 or 2: real, or real and imaginary], length scalar?, axis scalar?) {axis?, inverse, onesided}: the
         // discrete Fourier transform along one axis, cut or filled with zeros to `length`. Onesided: of a real x the
         // first length / 2 + 1 coefficients, [..., 2]; inverse, of these the real x, [..., 1]
  kMelWeightMatrix,  // (bins, length, rate, lower edge, upper edge: scalars) -> [length / 2 + 1, bins] {to}
  kDet,              // (x [..., M, M]) -> [...]
  // -- recurrent layers. T steps, N rows, D directions, H units, G gates a unit (1, 3 and 4)
  kRnn, kGru, kLstm,  // (x [T, N, D, G * H]: the input's product with all that is added to it, in ONNX's order of gates;
                      //  r [D, G * H, H], lengths i32 [N]?, h [D, N, H]?, then
                      //  of kGru: r's bias of the hidden gate [D, H]?; of kLstm: c [D, N, H]?, peepholes [D, 3 * H]?)
                      // -> (y [T, D, N, H], y_h [D, N, H], of kLstm: y_c [D, N, H])
                      // {direction: forward|reverse|bidirectional, activations: names of pointwise operators or
                      //  Affine, as many for each direction, activation_parameters: two for each, clip: 0 = none,
                      //  linear_before_reset (kGru), input_forget (kLstm)}
  kLinearAttention,  // (q [B, T, Hq, K], k [B, T, Hk, K], v [B, T, H, V], state [B, H, K, V]?, decay [B, T, H, K or 1]?,
                     //  rate [B, T, H or 1]?) -> (y [B, T, max(Hq, H), V], the last state, of the first's type)
                     // {scale}: of each head, S = exp(decay) * S, then S += k (outer) (rate * (v - S^T k)), without a
                     // rate k (outer) v; y = scale * S^T q. Hq divides H or H Hq, Hk divides H: neighbours share
  // -- trees
  kTreeEnsemble,  // (x [N, F], roots i64 [t], nodes i64 [n, 5]: feature, comparison (0 <=, 1 <, 2 >=, 3 >, 4 ==, 5 !=), next
                  //  if it holds, next if not, whether NaN goes where it holds; thresholds [n], leaves i64 [m, 2]: its
                  //  first weight and how many; targets i64 [w], weights [w]) -> [N, targets]. A next below 0 is leaf
                  //  -1 - next, all others stand behind their node
                  // {N: targets, aggregate: SUM|AVERAGE|MIN|MAX of all trees; AVERAGE divides by their number}
  // -- products
  kMatMul,  // (a, b) numpy's matmul, f32 accumulation; {trans_a, trans_b: swap the last two axes of a / b; accuracy_level:
            // what a may be rounded to, numbered as MatMulNBits does: 4 is 8 bits, 0 leaves it to the engine}. A factor
            // and a bias (Gemm's) are Mul and Add behind it: lowering fuses them into the product's epilogue
  kExpertMatMul,  // (x [..., K] or [..., J, K], experts i32/i64 [..., J], shares? [..., J], w [N, K]...)
                  // -> [..., J, N]: each of J rows, or J times the same one, times the transposed matrix of its
                  // expert; an expert without a matrix gives zeros. With shares -> [..., N]: the sum of the
                  // products times their shares, in the order of experts. Matrices may be of any real type
  kEinsum,  // (x...) {equation}
  kConv,    // (x, w, bias?) {group, strides, dilations, pads: ints (begin..., end...)}; auto_pad resolved or {auto_pad}
  kConvTranspose,  // the same and {output_padding, output_shape}
  kMaxPool, kAveragePool,  // {kernel_shape, strides, pads, dilations, ceil_mode, count_include_pad}; MaxPool -> (y, indices?)
  kGlobalAveragePool, kGlobalMaxPool,
  kMaxUnpool,  // (x, indices, output shape i64?) {kernel_shape, strides, pads, shape: Shape?}
  kCol2Im,     // (x [N, C * taps, places], image shape i64?, block shape i64?) {shape: Shape?, kernel_shape?, strides,
               // dilations, pads}: the sum of overlapping blocks
  kDeformConv,  // (x, w, offset, bias?, mask?) {group, offset_group, kernel_shape, strides, dilations, pads}
  kGridSample,  // (x [N, C, ...], grid [N, ..., axes]) {mode: linear|nearest|cubic, padding_mode: zeros|border|reflection,
                // align_corners}
  kRoiAlign,    // (x, rois [R, 4], batch indices [R]) {mode: avg|max, coordinate_transformation_mode, output_shape: 2 ints,
                // sampling_ratio, scale}
  kMaxRoiPool,  // (x, rois [R, 5]) {output_shape: 2 ints, scale}
  kNonMaxSuppression,  // (boxes [N, B, 4], scores [N, C, B], most scalar?, overlap scalar?, score scalar?) -> i64 [n, 3]
                       // {center_point_box}; n data-dependent
  kResize,  // (x, scales?, sizes i64?, roi?) and ONNX's attributes; roi: where tf_crop_and_resize cuts, all begins, then
            // all ends, as parts of the axes
  // -- integer products and quantization (decoded by the importer where a kernel exists)
  kQuantizeLinear, kDequantizeLinear,  // (x, scale, zero_point?) {axis, block_size}; Dequantize: {zero_point: int = 0,
                                       // for all elements, where the input is absent}
  kDynamicQuantizeLinear,              // (x f32) -> (y u8, scale, zero_point)
  kMatMulInteger,                      // (a, b, a_zero?, b_zero?) -> i32
  kConvInteger,
  kMatMulNBits,                        // (a, b u8 [N, blocks, bytes], scales, zero_points?, g_idx?, bias?) {K, N, bits, block_size, accuracy_level}
  // -- transformer blocks
  kAttention,  // dense attention of plain graphs:
               // (q [B,H,S,D], k [B,KH,T,D], v [B,KH,T,Dv], bias? broadcastable to [B,H,S,T] (float added,
               // bool selects),
               //  past_k? [B,KH,P,D], past_v? [B,KH,P,Dv], lengths? i32/i64 [B], total? i32/i64 scalar,
               //  sinks? [H]: the score of one more key a head, which takes weight and gives no value)
               // -> (y [B,H,S,Dv], present_k?, present_v?)
               // {scale: float, causal: int, window: int (0 = none: keys j with i - j < window),
               //  softcap: float (0 = none), clean_nan: int (fully masked rows give 0)}
               // causal: query i sits at position past + i, or lengths[b] - S + i where `lengths` (valid keys a
               // row) is given without past. With past and lengths (GroupQueryAttention): row b's past is only
               // max(0, lengths[b] - S) tokens long; its new keys and values go behind it in present, zeros behind
               // them, and query i sits at max(0, lengths[b] - S) + i, seeing the keys up to itself. Present
               // holds P + S rows, or max(P, total): the past may be a buffer with room for what is to come.
               // {evicts: int}, with past and lengths: a buffer of C rows holds the last L of T tokens, oldest
               // first: all T up to C, beyond that T - G * ceil((T - C) / G) where G = C - window + 1 (as ONNX
               // Runtime's sliding_window_cache). Present has as many rows as the past, once these are `window`
  kRotary,     // (x [..., S or T, H, D] or [B,H,S,D], cos [L, R/2], sin [L, R/2], positions i64 broadcastable to x's leading axes)
               // {interleaved, rotary_dim R, head_axis: axis of H}: rotates the first R of the last axis
  // -- token graphs only (importer/decoder.h); T = tokens of a step, R = rows whose logits are wanted
  kPagedAttention,  // (q [T,H,D], k [T,KH,D], v [T,KH,Dv], slopes f32 [H]?, sinks f32 [H]?) -> [T,H,Dv]
                    // {cache: index into DecoderModel::caches, scale, window, softcap}
                    // appends k, v to the cache, then attends causally over the sequence's cache
  kSelectRows,      // (x [T,...]) -> [R,...]: the rows whose logits the step asks for
  // -- inserted by the partitioner (engine)
  kAllReduce, kAllGather /*axis*/,
  kIf, kLoop, kScan,  // subgraphs in Node::subgraphs, ONNX's meaning
  kCount
};
// clang-format on

}  // namespace ark

#ifndef __CUDACC__
#include <initializer_list>
#include <string_view>

namespace ark {

std::string_view name_of(Op op);         // "MatMul"
Op op_from_name(std::string_view name);  // kCount if unknown
inline bool is_one_of(Op op, std::initializer_list<Op> ops) {
  for (const Op one : ops)
    if (op == one) return true;
  return false;
}
bool is_unary_pointwise(Op op);
bool is_binary_pointwise(Op op);
// True for everything computed elementwise with broadcasting: unary, binary, Where, Clip.
bool is_pointwise(Op op);
inline bool is_reduction(Op op) { return op >= Op::kReduceSum && op <= Op::kReduceLogSumExp; }
// Each element of the outputs is one of input 0 (kConcat: of an input), as it is, at a place that no data decide but
// the indices of kGather.
bool is_movement(Op op);

}  // namespace ark
#endif
