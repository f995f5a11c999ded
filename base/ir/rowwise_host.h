// The operators of base/ir/rowwise.h on the host: their table, and their parameter in a node.
#pragma once

#include <span>

#include "base/ir/attributes.h"
#include "base/ir/pointwise_host.h"
#include "base/ir/rowwise.h"

namespace ark::rowwise {

std::span<const Row> rows();
const Row* row_of(Op op);  // null if the operator is not one of whole rows

// What the operator takes from a node's attributes; 0: nothing.
double parameter_of(const Row& row, const Attributes& attributes);

// Calls O::of(row, p) of the operator's struct O. It must be one of whole rows.
template <class R, class... O>
void run(Op op, R& row, Value<R> p, pointwise::List<O...>) {
  static_cast<void>(((op == O::row.op ? (O::of(row, p), true) : false) || ...));
}
template <class R>
void run(Op op, R& row, Value<R> p) {
  run(op, row, p, All{});
}

}  // namespace ark::rowwise
