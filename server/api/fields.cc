#include "server/api/fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/percent.h"
#include "server/http/message.h"
#include "server/json.h"

namespace ark::api {
namespace {

constexpr JsonLimits kLimits{.depth = 64, .values = 1 << 20, .members = 2048};

[[noreturn]] void refuse(const std::string& message, const std::string& param = "") {
  throw http::HttpError(400, message, param, "invalid_json");
}

std::string range(double low, double high) {
  const auto text = [](double v) {
    char buffer[40];
    std::snprintf(buffer, sizeof buffer, "%.10g", v);
    return std::string(buffer);
  };
  return "between " + text(low) + " and " + text(high);
}

// The integer that `value` stands for, if it is one.
std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned())
    return value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
               ? std::optional(value.get<int64_t>())
               : std::nullopt;
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double real = value.get<double>();
  if (!(std::abs(real) <= 9e15) || real != std::floor(real)) return std::nullopt;
  return static_cast<int64_t>(real);
}

}  // namespace

Json parse_json(std::string_view text, const std::string& what, const std::string& param) {
  if (const std::string why = why_too_large(text, kLimits); !why.empty()) refuse(what + " " + why, param);
  try {
    return ark::parse_json(text);
  } catch (const JsonError& e) {
    refuse(what + " is not valid JSON: " + escaped(e.what(), 200), param);
  }
}

Json parse_body(std::string& body) {
  if (body.find_first_not_of(" \t\r\n") == std::string::npos)
    refuse("the body is empty; a JSON object is needed");
  Json json = parse_json(body, "the body");
  if (!json.is_object()) refuse("the body must be a JSON object, not " + kind_of(json));
  body = std::string();
  return json;
}

Json parse_query(std::string_view query, const std::vector<Field>& fields) {
  Json values = Json::object();
  while (!query.empty()) {
    const std::string_view part = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(part.size() + 1, query.size()));
    const std::size_t equals = std::min(part.find('='), part.size());
    const auto decoded = [](std::string_view text) {
      std::string spaced(text);
      std::ranges::replace(spaced, '+', ' ');
      return percent_decoded(spaced);
    };
    const std::string name = decoded(part.substr(0, equals));
    const std::string value = decoded(part.substr(std::min(equals + 1, part.size())));
    if (name.empty()) continue;
    if (values.contains(name))
      throw http::HttpError(400, escaped(name) + " is given twice", name, "invalid_value");
    const auto is_it = [&](const Field& field) {
      const auto* integer = std::get_if<IntegerField>(&field);
      return integer && integer->name == name;
    };
    int64_t number = 0;
    const char* const end = value.data() + value.size();
    const auto [last, error] = std::from_chars(value.data(), end, number);
    if (std::ranges::any_of(fields, is_it) && error == std::errc() && last == end)
      values[name] = number;
    else
      values[name] = value;
  }
  return values;
}

std::string kind_of(const Json& value) {
  if (value.is_string()) return "a string";
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  if (value.is_boolean()) return "a boolean";
  if (value.is_number_integer()) return "an integer";
  if (value.is_number()) return "a number";
  return "null";
}

const Json* Fields::find(const std::string& name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool Fields::has(const std::string& name) const { return object_.contains(name); }

void Fields::fail(const std::string& name, const std::string& message) const {
  throw http::HttpError(400, path(name) + " " + message, path(name), "invalid_value");
}

void Fields::refuse(const std::string& name, double neutral, const std::string& why) const {
  const Json* value = find(name);
  const bool asks_nothing = !value || *value == false || *value == "" ||
                            (value->is_structured() && value->empty()) ||
                            (value->is_number() && value->get<double>() == neutral);
  if (!asks_nothing) fail(name, why);
}

void Fields::wrong_type(const std::string& name, const std::string& wanted) const {
  const auto found = object_.find(name);
  throw http::HttpError(
      400,
      path(name) + " must be " + wanted + ", not " + (found == object_.end() ? "absent" : kind_of(*found)),
      path(name), "invalid_type");
}

std::optional<int64_t> Fields::integer(const std::string& name, int64_t low, int64_t high) const {
  const Json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_number()) wrong_type(name, "an integer");
  const auto integer = as_integer(*value);
  if (!integer && value->is_number_float() && std::abs(value->get<double>()) < 9e15)
    wrong_type(name, "an integer");
  if (!integer || *integer < low || *integer > high)
    fail(name, "must be between " + std::to_string(low) + " and " + std::to_string(high) + ", not " +
                   escaped(to_text(*value), 40));
  return integer;
}

std::optional<double> Fields::number(const std::string& name, double low, double high) const {
  const Json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_number()) wrong_type(name, "a number");
  const double number = value->get<double>();
  if (!(number >= low && number <= high))
    fail(name, "must be " + range(low, high) + ", not " + escaped(to_text(*value), 40));
  return number;
}

std::optional<bool> Fields::boolean(const std::string& name) const {
  const Json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) wrong_type(name, "a boolean");
  return value->get<bool>();
}

std::optional<std::string> Fields::string(const std::string& name) const {
  const Json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_string()) wrong_type(name, "a string");
  return value->get<std::string>();
}

std::optional<std::vector<std::string>> Fields::strings(const std::string& name, std::size_t most) const {
  const Json* value = find(name);
  if (!value) return std::nullopt;
  if (value->is_string()) return std::vector{value->get<std::string>()};
  if (!value->is_array()) wrong_type(name, "a string or an array of strings");
  if (value->size() > most) fail(name, "holds more than " + std::to_string(most) + " strings");
  std::vector<std::string> all;
  for (const Json& item : *value) {
    if (!item.is_string()) fail(name, "must hold strings only, not " + kind_of(item));
    all.push_back(item.get<std::string>());
  }
  return all;
}

std::optional<std::vector<std::string>> Fields::get(const TextsField& f) const {
  auto all = strings(f.name, f.most);
  for (const std::string& text : all.value_or(std::vector<std::string>()))
    if (text.size() > f.most_bytes)
      fail(f.name, "has a string of more than " + std::to_string(f.most_bytes) + " bytes");
  return all;
}

std::optional<std::vector<int32_t>> Fields::ids(const std::string& name, std::size_t most) const {
  const Json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_array()) wrong_type(name, "an array of token ids");
  if (value->size() > most) fail(name, "holds more than " + std::to_string(most) + " token ids");
  std::vector<int32_t> all;
  all.reserve(value->size());
  for (const Json& item : *value) {
    const auto id = as_integer(item);
    if (!id || *id < 0 || *id > std::numeric_limits<int32_t>::max())
      fail(name, "must hold token ids, not " + escaped(to_text(item, -1, true), 40));
    all.push_back(static_cast<int32_t>(*id));
  }
  return all;
}

}  // namespace ark::api
