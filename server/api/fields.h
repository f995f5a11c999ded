// Reading a request's JSON body: every refusal is a 400 that names the field.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/http/message.h"

namespace ark::api {

using Json = nlohmann::ordered_json;  // keeps the order of tool schemas, which templates print

// What a body may hold at most, so that parsing it takes bounded time and memory.
struct JsonLimits {
  std::size_t depth = 64;
  std::size_t values = 1 << 20;
  std::size_t members = 2048;  // of one object
};

// The body as an object; frees `body`. Throws HttpError 400.
Json parse_body(std::string& body, const JsonLimits& limits = {});
Json parse_json(std::string_view text, const std::string& what, const JsonLimits& limits = {});

// One line of JSON; strings that are not UTF-8 get U+FFFD.
std::string to_text(const Json& json);

// The members of one object. Those that are absent or null read as nullopt; unknown ones are ignored.
class Fields {
 public:
  explicit Fields(const Json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  const Json* find(const std::string& name) const;  // null if absent or null
  std::string path(const std::string& name) const { return prefix_ + name; }

  // Whole numbers, also written as 16.0. Beyond the range: 400.
  std::optional<int64_t> integer(const std::string& name, int64_t low, int64_t high) const;
  std::optional<double> number(const std::string& name, double low, double high) const;
  std::optional<bool> boolean(const std::string& name) const;
  std::optional<std::string> string(const std::string& name) const;
  std::optional<std::vector<std::string>> strings(const std::string& name,
                                                  std::size_t most) const;  // also a single one
  std::optional<std::vector<int32_t>> ids(const std::string& name, std::size_t most) const;

  [[noreturn]] void fail(const std::string& name, const std::string& message) const;
  [[noreturn]] void wrong_type(const std::string& name, const std::string& wanted) const;

 private:
  const Json& object_;
  std::string prefix_;
};

// "a string", "an object", ... for messages.
std::string kind_of(const Json& value);
// The integer that `value` stands for, if it is one.
std::optional<int64_t> as_integer(const Json& value);

}  // namespace ark::api
