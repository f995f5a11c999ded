#include <algorithm>
#include <cmath>

#include "server/text/jinja/operations.h"

namespace ark::text::jinja {
namespace {

constexpr const char* kSymbols[] = {"+", "-", "*", "/", "//", "%"};

[[noreturn]] void no_operator(Arithmetic operation, const Value& a, const Value& b) {
  if (a.is_undefined()) use_of_undefined(a);
  if (b.is_undefined()) use_of_undefined(b);
  throw TemplateError(std::string("unsupported operand types for ") + kSymbols[static_cast<int>(operation)] +
                      ": '" + a.type_name() + "' and '" + b.type_name() + "'");
}

void refuse(bool overflow) {
  if (overflow) throw TemplateError("an integer exceeds 64 bits");
}

std::int64_t multiply(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  refuse(__builtin_mul_overflow(a, b, &result));
  return result;
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0) throw TemplateError("integer division or modulo by zero");
  refuse(a == INT64_MIN && b == -1);
  const std::int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0));
}

double float_modulo(double a, double b) {
  if (b == 0) throw TemplateError("float modulo by zero");
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

double float_floor_divide(double a, double b) {
  if (b == 0) throw TemplateError("float floor division by zero");
  const double rest = float_modulo(a, b), quotient = (a - rest) / b;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

Value calculate_integers(Arithmetic operation, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  switch (operation) {
    case Arithmetic::kAdd:
      refuse(__builtin_add_overflow(a, b, &result));
      return result;
    case Arithmetic::kSubtract:
      refuse(__builtin_sub_overflow(a, b, &result));
      return result;
    case Arithmetic::kMultiply:
      return multiply(a, b);
    case Arithmetic::kFloorDivide:
      return floor_divide(a, b);
    default:
      return a - multiply(floor_divide(a, b), b);  // modulo
  }
}

Value calculate_numbers(Arithmetic operation, const Value& a, const Value& b) {
  if (operation == Arithmetic::kDivide) {
    if (b.as_number() == 0) throw TemplateError("division by zero");
    return a.as_number() / b.as_number();
  }
  if (a.is_integral() && b.is_integral()) return calculate_integers(operation, a.as_int(), b.as_int());
  switch (operation) {
    case Arithmetic::kAdd:
      return a.as_number() + b.as_number();
    case Arithmetic::kSubtract:
      return a.as_number() - b.as_number();
    case Arithmetic::kMultiply:
      return a.as_number() * b.as_number();
    case Arithmetic::kFloorDivide:
      return float_floor_divide(a.as_number(), b.as_number());
    default:
      return float_modulo(a.as_number(), b.as_number());
  }
}

Value repeat(const Value& sequence, std::int64_t times, Budget& budget) {
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(times, 0));
  if (count > (std::size_t{1} << 32)) throw TemplateError("a sequence is repeated too often");
  if (sequence.is_string()) {
    budget.charge_bytes(sequence.as_string().size() * count);
    std::string out;
    out.reserve(sequence.as_string().size() * count);
    for (std::size_t i = 0; i < count && !sequence.as_string().empty(); ++i) out += sequence.as_string();
    return out;
  }
  const auto& items = sequence.as_list().items;
  std::vector<Value> out = room_for(items.size() * count, budget);
  for (std::size_t i = 0; i < count && !items.empty(); ++i) out.insert(out.end(), items.begin(), items.end());
  return Value::list(std::move(out), sequence.as_list().flavor);
}

Value concatenate(const Value& a, const Value& b, Budget& budget) {
  const auto &first = a.as_list().items, &second = b.as_list().items;
  budget.charge_bytes(kListBytes);
  std::vector<Value> out = room_for(first.size() + second.size(), budget);
  out.insert(out.end(), first.begin(), first.end());
  out.insert(out.end(), second.begin(), second.end());
  return Value::list(std::move(out), a.as_list().flavor);
}

}  // namespace

Value calculate(Arithmetic operation, const Value& a, const Value& b, Budget& budget) {
  if (a.is_number() && b.is_number()) return calculate_numbers(operation, a, b);
  if (operation == Arithmetic::kAdd) {
    if (a.is_string() && b.is_string()) {
      budget.charge_bytes(kTextBytes + a.as_string().size() + b.as_string().size());
      return a.as_string() + b.as_string();
    }
    if (a.is_sequence() && b.is_sequence() && a.as_list().flavor == b.as_list().flavor)
      return concatenate(a, b, budget);
  }
  if (operation == Arithmetic::kMultiply) {
    if ((a.is_string() || a.is_sequence()) && b.is_integral()) return repeat(a, b.as_int(), budget);
    if ((b.is_string() || b.is_sequence()) && a.is_integral()) return repeat(b, a.as_int(), budget);
  }
  no_operator(operation, a, b);
}

Value negate(const Value& value) {
  if (value.is_undefined()) use_of_undefined(value);
  if (value.is_float()) return -value.as_number();
  if (value.is_integral()) return calculate_integers(Arithmetic::kSubtract, 0, value.as_int());
  throw TemplateError(std::string("bad operand type for unary -: '") + value.type_name() + "'");
}

}  // namespace ark::text::jinja
