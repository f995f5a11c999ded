#include "server/json.h"

#include <algorithm>
#include <vector>

namespace ark {

// Looks at no more than strings, brackets, commas and colons.
std::string why_too_large(std::string_view text, const JsonLimits& limits) {
  std::vector<std::size_t> members;  // by depth: colons seen
  std::size_t values = 1;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {  // most of a text: no limit is near
      i = end_of_string(text, i) - 1;
      continue;
    }
    if (c == '{' || c == '[')
      members.push_back(0), ++values;
    else if ((c == '}' || c == ']') && !members.empty())
      members.pop_back();
    else if (c == ':' && !members.empty())
      ++members.back();
    else
      values += c == ',';
    if (members.size() > limits.depth)
      return "is nested deeper than " + std::to_string(limits.depth) + " levels";
    if (values > limits.values) return "holds more than " + std::to_string(limits.values) + " values";
    if (!members.empty() && members.back() > limits.members)
      return "holds an object with more than " + std::to_string(limits.members) + " members";
  }
  return "";
}

// The library takes a NUL for the text's end, and what is behind it for nothing. No JSON holds one.
Json parse_json(std::string_view text) {
  if (const std::size_t at = text.find('\0'); at != text.npos)
    throw JsonError("parse error: byte " + std::to_string(at) + " is NUL");
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    const std::string_view what = e.what();  // "[json.exception.parse_error.101] parse error at line 1, ..."
    const std::size_t end = what.find("] ");
    throw JsonError(std::string(end == std::string_view::npos ? what : what.substr(end + 2)));
  }
}

Json parse_json_or_discard(std::string_view text) {
  return text.find('\0') == text.npos ? Json::parse(text, nullptr, false) : Json(Json::value_t::discarded);
}

std::string to_text(const Json& json, int indent, bool ascii) {
  return json.dump(indent, ' ', ascii, Json::error_handler_t::replace);
}

std::size_t end_of_string(std::string_view json, std::size_t begin) {
  std::size_t at = begin + 1;
  while (at < json.size() && json[at] != '"') at += json[at] == '\\' ? 2 : 1;
  return std::min(at + 1, json.size());
}

std::string compact_text(std::string_view json) {
  constexpr std::string_view kBlanks = " \t\r\n";
  std::string out;
  for (std::size_t i = 0, end = 0; i < json.size(); i = end) {
    end = json[i] == '"' ? end_of_string(json, i) : i + 1;
    if (kBlanks.find(json[i]) == kBlanks.npos) out += json.substr(i, end - i);
  }
  return out;
}

}  // namespace ark
