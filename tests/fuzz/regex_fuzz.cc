// libFuzzer: a pattern in Oniguruma's dialect, and behind a NUL a text. The pattern is refused when it is loaded, or
// its matches are in order, whole characters, and come within a budget.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "base/error.h"
#include "server/text/regex.h"
#include "server/text/unicode.h"

namespace {

constexpr std::string_view kUsual =
    "It's 12 na\u00efve \t\u4e16\u754c  words\r\n\n aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab";

bool is_border(std::string_view text, std::size_t at) {
  return at == text.size() || (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace ark::text;
  const std::string input(reinterpret_cast<const char*>(data), size);
  const std::string pattern = input.substr(0, input.find('\0'));
  if (!is_valid_utf8(pattern)) return 0;  // JSON's strings are
  const std::string text =
      pattern.size() < size ? lossy_utf8(input.substr(pattern.size() + 1)) : std::string(kUsual);
  try {
    const Regex regex(pattern, "pattern");
    Budget budget(300'000, std::size_t{4} << 20);
    std::size_t end = 0;
    for (const Span& span : regex.find_all(text, budget)) {
      if (span.begin < end || span.end < span.begin || !is_border(text, span.begin) ||
          !is_border(text, span.end))
        std::abort();
      end = span.end;
    }
  } catch (const BudgetExceeded&) {
  } catch (const ark::Error& error) {
    using ark::Code;
    if (error.code() == Code::kBadModel || error.code() == Code::kUnsupported ||
        error.code() == Code::kInvalidArgument)
      return 0;
    std::cerr << "an input may not cause: " << error.what() << '\n';
    std::abort();
  }
  return 0;
}
