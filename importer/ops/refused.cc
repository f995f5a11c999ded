// Operators that ark knows and does not run, or only where what they ask is known at load, with what to do instead.
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

void multinomial(OpContext& c) {
  c.unsupported(
      "random numbers inside a model are not supported: results must not depend on hidden state; export with "
      "a fixed input instead");
}
void sequence(OpContext& c) {
  c.unsupported(
      "optionals, and sequences that are not known at load, are not supported; export the model with tensors "
      "only");
}
// An optional that is a tensor, or is left out, is known at load.
void known_optional(OpContext& c) {
  if (!c.has_input(0)) sequence(c);
  c.outputs[0] = c.input(0);
}
void has_element(OpContext& c) { c.outputs[0] = scalar(c, c.has_input(0), DType::kBool); }
void generation(OpContext& c) {
  c.unsupported("generation inside a model is not supported: ark generates itself; export the decoder alone");
}
void text(OpContext& c) { c.unsupported("string operators are not supported; tokenize outside the model"); }

}  // namespace

std::span<const Entry> refused_table() {
  static constexpr Entry kTable[] = {
      {kOnnx, "Multinomial", multinomial},
      {kOnnx, "SequenceConstruct", sequence},
      {kOnnx, "SequenceEmpty", sequence},
      {kOnnx, "SequenceAt", sequence},
      {kOnnx, "SequenceInsert", sequence},
      {kOnnx, "SequenceErase", sequence},
      {kOnnx, "SequenceLength", sequence},
      {kOnnx, "SequenceMap", sequence},
      {kOnnx, "SplitToSequence", sequence},
      {kOnnx, "ConcatFromSequence", sequence},
      {kOnnx, "Optional", known_optional},
      {kOnnx, "OptionalGetElement", known_optional},
      {kOnnx, "OptionalHasElement", has_element},
      {kMicrosoft, "BeamSearch", generation},
      {kMicrosoft, "WhisperBeamSearch", generation},
      {kMicrosoft, "GreedySearch", generation},
      {kMicrosoft, "Sampling", generation},
      {kOnnx, "StringNormalizer", text},
      {kOnnx, "StringConcat", text},
      {kOnnx, "StringSplit", text},
      {kOnnx, "RegexFullMatch", text},
  };
  return kTable;
}

}  // namespace ark::ops
