#include "base/ir/pointwise_host.h"

#include <algorithm>
#include <array>

namespace ark::pointwise {
namespace {

template <class... O>
constexpr std::array<Row, sizeof...(O)> rows_of(List<O...>) {
  return {O::row...};
}
constexpr auto kRows = rows_of(All{});

}  // namespace

double value_of(const Parameter& parameter, const Attributes& attributes) {
  if (!parameter.name) return 0;
  switch (parameter.type) {
    case ParameterType::kInt:
      return static_cast<double>(
          attributes.get_or(Key<int64_t>{parameter.name}, static_cast<int64_t>(parameter.fallback)));
    case ParameterType::kText:
      return attributes.get_or(Key<std::string>{parameter.name}, "") == parameter.word ? 1 : 0;
    case ParameterType::kReal:
      break;
  }
  return attributes.get_or(Key<double>{parameter.name}, parameter.fallback);
}

std::span<const Row> rows() { return kRows; }

const Row* row_of(Op op) {
  static constexpr auto by_op = [] {
    std::array<const Row*, static_cast<std::size_t>(Op::kCount) + 1> table{};
    for (const Row& row : kRows) table[static_cast<std::size_t>(row.op)] = &row;
    return table;
  }();
  return by_op[static_cast<std::size_t>(op)];
}

const Row* row_of_onnx(std::string_view name) {
  const auto it =
      std::find_if(kRows.begin(), kRows.end(), [&](const Row& row) { return onnx_name(row) == name; });
  return it == kRows.end() ? nullptr : &*it;
}

Parameters parameters_of(const Row& row, const Attributes& attributes) {
  return {value_of(row.p, attributes), value_of(row.q, attributes)};
}

}  // namespace ark::pointwise
