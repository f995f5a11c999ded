// Functions, filters, tests and methods that templates can call.
#pragma once

#include <optional>
#include <string_view>

#include "server/text/jinja/interpreter.h"

namespace ark::text::jinja {

using Filter = Value (*)(Interpreter&, const Value& input, const Arguments&);
using Test = bool (*)(Interpreter&, const Value& input, const Arguments&);

Filter find_filter(std::string_view name);                  // null if unknown
Filter find_sequence_filter(std::string_view name);         // those of lists: map, select, sort ...
Test find_test(std::string_view name);                      // null if unknown
std::optional<Value> find_function(std::string_view name);  // range, namespace, raise_exception ...
// object.name as a bound method, if there is one.
std::optional<Value> find_method(const Value& object, std::string_view name);

}  // namespace ark::text::jinja
