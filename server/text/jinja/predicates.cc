// What can follow `is`.
#include "server/text/jinja/builtins.h"

namespace ark::text::jinja {
namespace {

template <bool (Value::*kProperty)() const>
Value has(Call& c) {
  return (c.input.*kProperty)();
}

Value same(Call& c) { return equal(c.input, c.get(0), c.budget); }
Value differs(Call& c) { return !equal(c.input, c.get(0), c.budget); }
Value less(Call& c) { return compare(c.input, c.get(0), c.budget) < 0; }
Value at_most(Call& c) { return compare(c.input, c.get(0), c.budget) <= 0; }
Value greater(Call& c) { return compare(c.input, c.get(0), c.budget) > 0; }
Value at_least(Call& c) { return compare(c.input, c.get(0), c.budget) >= 0; }

bool leaves(Call& c, const Value& divisor, int rest) {
  return equal(calculate(Arithmetic::kModulo, c.input, divisor, c.budget), rest, c.budget);
}

constexpr Builtin kTests[] = {
    {"defined", "", [](Call& c) -> Value { return !c.input.is_undefined(); }},
    {"undefined", "", has<&Value::is_undefined>},
    {"none", "", has<&Value::is_none>},
    {"boolean", "", has<&Value::is_bool>},
    {"true", "", [](Call& c) -> Value { return c.input.is_bool() && c.input.as_bool(); }},
    {"false", "", [](Call& c) -> Value { return c.input.is_bool() && !c.input.as_bool(); }},
    {"integer", "", has<&Value::is_int>},
    {"float", "", has<&Value::is_float>},
    {"number", "", has<&Value::is_number>},
    {"string", "", has<&Value::is_string>},
    {"mapping", "", has<&Value::is_dict>},
    {"iterable", "",
     [](Call& c) -> Value {
       return c.input.is_undefined() || c.input.is_string() || c.input.is_list() || c.input.is_dict();
     }},
    {"sequence", "",
     [](Call& c) -> Value {
       return c.input.is_undefined() || c.input.is_string() || c.input.is_dict() || c.input.is_sequence();
     }},
    {"callable", "", [](Call& c) -> Value { return c.input.is_callable() || c.input.is_undefined(); }},
    {"sameas", "other", [](Call& c) -> Value { return c.input.same_object(c.get(0)); }},
    {"in", "seq", [](Call& c) -> Value { return contains(c.get(0), c.input, c.budget); }},
    {"eq", "other", same},
    {"equalto", "other", same},
    {"==", "other", same},
    {"ne", "other", differs},
    {"!=", "other", differs},
    {"lt", "other", less},
    {"lessthan", "other", less},
    {"<", "other", less},
    {"le", "other", at_most},
    {"<=", "other", at_most},
    {"gt", "other", greater},
    {"greaterthan", "other", greater},
    {">", "other", greater},
    {"ge", "other", at_least},
    {">=", "other", at_least},
    {"divisibleby", "num", [](Call& c) -> Value { return leaves(c, c.get(0), 0); }},
    {"odd", "", [](Call& c) -> Value { return leaves(c, 2, 1); }},
    {"even", "", [](Call& c) -> Value { return leaves(c, 2, 0); }},
};

}  // namespace

const Builtin* find_test(std::string_view name) { return find_named(kTests, name); }

}  // namespace ark::text::jinja
