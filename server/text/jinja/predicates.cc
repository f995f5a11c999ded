// What can follow `is`.
#include <cmath>

#include "server/text/jinja/arguments.h"
#include "server/text/jinja/builtins.h"
#include "server/text/jinja/strings.h"
#include "server/text/unicode.h"

namespace ark::text::jinja {
namespace {

template <bool (Value::*kProperty)() const>
bool has(Interpreter&, const Value& input, const Arguments& arguments) {
  Parameters(arguments, "this test", {});
  return (input.*kProperty)();
}

template <bool (*kCompare)(const Value&, const Value&)>
bool compared(Interpreter&, const Value& input, const Arguments& arguments) {
  return kCompare(input, Parameters(arguments, "this test", {"other"}).get(0));
}

bool unequal(const Value& a, const Value& b) { return !equal(a, b); }
bool less(const Value& a, const Value& b) { return compare(a, b) < 0; }
bool less_or_equal(const Value& a, const Value& b) { return compare(a, b) <= 0; }
bool greater(const Value& a, const Value& b) { return compare(a, b) > 0; }
bool greater_or_equal(const Value& a, const Value& b) { return compare(a, b) >= 0; }
bool is_in(const Value& a, const Value& b) { return contains(b, a); }
bool same(const Value& a, const Value& b) { return a.same_object(b); }

bool divisible(const Value& a, const Value& b) {
  Meter meter;
  return equal(calculate(Arithmetic::kModulo, a, b, meter), Value(0));
}

bool defined(Interpreter&, const Value& input, const Arguments&) { return !input.is_undefined(); }
bool is_true(Interpreter&, const Value& input, const Arguments&) {
  return input.is_bool() && input.as_bool();
}
bool is_false(Interpreter&, const Value& input, const Arguments&) {
  return input.is_bool() && !input.as_bool();
}
bool odd(Interpreter&, const Value& input, const Arguments&) {
  Meter meter;
  return equal(calculate(Arithmetic::kModulo, input, Value(2), meter), Value(1));
}
bool even(Interpreter&, const Value& input, const Arguments&) { return divisible(input, Value(2)); }

bool iterable(Interpreter&, const Value& input, const Arguments&) {
  return input.is_undefined() || input.is_string() || input.is_list() || input.is_dict();
}

bool sequence(Interpreter&, const Value& input, const Arguments&) {
  return input.is_undefined() || input.is_string() || input.is_dict() ||
         input.is_flavor(List::Flavor::kList) || input.is_flavor(List::Flavor::kTuple) ||
         input.is_flavor(List::Flavor::kRange);
}

bool callable(Interpreter&, const Value& input, const Arguments&) {
  return input.is_callable() || input.is_undefined();
}
bool escaped(Interpreter&, const Value&, const Arguments&) { return false; }

bool lower_case(Interpreter& interpreter, const Value& input, const Arguments&) {
  Arguments none;
  const Value text(to_text(input));
  return truthy(interpreter.call(*find_method(text, "islower"), none));
}

bool upper_case(Interpreter& interpreter, const Value& input, const Arguments&) {
  Arguments none;
  const Value text(to_text(input));
  return truthy(interpreter.call(*find_method(text, "isupper"), none));
}

bool is_filter(Interpreter&, const Value& input, const Arguments&) {
  return input.is_string() && (find_filter(input.as_string()) || find_sequence_filter(input.as_string()));
}

bool is_test(Interpreter&, const Value& input, const Arguments&) {
  return input.is_string() && find_test(input.as_string()) != nullptr;
}

struct Entry {
  std::string_view name;
  Test test;
};

constexpr Entry kTests[] = {
    {"defined", defined},
    {"undefined", has<&Value::is_undefined>},
    {"none", has<&Value::is_none>},
    {"boolean", has<&Value::is_bool>},
    {"true", is_true},
    {"false", is_false},
    {"integer", has<&Value::is_int>},
    {"float", has<&Value::is_float>},
    {"number", has<&Value::is_number>},
    {"string", has<&Value::is_string>},
    {"mapping", has<&Value::is_dict>},
    {"iterable", iterable},
    {"sequence", sequence},
    {"callable", callable},
    {"sameas", compared<same>},
    {"in", compared<is_in>},
    {"eq", compared<equal>},
    {"equalto", compared<equal>},
    {"==", compared<equal>},
    {"ne", compared<unequal>},
    {"!=", compared<unequal>},
    {"lt", compared<less>},
    {"lessthan", compared<less>},
    {"<", compared<less>},
    {"le", compared<less_or_equal>},
    {"<=", compared<less_or_equal>},
    {"gt", compared<greater>},
    {"greaterthan", compared<greater>},
    {">", compared<greater>},
    {"ge", compared<greater_or_equal>},
    {">=", compared<greater_or_equal>},
    {"divisibleby", compared<divisible>},
    {"odd", odd},
    {"even", even},
    {"lower", lower_case},
    {"upper", upper_case},
    {"escaped", escaped},
    {"filter", is_filter},
    {"test", is_test},
};

}  // namespace

Test find_test(std::string_view name) {
  for (const Entry& entry : kTests)
    if (entry.name == name) return entry.test;
  return nullptr;
}

}  // namespace ark::text::jinja
