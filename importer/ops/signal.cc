// Transforms of signals, and what stands beside them: determinants, bits.
#include "base/ir/keys.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

// (x, length?, axis?): the axis was an attribute before opset 20.
void dft(OpContext& c) {
  Attributes attributes{{key::kInverse, c.attr_int("inverse", 0)},
                        {key::kOnesided, c.attr_int("onesided", 0)}};
  std::vector<ValueId> in{c.input(0), optional_input(c, 1), kNoValue};
  const auto given = c.opset < 20     ? std::optional<std::vector<int64_t>>{{c.attr_int("axis", 1)}}
                     : c.has_input(2) ? known_ints(c, 2)
                                      : std::vector<int64_t>{-2};
  if (given && given->size() == 1)
    attributes.set(key::kAxis, c.axis(given->front(), c.rank(0)));
  else
    in[2] = c.input(2);
  c.outputs[0] = c.emit(Op::kDft, in, attributes);
}

// (signal [N, L] or [N, L, parts], step, window?, length?): the transform of frames that overlap.
void stft(OpContext& c) {
  const ValueId signal =
      c.rank(0) == 2 ? reshape(c, c.input(0), {shape_of(c, c.input(0))[0], shape_of(c, c.input(0))[1], 1})
                     : c.input(0);
  const Shape shape = shape_of(c, signal);
  if (shape.size() != 3) c.fail("the signal has rank " + std::to_string(shape.size()) + ", not 2 or 3");
  const auto whole = [&](ValueId x) { return reshape(c, cast(c, x, DType::kI64), {}); };
  const auto size = [&](const Expr& e) {
    return c.emit(Op::kDims, {}, {{key::kValues, Shape{e}}, {key::kScalar, 1}});
  };
  const auto number = [&](double value) { return scalar(c, value, DType::kI64); };
  if (c.has_input(2) && c.rank(2) != 1)
    c.fail("the window has rank " + std::to_string(c.rank(2)) + ", not 1");
  // A negative length would ask for more frames than the signal has elements.
  const ValueId step = whole(c.input(1)), length = c.has_input(3)
                                                       ? binary(c, Op::kMax, whole(c.inputs[3]), number(0))
                                                   : c.has_input(2) ? size(shape_of(c, c.inputs[2])[0])
                                                                    : size(shape[1]);
  // The first element of each frame: one for each step while the frame fits.
  const ValueId behind = binary(c, Op::kAdd, binary(c, Op::kSub, size(shape[1]), length), number(1));
  const ValueId starts = c.emit(Op::kRange, {number(0), behind, step}),
                inside = c.emit(Op::kRange, {number(0), length, number(1)});
  const ValueId places = binary(c, Op::kAdd, reshape(c, starts, {shape_of(c, starts)[0], 1}), inside);
  ValueId frames = c.emit(Op::kGather, {signal, places}, {{key::kAxis, 1}});
  if (c.has_input(2)) {
    const Expr frame = shape_of(c, inside)[0];
    c.require_equal(shape_of(c, c.inputs[2])[0], frame, "the length of the window");
    frames = binary(c, Op::kMul, frames, reshape(c, c.inputs[2], {frame, 1}));
  }
  const bool is_real = !shape[2].is_constant(2);
  c.outputs[0] = c.emit(Op::kDft, {frames},
                        {{key::kAxis, 2}, {key::kOnesided, c.attr_int("onesided", 1) && is_real ? 1 : 0}});
}

void mel_weight_matrix(OpContext& c) {
  std::vector<ValueId> in;
  for (std::size_t i = 0; i < 5; ++i) in.push_back(c.input(i));
  const DType to = dtype_numbered(c.attr_int("output_datatype", 1));
  if (!is_floating(to) && !is_integer(to)) c.unsupported("a matrix of type " + std::string(name_of(to)));
  c.outputs[0] = c.emit(Op::kMelWeightMatrix, in, {{key::kTo, static_cast<int64_t>(to)}});
}

void det(OpContext& c) { c.outputs[0] = c.emit(Op::kDet, {c.input(0)}); }

void bit_cast_op(OpContext& c) {
  const DType to = dtype_numbered(c.attr_int("to", 0));
  if (to == DType::kUndefined || to == DType::kString)
    c.unsupported("the bits as type " + std::string(name_of(to)));
  c.outputs[0] = bit_cast(c, c.input(0), to);
}

}  // namespace

std::span<const Entry> signal_table() {
  static constexpr Entry kTable[] = {
      {kOnnx, "DFT", dft}, {kOnnx, "STFT", stft},           {kOnnx, "MelWeightMatrix", mel_weight_matrix},
      {kOnnx, "Det", det}, {kOnnx, "BitCast", bit_cast_op},
  };
  return kTable;
}

}  // namespace ark::ops
