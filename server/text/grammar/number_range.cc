#include "server/text/grammar/number_range.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "base/error.h"
#include "server/json.h"

namespace ark::text::grammar {
namespace {

// Of numbers without bounds, and of 64-bit ones.
constexpr std::size_t kUsualDigits = 16, kMaxDigits = 20, kDigitsOfMultiples = 10;
constexpr std::size_t kExactDigits = 15;            // all decimals of so many are different doubles
constexpr std::size_t kDigitsOfExactIntegers = 15;  // of 2^53, less one

// A bound of numbers without sign; as many digits of the fraction as it has.
struct Limit {
  std::string integer, fraction;
  bool is_exclusive;
};

ExpressionPtr digit_between(char first, char last) {
  return character(CodeSet{{static_cast<char32_t>(first), static_cast<char32_t>(last)}});
}

// Numbers without sign, digit by digit. While all digits are a limit's so far it holds for the next one: "tight".
class Magnitudes {
 public:
  Magnitudes(Limit low, Limit high, std::size_t fraction, std::uint32_t multiple_of, Rules& rules,
             Budget& budget)
      : low_(std::move(low)),
        high_(std::move(high)),
        max_fraction_(fraction),
        multiple_of_(multiple_of),
        rules_(rules),
        budget_(budget) {}

  ExpressionPtr expression() {
    std::vector<ExpressionPtr> lengths;
    for (std::size_t n = low_.integer.size(); n <= high_.integer.size(); ++n) {
      length_ = n;
      lengths.push_back(integer({n, n == low_.integer.size(), n == high_.integer.size(), 0}));
    }
    return choice(std::move(lengths));
  }

 private:
  struct At {
    std::size_t left;  // digits of the integer
    bool is_low, is_high;
    std::uint32_t remainder;  // of the digits so far, in their places
    auto operator<=>(const At&) const = default;
  };

  ExpressionPtr integer(const At& at) {
    if (at.left == 0) return at.remainder == 0 ? fraction(0, at.is_low, at.is_high) : choice({});
    const bool is_first = at.left == length_;
    if (!is_first && !at.is_low && !at.is_high && multiple_of_ == 1)
      return sequence({repeat(digit_between('0', '9'), static_cast<std::uint32_t>(at.left),
                              static_cast<std::uint32_t>(at.left)),
                       fraction(0, false, false)});
    const auto key = std::make_pair(is_first, at);
    if (const auto found = known_.find(key); found != known_.end() && !is_first)
      return reference(found->second);
    const std::size_t index = length_ - at.left;
    const char first = at.is_low ? low_.integer[index] : is_first && length_ > 1 ? '1' : '0';
    const char last = at.is_high ? high_.integer[index] : '9';
    const auto then = [&](char digit) {
      const auto value = static_cast<std::uint32_t>(digit - '0') * power_of_ten(at.left - 1);
      return At{at.left - 1, at.is_low && digit == first, at.is_high && digit == last,
                (at.remainder + value) % multiple_of_};
    };
    const RuleId rule = rules_.add(step(
        first, last, [&](char digit) { return integer(then(digit)); },
        multiple_of_ > 1 ? last - first + 1 : 1));
    known_[key] = rule;
    return reference(rule);
  }

  std::uint32_t power_of_ten(std::size_t exponent) const {
    std::uint32_t power = 1;
    for (; exponent > 0; --exponent) power = power * 10 % multiple_of_;
    return power;
  }

  // `index` digits of the fraction have been written.
  ExpressionPtr fraction(std::size_t index, bool is_low, bool is_high) {
    if (!is_low && !is_high)
      return index == 0
                 ? any_fraction()
                 : repeat(digit_between('0', '9'), 0, static_cast<std::uint32_t>(max_fraction_ - index));
    std::vector<ExpressionPtr> ways;
    const bool fits_low = !is_low || (index >= low_.fraction.size() && !low_.is_exclusive);
    const bool fits_high = !is_high || index < high_.fraction.size() || !high_.is_exclusive;
    if (fits_low && fits_high) ways.push_back(nothing());
    if (index < max_fraction_) {
      const char first = is_low && index < low_.fraction.size() ? low_.fraction[index] : '0';
      const char last = !is_high ? '9' : index < high_.fraction.size() ? high_.fraction[index] : '0';
      const ExpressionPtr more = step(
          first, last,
          [&](char digit) { return fraction(index + 1, is_low && digit == first, is_high && digit == last); },
          1);
      ways.push_back(index == 0 ? sequence({text("."), more}) : more);
    }
    return choice(std::move(ways));
  }

  ExpressionPtr any_fraction() const {
    if (max_fraction_ == 0) return nothing();
    return optional(
        sequence({text("."), repeat(digit_between('0', '9'), 1, static_cast<std::uint32_t>(max_fraction_))}));
  }

  // A digit from `first` to `last` and what follows it. The first and the last may be tight; of those between them
  // `different` are asked for one by one.
  template <typename Then>
  ExpressionPtr step(char first, char last, Then then, int different) {
    std::vector<ExpressionPtr> ways;
    budget_.charge(10);
    for (char digit = first; digit <= last; ++digit) {
      const char from = digit;
      if (different == 1 && digit > first && digit < last) digit = static_cast<char>(last - 1);
      ExpressionPtr& digits = digits_[from - '0'][digit - '0'];
      if (!digits) digits = digit_between(from, digit);
      ways.push_back(sequence({digits, then(from)}));
    }
    return choice(std::move(ways));
  }

  const Limit low_, high_;
  const std::size_t max_fraction_;
  const std::uint32_t multiple_of_;
  Rules& rules_;
  Budget& budget_;
  std::size_t length_ = 0;
  std::map<std::pair<bool, At>, RuleId> known_;
  std::array<std::array<ExpressionPtr, 10>, 10> digits_;  // from one to another, as far as they are asked for
};

std::string trimmed_integer(std::string digits) {
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
  return digits;
}

// Of the two, without looking at signs.
int compare_magnitudes(const Decimal& a, const Decimal& b) {
  if (a.integer.size() != b.integer.size()) return a.integer.size() < b.integer.size() ? -1 : 1;
  const int sign = a.integer.compare(b.integer);
  return sign ? sign : a.fraction.compare(b.fraction);
}

// How many digits are written.
struct Digits {
  std::size_t integer, fraction;
};

Digits digits_for(const NumberBounds& bounds, bool integers_only, std::uint32_t multiple_of,
                  const std::string& place) {
  std::size_t integer = 1, fraction = 0;
  bool is_exclusive = false;
  for (const auto& bound : {bounds.lower, bounds.upper}) {
    if (!bound) continue;
    integer = std::max(integer, bound->value.integer.size());
    fraction = std::max(fraction, bound->value.fraction.size());
    is_exclusive |= bound->is_exclusive && !bound->value.is_zero();
  }
  const bool is_open = !bounds.lower || !bounds.upper;
  if (multiple_of > 1 && is_open && integer < kDigitsOfMultiples) return {kDigitsOfMultiples, 0};
  if (integers_only || multiple_of > 1 || integer > kDigitsOfExactIntegers)
    return {!is_open ? integer : integer > kUsualDigits ? kMaxDigits : kUsualDigits, 0};
  if (!is_exclusive) {
    if (fraction > kUsualDigits)
      throw Error(Code::kInvalidArgument, place + ": a bound with more than " + std::to_string(kUsualDigits) +
                                              " digits behind the point is not supported; round it");
    return {is_open ? kUsualDigits : integer, kUsualDigits};
  }
  if (is_open && fraction < kExactDigits)
    integer = std::max(integer, kExactDigits - std::max<std::size_t>(fraction, 6));
  if (integer + fraction > kExactDigits)
    throw Error(Code::kInvalidArgument, place + ": an exclusive bound with more than " +
                                            std::to_string(kExactDigits) +
                                            " digits is not supported; round it");
  return {integer, kExactDigits - integer};
}

// Without bounds beyond all numbers that are written.
NumberBounds near(const NumberBounds& asked, const std::string& place) {
  const auto is_far = [](const NumberBound& bound) { return bound.value.integer.size() > kMaxDigits; };
  NumberBounds out;
  if (asked.lower && !(is_far(*asked.lower) && asked.lower->value.is_negative))
    out.lower.emplace(*asked.lower);
  if (asked.upper && (!is_far(*asked.upper) || asked.upper->value.is_negative))
    out.upper.emplace(*asked.upper);
  if ((out.lower && is_far(*out.lower)) || (out.upper && is_far(*out.upper)))
    throw Error(Code::kInvalidArgument,
                place + ": a bound of more than " + std::to_string(kMaxDigits) + " digits is not supported");
  return out;
}

}  // namespace

Decimal Decimal::of(const Json& number) {
  Decimal out;
  std::string digits;
  if (number.is_number_float()) {
    std::array<char, 1100> buffer;
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number.get<double>(),
                                   std::chars_format::fixed);
    digits.assign(buffer.data(), end.ptr);
  } else {
    digits = to_text(number);
  }
  out.is_negative = digits.starts_with('-');
  digits.erase(0, out.is_negative);
  const std::size_t point = std::min(digits.find('.'), digits.size());
  out.integer = trimmed_integer(digits.substr(0, point));
  if (point < digits.size()) out.fraction = digits.substr(point + 1);
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  if (out.is_zero()) out.is_negative = false;
  return out;
}

bool Decimal::is_multiple_of(std::uint32_t divisor) const {
  std::uint32_t remainder = 0;
  for (const char digit : integer)
    remainder = (remainder * 10 + static_cast<std::uint32_t>(digit - '0')) % divisor;
  return fraction.empty() && remainder == 0;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.is_negative != b.is_negative) return a.is_negative ? -1 : 1;
  const int sign = compare_magnitudes(a, b);
  return a.is_negative ? -sign : sign;
}

void NumberBounds::narrow_lower(const NumberBound& bound) {
  const int sign = lower ? compare(bound.value, lower->value) : 1;
  if (sign > 0 || (sign == 0 && bound.is_exclusive)) lower = bound;
}

void NumberBounds::narrow_upper(const NumberBound& bound) {
  const int sign = upper ? compare(bound.value, upper->value) : -1;
  if (sign < 0 || (sign == 0 && bound.is_exclusive)) upper = bound;
}

ExpressionPtr numbers_between(const NumberBounds& asked, bool integers_only, std::uint32_t multiple_of,
                              const std::string& place, Rules& rules, Budget& budget) {
  const NumberBounds bounds = near(asked, place);
  if (bounds.lower && bounds.upper && compare(bounds.lower->value, bounds.upper->value) > 0)
    return choice({});
  const Digits digits = digits_for(bounds, integers_only, multiple_of, place);
  const Limit zero{"0", "", false},
      last{std::string(digits.integer, '9'), std::string(digits.fraction, '9'), false};
  const auto limit = [](const std::optional<NumberBound>& bound, const Limit& otherwise) {
    return bound ? Limit{bound->value.integer, bound->value.fraction, bound->is_exclusive} : otherwise;
  };
  const auto between = [&](const Limit& low, const Limit& high) {
    return Magnitudes(low, high, digits.fraction, multiple_of, rules, budget).expression();
  };
  const bool has_negative = !bounds.lower || bounds.lower->value.is_negative;
  const bool has_positive = !bounds.upper || !bounds.upper->value.is_negative;
  std::vector<ExpressionPtr> ways;
  if (has_positive)
    ways.push_back(between(has_negative ? zero : limit(bounds.lower, zero), limit(bounds.upper, last)));
  if (has_negative) {
    const bool has_zero =
        has_positive && !(bounds.upper && bounds.upper->value.is_zero() && bounds.upper->is_exclusive);
    const Limit low = has_positive ? Limit{"0", "", !has_zero} : limit(bounds.upper, zero);
    ways.push_back(sequence({text("-"), between(low, limit(bounds.lower, last))}));
  }
  return choice(std::move(ways));
}

}  // namespace ark::text::grammar
