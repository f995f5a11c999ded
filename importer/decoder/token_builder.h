// Builds the token graph: emits nodes with the shapes that the token forms of layout.h prescribe.
#pragma once

#include <map>
#include <string>

#include "base/ir/graph.h"

namespace ark::decoder {

class TokenBuilder {
 public:
  TokenBuilder();

  Graph graph;
  ValueId ids = kNoValue, positions = kNoValue;  // i32 [tokens], inputs 0 and 1
  std::string label;                             // the plain node being rewritten: name of all nodes emitted

  ValueId emit(Op op, std::vector<ValueId> inputs, Attributes attributes = {});
  std::vector<ValueId> emit_many(Op op, std::vector<ValueId> inputs, Attributes attributes, int count);

  // A constant of the token graph; the same payload is added once. Small 16-bit (and f64) ones become f32,
  // large ones stay as they are.
  ValueId constant(const ConstantPtr& constant);
  ValueId constant(Tensor tensor, std::string name = "");
  ValueId constant_f32(const ConstantPtr& constant);  // f32 whatever its size
  ValueId scalar(float value);

  // Row values have the token axis in front: dims of a row value exclude it, dims of a constant are all.
  bool is_constant(ValueId id) const { return graph.value(id).constant != nullptr; }
  Dims dims(ValueId id) const;
  // Reshape to [tokens, dims...] (constants: to dims); no node if nothing changes.
  ValueId reshape(ValueId id, const Dims& dims);
  // x's dims permuted, the token axis staying in front; no node for the identity.
  ValueId transpose(ValueId id, const std::vector<int64_t>& perm);
  ValueId expand(ValueId id, const Dims& dims);
  // A constant repeated for each token: [tokens, dims...].
  ValueId as_rows(ValueId constant, const Dims& dims);
  // Elements `index` of each row of x, arranged as dims: as Reshape and Slice where the indices allow, else
  // Gather.
  ValueId pick(ValueId id, const std::vector<int64_t>& index, const Dims& dims);
  // The value as f32, if it is floating and is not.
  ValueId widened(ValueId id);

  static Expr tokens() { return Expr::symbol("tokens"); }

 private:
  std::map<const Constant*, std::pair<ConstantPtr, ValueId>> constants_;  // the pointer keeps the key alive
};

}  // namespace ark::decoder
