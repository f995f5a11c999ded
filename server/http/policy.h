// Which names and which pages in browsers may reach the server: against DNS rebinding and blind posts of any page.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http/head.h"

namespace ark::http {

struct Policy {
  bool check_names = false;          // whether Host and Origin must be the loopback's names, or of `hosts`
  std::vector<std::string> hosts;    // without ports
  std::vector<std::string> origins;  // "https://app.example": pages that may read answers; "*": all
};

// Throws HttpError 403.
void check_names(const Policy& policy, const Head& head);
bool is_preflight(const Head& head);
// Whether a browser sends it, of any scheme (apps have their own): SCHEME://HOST and a port that is not the scheme's
// usual one, in small letters. Not null, which any page can be.
bool is_origin(std::string_view text);
// What tells a browser that the page may read the answer; empty where it may not, or where no page asks.
HeaderList cors_headers(const Policy& policy, const Head& head);

}  // namespace ark::http
