// Gathering, scattering and searching.
#include "base/ir/keys.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

template <Op op>
void gather_along_axis(OpContext& c) {
  c.outputs[0] =
      c.emit(op, {c.input(0), c.input(1)}, {{key::kAxis, c.axis(c.attr_int("axis", 0), c.rank(0))}});
}

void gather_nd(OpContext& c) {
  const int64_t batch = c.attr_int("batch_dims", 0);
  if (batch < 0 || batch >= std::max(1, std::min(c.rank(0), c.rank(1)))) c.fail("batch_dims is out of range");
  const Shape places = shape_of(c, c.input(1));
  if (batch == 0 && !places.empty() && places.back().is_constant(1)) {  // one number each: a plain Gather
    const ValueId index = reshape(c, c.input(1), Shape(places.begin(), places.end() - 1));
    c.outputs[0] = c.emit(Op::kGather, {c.input(0), index}, {{key::kAxis, 0}});
    return;
  }
  c.outputs[0] = c.emit(Op::kGatherND, {c.input(0), c.input(1)}, {{key::kBatchDims, batch}});
}

std::string reduction_of(OpContext& c) {
  return c.attr_word("reduction", {"none", "add", "mul", "max", "min"});
}

void scatter_elements(OpContext& c) {
  c.outputs[0] =
      c.emit(Op::kScatterElements, {c.input(0), c.input(1), c.input(2)},
             {{key::kAxis, c.axis(c.attr_int("axis", 0), c.rank(0))}, {key::kReduction, reduction_of(c)}});
}

void scatter_nd(OpContext& c) {
  c.outputs[0] =
      c.emit(Op::kScatterND, {c.input(0), c.input(1), c.input(2)}, {{key::kReduction, reduction_of(c)}});
}

void one_hot(OpContext& c) {
  const int64_t axis = c.axis(c.attr_int("axis", -1), c.rank(0) + 1);
  const ValueId indices =
      is_floating(dtype_of(c, c.input(0))) ? cast(c, c.input(0), DType::kI64) : c.input(0);
  c.outputs[0] =
      c.emit(Op::kOneHot, {indices, cast(c, c.input(1), DType::kI64), c.input(2)}, {{key::kAxis, axis}});
}

void non_zero(OpContext& c) { c.outputs[0] = c.emit(Op::kNonZero, {c.input(0)}); }

void compress(OpContext& c) {
  Attributes attributes;
  if (c.has_attr("axis")) attributes.set(key::kAxis, c.axis(c.attr_int("axis", 0), c.rank(0)));
  c.outputs[0] = c.emit(Op::kCompress, {c.input(0), c.input(1)}, attributes);
}

void unique(OpContext& c) {
  Attributes attributes{{key::kSorted, c.attr_int("sorted", 1)}};
  if (c.has_attr("axis")) attributes.set(key::kAxis, c.axis(c.attr_int("axis", 0), c.rank(0)));
  c.outputs = c.emit_many(Op::kUnique, {c.input(0)}, attributes, static_cast<int>(c.node.outputs.size()));
}

}  // namespace

std::span<const Entry> indexing_table() {
  static constexpr Entry kTable[] = {
      {kOnnx, "Gather", gather_along_axis<Op::kGather>},
      {kOnnx, "GatherElements", gather_along_axis<Op::kGatherElements>},
      {kOnnx, "GatherND", gather_nd},
      {kOnnx, "ScatterElements", scatter_elements},
      {kOnnx, "Scatter", scatter_elements},
      {kOnnx, "ScatterND", scatter_nd},
      {kOnnx, "OneHot", one_hot},
      {kOnnx, "NonZero", non_zero},
      {kOnnx, "Compress", compress},
      {kOnnx, "Unique", unique},
  };
  return kTable;
}

}  // namespace ark::ops
