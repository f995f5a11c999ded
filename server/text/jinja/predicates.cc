// What can follow `is`.
#include "server/text/jinja/arguments.h"
#include "server/text/jinja/builtins.h"

namespace ark::text::jinja {
namespace {

template <bool (Value::*kProperty)() const>
bool has(Interpreter&, const Value& input, const Arguments& arguments) {
  Parameters(arguments, "this test", {});
  return (input.*kProperty)();
}

template <bool (*kCompare)(const Value&, const Value&, Budget&)>
bool compared(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  return kCompare(input, Parameters(arguments, "this test", {"other"}).get(0), interpreter.budget());
}

bool unequal(const Value& a, const Value& b, Budget& budget) { return !equal(a, b, budget); }
bool less(const Value& a, const Value& b, Budget& budget) { return compare(a, b, budget) < 0; }
bool less_or_equal(const Value& a, const Value& b, Budget& budget) { return compare(a, b, budget) <= 0; }
bool greater(const Value& a, const Value& b, Budget& budget) { return compare(a, b, budget) > 0; }
bool greater_or_equal(const Value& a, const Value& b, Budget& budget) { return compare(a, b, budget) >= 0; }
bool is_in(const Value& a, const Value& b, Budget& budget) { return contains(b, a, budget); }
bool same(const Value& a, const Value& b, Budget&) { return a.same_object(b); }

bool divisible(const Value& a, const Value& b, Budget& budget) {
  return equal(calculate(Arithmetic::kModulo, a, b, budget), 0, budget);
}
template <int kRest>
bool parity(Interpreter& interpreter, const Value& input, const Arguments&) {
  return equal(calculate(Arithmetic::kModulo, input, 2, interpreter.budget()), kRest, interpreter.budget());
}

bool defined(Interpreter&, const Value& input, const Arguments&) { return !input.is_undefined(); }
template <bool kWanted>
bool truth(Interpreter&, const Value& input, const Arguments&) {
  return input.is_bool() && input.as_bool() == kWanted;
}
bool iterable(Interpreter&, const Value& input, const Arguments&) {
  return input.is_undefined() || input.is_string() || input.is_list() || input.is_dict();
}
bool sequence(Interpreter&, const Value& input, const Arguments&) {
  return input.is_undefined() || input.is_string() || input.is_dict() || input.is_sequence();
}
bool callable(Interpreter&, const Value& input, const Arguments&) {
  return input.is_callable() || input.is_undefined();
}

constexpr Named<Test> kTests[] = {
    {"defined", defined},
    {"undefined", has<&Value::is_undefined>},
    {"none", has<&Value::is_none>},
    {"boolean", has<&Value::is_bool>},
    {"true", truth<true>},
    {"false", truth<false>},
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
    {"odd", parity<1>},
    {"even", parity<0>},
};

}  // namespace

Test find_test(std::string_view name) { return find_named(kTests, name); }

}  // namespace ark::text::jinja
