// libFuzzer: any bytes as a body in chunks, once whole and once in pieces. Both ways give the same body, the same rest
// and the same refusal, and the body is what a second reader of a few lines finds by looking at the whole.
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

#include "server/http/chunks.h"
#include "server/http/message.h"

namespace {

constexpr std::size_t kMost = 1000;

void check(bool holds) {
  if (!holds) std::abort();
}

struct Result {
  int status = 0;  // 0: more is wanted
  std::string body;
  std::size_t taken = 0;
  bool operator==(const Result&) const = default;
};

Result decode(const std::string& text, std::size_t piece) {
  ark::http::ChunkDecoder decoder(kMost);
  Result result;
  try {
    while (result.taken < text.size() && !decoder.done())
      result.taken += decoder.feed(std::string_view(text).substr(result.taken, piece), result.body);
    if (decoder.done()) result.status = 200;
  } catch (const ark::http::HttpError& error) {
    result = {error.status, "", 0};
  }
  return result;
}

// The body of a text that is one in chunks from beginning to end.
std::optional<std::string> plainly(const std::string& text) {
  std::string body;
  for (std::size_t at = 0;;) {
    const std::size_t end = text.find("\r\n", at);
    if (end == std::string::npos || !std::isxdigit(static_cast<unsigned char>(text[at]))) return std::nullopt;
    std::size_t digits = 0;
    const std::size_t size = std::stoull(text.substr(at, 16), &digits, 16);
    at = end + 2;
    if (size == 0) return body;
    if (text.size() < at + size + 2 || text.compare(at + size, 2, "\r\n") != 0) return std::nullopt;
    body.append(text, at, size);
    at += size + 2;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const Result whole = decode(text, text.size() + 1);
  check(whole == decode(text, 1) && whole == decode(text, 7));
  check(whole.status == 0 || whole.status == 200 || whole.status == 400 || whole.status == 413);
  check(whole.body.size() <= kMost);
  if (whole.status == 200) check(plainly(text) == whole.body);
  return 0;
}
