// Python's operators on values. Those whose work grows with their operands charge it to a budget.
#pragma once

#include <optional>

#include "server/text/budget.h"
#include "server/text/jinja/value.h"

namespace ark::text::jinja {

[[noreturn]] void use_of_undefined(const Value& value);

bool truthy(const Value& value);
std::string to_text(const Value& value, Budget& budget);  // str()
std::string repr(const Value& value, Budget& budget);     // repr()
std::string float_repr(double value);

bool equal(const Value& a, const Value& b, Budget& budget);
// Negative, 0 or positive; TemplateError where Python has no order.
int compare(const Value& a, const Value& b, Budget& budget);
bool contains(const Value& container, const Value& item, Budget& budget);

std::size_t length(const Value& value);
// The items that a for-loop would see.
std::vector<Value> iterate(const Value& value, Budget& budget);
std::vector<Value> dict_items(const Dict& dict, Budget& budget);  // tuples of key and value

enum class Arithmetic { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo };
Value calculate(Arithmetic operation, const Value& a, const Value& b, Budget& budget);
Value negate(const Value& value);

// x[key]; nothing where Python raises a lookup or type error.
std::optional<Value> subscript(const Value& object, const Value& key, Budget& budget);
// x[start:stop:step], each None if left out.
Value slice(const Value& object, const Value& start, const Value& stop, const Value& step, Budget& budget);

struct JsonStyle {
  std::optional<std::string> indent;  // of one level
  std::string item_separator = ", ", key_separator = ": ";
  bool ascii = false, sort_keys = false;
};
std::string to_json(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace ark::text::jinja
