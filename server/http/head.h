// A request's first lines, parsed and checked. What two readers could take differently is refused; fields that do not
// concern the server (ranges, compression) are not read at all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/message.h"

namespace ark::http {

struct HeadLimits {
  std::size_t bytes = 32 << 10;  // request line and headers -> 431
  std::size_t target = 4 << 10;  // path and query -> 414
  std::size_t fields = 100;      // -> 431
};

struct Head {
  std::string method, target;
  std::string host;  // of the target where that names one, else of the field
  bool keep_alive = true;
  bool http_1_0 = false;
  bool chunked = false;
  bool expects_continue = false;
  int64_t content_length = -1;  // -1: none given
  std::string content_type, content_encoding, authorization, request_id;
  std::optional<TraceParent> trace;                         // of `traceparent`; a malformed one is none
  std::string origin, preflight_method, preflight_headers;  // what browsers send for a page

  bool has_body() const { return chunked || content_length > 0; }
  std::string path() const;   // percent-decoded, without the query
  std::string query() const;  // as it is
};

// `text` ends with the empty line. Throws HttpError 400, 405, 414 or 431.
Head parse_head(std::string_view text, const HeadLimits& limits);

// Nothing where it is none that is known.
std::optional<TraceParent> parse_trace_parent(std::string_view text);

// A line "name: value", as of heads and trailers. Throws HttpError 400.
void check_field(std::string_view line);
bool has_control_characters(std::string_view text);  // other than tabs

// Letters, digits and -_.:/+= up to 128 of them: an id that we repeat in headers and logs.
bool is_sane_id(std::string_view id);

}  // namespace ark::http
