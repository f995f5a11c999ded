// Reading a request's JSON body: every refusal is a 400 that names the field.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "server/api/field.h"
#include "server/http/message.h"
#include "server/json_fwd.h"

namespace ark::api {

// A target's query as an object: "n=3&id=a%20b" -> {"n": 3, "id": "a b"}, integers where a field is one. Throws
// HttpError 400.
Json parse_query(std::string_view query, const std::vector<Field>& fields);

// The body as an object, of a size that takes bounded time and memory; frees `body`. Throws HttpError 400.
Json parse_body(std::string& body);
// `param`: the field that it stands in, if any.
Json parse_json(std::string_view text, const std::string& what, const std::string& param = "");

inline constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();  // equals none

// The members of one object. Those that are absent or null read as nullopt; unknown ones are ignored.
class Fields {
 public:
  explicit Fields(const Json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  const Json* find(const std::string& name) const;  // null if absent or null
  bool has(const std::string& name) const;          // also as null
  std::string path(const std::string& name) const { return prefix_ + name; }
  const Json& object() const { return object_; }

  // As the field's description says: its type and range, or 400. A flag that is absent has its standard value.
  std::optional<int64_t> get(const IntegerField& f) const { return integer(f.name, f.low, f.high); }
  std::optional<double> get(const NumberField& f) const { return number(f.name, f.low, f.high); }
  bool get(const FlagField& f) const { return boolean(f.name).value_or(f.standard); }
  std::optional<bool> given(const FlagField& f) const { return boolean(f.name); }
  std::optional<std::string> get(const TextField& f) const { return string(f.name); }
  std::optional<std::vector<std::string>> get(const TextsField& f) const;
  std::optional<std::vector<int32_t>> get(const IdsField& f) const { return ids(f.name, f.most); }
  const Json* get(const OtherField& f) const { return find(f.name); }

  // Whole numbers, also written as 16.0. Beyond the range: 400.
  std::optional<int64_t> integer(const std::string& name, int64_t low, int64_t high) const;
  std::optional<double> number(const std::string& name, double low, double high) const;
  std::optional<bool> boolean(const std::string& name) const;
  std::optional<std::string> string(const std::string& name) const;
  // Also a single one.
  std::optional<std::vector<std::string>> strings(const std::string& name, std::size_t most) const;
  std::optional<std::vector<int32_t>> ids(const std::string& name, std::size_t most) const;

  // 400 for a field that would change the answer if it were not ignored. Null, false, empty values and the number
  // `neutral` ask for nothing.
  void refuse(const std::string& name, double neutral, const std::string& why = "is not supported") const;

  [[noreturn]] void fail(const std::string& name, const std::string& message) const;
  [[noreturn]] void wrong_type(const std::string& name, const std::string& wanted) const;

 private:
  const Json& object_;
  std::string prefix_;
};

// "a string", "an object", ... for messages.
std::string kind_of(const Json& value);

}  // namespace ark::api
