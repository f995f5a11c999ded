// Binds a call's arguments to the parameters of a built-in function.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "server/text/jinja/operations.h"

namespace ark::text::jinja {

class Parameters {
 public:
  // TemplateError for arguments that no parameter takes.
  Parameters(const Arguments& arguments, const char* function, std::initializer_list<const char*> names)
      : function_(function), values_(names.size()) {
    if (arguments.positional.size() > names.size())
      fail("takes at most " + std::to_string(names.size()) + " arguments");
    for (std::size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = arguments.positional[i];
    for (const auto& [name, value] : arguments.keywords) {
      std::size_t index = 0;
      for (const char* parameter : names) {
        if (name == parameter) break;
        ++index;
      }
      if (index == names.size()) fail("got an unexpected keyword argument '" + name + "'");
      if (values_[index]) fail("got multiple values for argument '" + name + "'");
      values_[index] = value;
    }
  }

  bool has(std::size_t index) const { return values_[index].has_value(); }
  bool given(std::size_t index) const { return has(index) && !values_[index]->is_none(); }
  Value get(std::size_t index) const {
    if (!has(index)) fail("lacks argument " + std::to_string(index + 1));
    return *values_[index];
  }
  Value get_or(std::size_t index, Value fallback) const { return has(index) ? *values_[index] : fallback; }
  std::int64_t integer(std::size_t index) const {
    const Value value = get(index);
    if (!value.is_integral()) fail(std::string("needs an integer, not ") + value.type_name());
    return value.as_int();
  }
  std::int64_t integer_or(std::size_t index, std::int64_t fallback) const {
    return has(index) ? integer(index) : fallback;
  }
  std::string string(std::size_t index) const {
    const Value value = get(index);
    if (!value.is_string()) fail(std::string("needs a string, not ") + value.type_name());
    return value.as_string();
  }
  std::string string_or(std::size_t index, const char* fallback) const {
    return has(index) ? string(index) : fallback;
  }
  bool flag(std::size_t index, bool fallback = false) const {
    return has(index) ? truthy(*values_[index]) : fallback;
  }

  [[noreturn]] void fail(const std::string& message) const {
    throw TemplateError(std::string(function_) + "() " + message);
  }

 private:
  const char* function_;
  std::vector<std::optional<Value>> values_;
};

}  // namespace ark::text::jinja
