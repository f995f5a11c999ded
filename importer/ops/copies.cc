// com.microsoft's copies of the standard's operators: under another domain, with channels last, or nearly the same.
#include "base/ir/keys.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

void same_standard(OpContext& c) { c.outputs = standard_results(c, c.node.op_type, c.inputs); }

void expand_dims(OpContext& c) {
  c.outputs = standard_results(c, "Unsqueeze", {c.input(0), reshape(c, c.input(1), {Expr(1)})});
}

// (x) -> (y, where each element of x stands in y, how often each of y occurs); y in the order of first occurrences.
void microsoft_unique(OpContext& c) {
  const auto results = c.emit_many(Op::kUnique, {c.input(0)}, {{key::kSorted, 0}}, 4);
  c.outputs = {results[0], results[2], results[3]};
}

// An operator whose input has its channels at its last axis; weights lie as always.
void with_channels_last(OpContext& c, std::string op_type) {
  std::vector<ValueId> in = c.inputs;
  in.at(0) = turn_channels(c, c.input(0), false);
  c.outputs[0] = turn_channels(c, standard_results(c, std::move(op_type), in)[0], true);
}

void maybe_last_qlinear_conv(OpContext& c) {
  if (c.attr_int("channels_last", 0))
    with_channels_last(c, c.node.op_type);
  else
    same_standard(c);
}
void last_max_pool(OpContext& c) { with_channels_last(c, "MaxPool"); }

}  // namespace

std::span<const Entry> copies_table() {
  static constexpr Entry kTable[] = {
      {kMicrosoft, "Trilu", same_standard},       {kMicrosoft, "GatherND", same_standard},
      {kMicrosoft, "Pad", same_standard},         {kMicrosoft, "Range", same_standard},
      {kMicrosoft, "Unique", microsoft_unique},   {kMicrosoft, "ExpandDims", expand_dims},
      {kMicrosoft, "NhwcMaxPool", last_max_pool}, {kMicrosoft, "QLinearConv", maybe_last_qlinear_conv},
  };
  return kTable;
}

}  // namespace ark::ops
