#include "engine/program/expr_bound.h"

#include <algorithm>

#include "base/error.h"

namespace ark {

int64_t upper_bound(const Expr& e, const SymbolValues& most) {
  constexpr std::size_t kMaxCorners = 10;  // of 2^10; further symbols stay at their largest
  if (const auto constant = e.constant()) return *constant;
  const std::set<std::string> names = e.symbols();
  const std::vector<std::string> symbols(names.begin(), names.end());
  int64_t bound = 0;
  for (uint32_t corner = 0; corner < (1u << std::min(symbols.size(), kMaxCorners)); ++corner) {
    SymbolValues values;
    for (std::size_t i = 0; i < symbols.size(); ++i) {
      const auto it = most.find(symbols[i]);
      if (it == most.end()) {
        throw Error(Code::kUnsupported, "size " + escaped(e.str()) + " depends on data: symbol " +
                                            escaped(symbols[i]) + " is no size of an input");
      }
      const bool is_least = i < kMaxCorners && (corner >> i & 1);
      values[symbols[i]] = is_least ? std::min<int64_t>(1, it->second) : it->second;
    }
    bound = std::max(bound, e.evaluate(values));
  }
  return bound;
}

SymbolValues greatest_symbols(const Program& program) {
  SymbolValues most;
  for (const Val& val : program.vals)
    if (const auto name = val.e.as_symbol()) most[*name] = val.max;
  return most;
}

}  // namespace ark
