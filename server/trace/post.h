// One POST to a server that the operator names, over plain TCP or TLS: all that a collector of spans is asked.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace ark::trace {

struct Url {
  bool is_tls = false;
  std::string host, port, path;  // path: without a slash at its end
};
// "http://host:4318/prefix". Throws Error(kUsage), which names `option`.
Url parse_url(const std::string& option, const std::string& text);

struct Posted {
  int status = 0;   // of HTTP; 0: no answer came
  std::string why;  // then
};
// A JSON body. The name of a TLS server is checked by the system's certificates. `give_up` is asked while it waits.
Posted post(const Url& url, const std::string& path, std::string_view body,
            const std::function<bool()>& give_up);

}  // namespace ark::trace
