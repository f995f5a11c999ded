// libFuzzer: any bytes as the head of a request. Only HttpError with a client's status may come out, and the
// head that goes on to the HTTP library is a single one: nothing is smuggled through.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "server/http/head.h"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const ark::http::HeadLimits limits;
  const std::string text = std::string(reinterpret_cast<const char*>(data), size) + "\r\n\r\n";
  try {
    const ark::http::Head head = ark::http::parse_head(text, limits);
    check(!head.target.empty() && head.target.size() <= limits.target);
    check(!(head.chunked && head.content_length >= 0));
    const std::string handed_on = head.for_library();
    check(handed_on.find('\0') == std::string::npos && handed_on.ends_with("\r\n\r\n"));
    check(handed_on.find("\r\n\r\n") == handed_on.size() - 4);
  } catch (const ark::http::HttpError& error) {
    check(error.status >= 400 && error.status < 500);
  }
  return 0;
}
