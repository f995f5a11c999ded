// Functions, filters, tests and methods that templates can call: what published chat templates use. README.md
// lists them.
#pragma once

#include <optional>
#include <string_view>

#include "server/text/jinja/interpreter.h"

namespace ark::text::jinja {

using Filter = Value (*)(Interpreter&, const Value& input, const Arguments&);
using Test = bool (*)(Interpreter&, const Value& input, const Arguments&);

Filter find_filter(std::string_view name);                  // null if unknown
Test find_test(std::string_view name);                      // null if unknown
std::optional<Value> find_function(std::string_view name);  // range, namespace, raise_exception ...
// object.name as a bound method, if there is one.
std::optional<Value> find_method(const Value& object, std::string_view name);

// A table of what can be called, and a search in it: null if the name is not there.
template <typename Function>
struct Named {
  std::string_view name;
  Function function;
};
template <typename Function, std::size_t kCount>
constexpr Function find_named(const Named<Function> (&table)[kCount], std::string_view name) {
  for (const Named<Function>& entry : table)
    if (entry.name == name) return entry.function;
  return nullptr;
}

Filter find_sequence_filter(std::string_view name);  // find_filter's part for lists: map, select, sort ...

}  // namespace ark::text::jinja
