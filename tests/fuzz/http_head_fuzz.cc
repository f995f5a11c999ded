// libFuzzer: any bytes as the head of a request. Only HttpError with a client's status may come out.
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
    check(head.path().size() <= head.target.size());
  } catch (const ark::http::HttpError& error) {
    check(error.status >= 400 && error.status < 500);
  }
  return 0;
}
