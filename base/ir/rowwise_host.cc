#include "base/ir/rowwise_host.h"

#include <algorithm>
#include <array>

namespace ark::rowwise {
namespace {

template <class... O>
constexpr std::array<Row, sizeof...(O)> rows_of(pointwise::List<O...>) {
  return {O::row...};
}
constexpr auto kRows = rows_of(All{});

}  // namespace

std::span<const Row> rows() { return kRows; }

const Row* row_of(Op op) {
  const auto it = std::find_if(kRows.begin(), kRows.end(), [&](const Row& row) { return row.op == op; });
  return it == kRows.end() ? nullptr : &*it;
}

double parameter_of(const Row& row, const Attributes& attributes) {
  return pointwise::value_of(row.p, attributes);
}

}  // namespace ark::rowwise
