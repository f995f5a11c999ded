// Operators that ark knows and does not run, with what to do instead.
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

void random(OpContext& c) {
  c.unsupported(
      "random numbers inside a model are not supported: results must not depend on hidden state; export with "
      "a fixed input instead");
}
void sequence(OpContext& c) {
  c.unsupported(
      "optionals, and sequences that are not known at load, are not supported; export the model with tensors "
      "only");
}
void text(OpContext& c) { c.unsupported("string operators are not supported; tokenize outside the model"); }

}  // namespace

std::span<const Entry> refused_table() {
  static constexpr Entry kTable[] = {
      {kOnnx, "RandomNormal", random},
      {kOnnx, "RandomNormalLike", random},
      {kOnnx, "RandomUniform", random},
      {kOnnx, "RandomUniformLike", random},
      {kOnnx, "Bernoulli", random},
      {kOnnx, "Multinomial", random},
      {kOnnx, "SequenceConstruct", sequence},
      {kOnnx, "SequenceEmpty", sequence},
      {kOnnx, "SequenceAt", sequence},
      {kOnnx, "SequenceInsert", sequence},
      {kOnnx, "SequenceErase", sequence},
      {kOnnx, "SequenceLength", sequence},
      {kOnnx, "SequenceMap", sequence},
      {kOnnx, "SplitToSequence", sequence},
      {kOnnx, "ConcatFromSequence", sequence},
      {kOnnx, "Optional", sequence},
      {kOnnx, "OptionalGetElement", sequence},
      {kOnnx, "OptionalHasElement", sequence},
      {kOnnx, "StringNormalizer", text},
      {kOnnx, "StringConcat", text},
      {kOnnx, "StringSplit", text},
      {kOnnx, "RegexFullMatch", text},
  };
  return kTable;
}

}  // namespace ark::ops
