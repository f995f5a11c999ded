// Python's operators on values.
#pragma once

#include <optional>

#include "server/json_fwd.h"
#include "server/text/jinja/value.h"

namespace ark::text::jinja {

[[noreturn]] void use_of_undefined(const Value& value);

bool truthy(const Value& value);
std::string to_text(const Value& value);  // str()
std::string repr(const Value& value);     // repr()
std::string float_repr(double value);

bool equal(const Value& a, const Value& b);
// Negative, 0 or positive; TemplateError where Python has no order.
int compare(const Value& a, const Value& b);
bool contains(const Value& container, const Value& item);

std::size_t length(const Value& value);
// The items that a for-loop would see.
std::vector<Value> iterate(const Value& value);

enum class Arithmetic { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
Value calculate(Arithmetic operation, const Value& a, const Value& b, Meter& meter);
Value negate(const Value& value);
Value plus(const Value& value);

// x[key]; nothing where Python raises a lookup or type error.
std::optional<Value> subscript(const Value& object, const Value& key);
// x[start:stop:step], each None if left out.
Value slice(const Value& object, const Value& start, const Value& stop, const Value& step);

// "..." % arguments
std::string format_percent(const std::string& format, const Value& arguments, Meter& meter);

struct JsonStyle {
  std::optional<std::string> indent;  // of one level
  std::string item_separator = ", ", key_separator = ": ";
  bool ascii = false, sort_keys = false;
};
std::string to_json(const Value& value, const JsonStyle& style);
// TemplateError if nested too deeply.
Value from_json(const Json& json, int depth = 0);

}  // namespace ark::text::jinja
