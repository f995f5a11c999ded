// The one JSON type, and the few functions that parse and print it.
//
// A header that only names Json includes server/json_fwd.h: to read <nlohmann/json.hpp> takes longer than to compile
// most of our files. Parsing and printing are compiled once, in json.cc; Json::parse and Json::dump would be compiled
// again by each file that calls them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

#include "server/json_fwd.h"
#include "server/ordered_map.h"

namespace ark {

// Why a text is not JSON: "parse error at line 1, column 2: ...".
class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What a text may hold at most, so that parsing it takes bounded time and memory.
struct JsonLimits {
  std::size_t depth, values;       // values: about, as commas and brackets
  std::size_t members = SIZE_MAX;  // of one object
};
// "is nested deeper than 64 levels"; empty where the text, JSON or not, is within the limits.
std::string why_too_large(std::string_view text, const JsonLimits& limits);

Json parse_json(std::string_view text);             // throws JsonError
Json parse_json_or_discard(std::string_view text);  // is_discarded() where the text is not JSON

// On one line, or indented by `indent` blanks a level; strings that are not UTF-8 get U+FFFD. `ascii`: what is
// beyond it is written as \uXXXX.
std::string to_text(const Json& json, int indent = -1, bool ascii = false);
// Where the string ends whose quote stands at `begin`: behind its other quote, or at the end of a text that lacks it.
std::size_t end_of_string(std::string_view json, std::size_t begin);
// JSON as it is written, but for the blanks between its parts: numbers that no 64 bits hold stay what they are.
std::string compact_text(std::string_view json);

}  // namespace ark
