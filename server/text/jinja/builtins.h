// Functions, filters, tests and methods that templates can call: what published chat templates use. README.md
// lists them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/jinja/interpreter.h"

namespace ark::text::jinja {

class Call;

struct Builtin {
  std::string_view name;
  std::string_view parameters;  // names with a blank between them; "*": takes the arguments as they are
  Value (*run)(Call&);
};

// A call of a builtin: what stands before the bar, the dot or `is`, and the arguments by parameter.
class Call {
 public:
  // TemplateError for arguments that no parameter takes.
  Call(const Builtin& builtin, Interpreter& interpreter, const Value& input, const Arguments& arguments);

  bool has(std::size_t index) const { return values_[index].has_value(); }
  bool given(std::size_t index) const { return has(index) && !values_[index]->is_none(); }
  const Value& get(std::size_t index) const;
  Value get_or(std::size_t index, Value fallback) const { return has(index) ? *values_[index] : fallback; }
  std::int64_t integer(std::size_t index) const;
  std::int64_t integer_or(std::size_t index, std::int64_t fallback) const {
    return has(index) ? integer(index) : fallback;
  }
  const std::string& string(std::size_t index) const;
  std::optional<std::string> string_if_given(std::size_t index) const {
    return given(index) ? std::optional(string(index)) : std::nullopt;
  }
  bool flag(std::size_t index) const { return has(index) && truthy(*values_[index]); }
  std::string text() const { return to_text(input, budget); }

  [[noreturn]] void fail(const std::string& message) const;
  [[noreturn]] void wrong_type(const char* wanted, const Value& value) const;

  const Builtin& builtin;
  Interpreter& interpreter;
  Budget& budget;
  const Value& input;
  const Arguments& arguments;

 private:
  std::vector<std::optional<Value>> values_;
};

// Null if there is none of this name.
const Builtin* find_filter(std::string_view name);
const Builtin* find_sequence_filter(std::string_view name);  // the part for lists: map, select, sort ...
const Builtin* find_test(std::string_view name);

Value bound(const Builtin& builtin, const Value& object);   // a function that calls it
std::optional<Value> find_function(std::string_view name);  // range, namespace, raise_exception ...
// object.name as a bound method, if there is one.
std::optional<Value> find_method(const Value& object, std::string_view name);

template <std::size_t kCount>
constexpr const Builtin* find_named(const Builtin (&table)[kCount], std::string_view name) {
  for (const Builtin& entry : table)
    if (entry.name == name) return &entry;
  return nullptr;
}

}  // namespace ark::text::jinja
