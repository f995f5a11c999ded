#include "server/json.h"

namespace ark {

Json parse_json(std::string_view text) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    const std::string_view what = e.what();  // "[json.exception.parse_error.101] parse error at line 1, ..."
    const std::size_t end = what.find("] ");
    throw JsonError(std::string(end == std::string_view::npos ? what : what.substr(end + 2)));
  }
}

Json parse_json_or_discard(std::string_view text) { return Json::parse(text, nullptr, false); }

std::string to_text(const Json& json, int indent, bool ascii) {
  return json.dump(indent, ' ', ascii, Json::error_handler_t::replace);
}

}  // namespace ark
