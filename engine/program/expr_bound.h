// The largest value of a size.
#pragma once

#include "engine/program/program.h"

namespace ark {

// Over symbols that run from min(1, most) to `most`; >= 0. Sizes are monotonic in each symbol (they may fall), so
// that their largest value lies in a corner. Throws Error(kUnsupported) naming a symbol that is not in `most`.
int64_t upper_bound(const Expr& e, const SymbolValues& most);
// The largest values of a program's symbols: those of the vals that are nothing but one.
SymbolValues greatest_symbols(const Program& program);

}  // namespace ark
