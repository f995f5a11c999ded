// Numbers between bounds, as digits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "server/json_fwd.h"
#include "server/text/budget.h"
#include "server/text/grammar/expression.h"

namespace ark::text::grammar {

// A decimal number; neither part has zeros that mean nothing, and zero has no sign.
struct Decimal {
  bool is_negative = false;
  std::string integer = "0", fraction;

  static Decimal of(const Json& number);
  bool is_multiple_of(std::uint32_t divisor) const;
  bool is_zero() const { return integer == "0" && fraction.empty(); }
};
// Negative, zero or positive.
int compare(const Decimal& a, const Decimal& b);

struct NumberBound {
  Decimal value;
  bool is_exclusive = false;
};
struct NumberBounds {
  std::optional<NumberBound> lower, upper;
  void narrow_lower(const NumberBound& bound);
  void narrow_upper(const NumberBound& bound);
  bool empty() const { return !lower && !upper; }
};

// JSON's numbers within the bounds: without an exponent, and with no more digits than a double tells apart where it
// matters. `multiple_of`: integers only, where it is not 1. Throws kInvalidArgument with `place`.
ExpressionPtr numbers_between(const NumberBounds& bounds, bool integers_only, std::uint32_t multiple_of,
                              const std::string& place, Rules& rules, Budget& budget);

}  // namespace ark::text::grammar
