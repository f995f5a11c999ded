// A request's first lines, checked by us before the HTTP library sees them.
//
// The library is then handed a head of our own making with the few headers that concern it, so that ranges,
// compression, odd white space and contradicting lengths never reach it.
#pragma once

#include <cstdint>
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
  bool keep_alive = true;
  bool http_1_0 = false;
  bool chunked = false;
  bool expects_continue = false;
  int64_t content_length = -1;  // -1: none given
  std::string content_type, content_encoding, authorization, request_id;

  bool has_body() const { return chunked || content_length > 0; }
  std::string for_library() const;  // the head that the HTTP library reads
};

// `text` ends with the empty line. Throws HttpError 400, 405, 414 or 431.
Head parse_head(std::string_view text, const HeadLimits& limits);

// Letters, digits and -_.:/+= up to 128 of them: an id that we repeat in headers and logs.
bool is_sane_id(std::string_view id);

}  // namespace ark::http
