// libFuzzer: any bytes as a tokenizer.json. If it loads, texts go through it within a budget, and what it
// decodes is UTF-8 and the same whether it comes whole or token by token.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>

#include "base/error.h"
#include "server/json.h"
#include "server/text/detokenizer.h"
#include "server/text/json_view.h"
#include "server/text/tokenizer.h"
#include "server/text/unicode.h"

namespace {

constexpr ark::text::Budget kBudget{100'000, std::size_t{16} << 20};
constexpr const char* kTexts[] = {"", "Hello, World 12", "  na\u00efve\t\u4e16\u754c <s>\n",
                                  "aaaaaaaaaaaaaaaaaaaaaaaaaaaa b"};

void go_through(const ark::text::Tokenizer& tokenizer, const char* text) {
  const std::vector<std::int32_t> ids = tokenizer.encode(text, true, kBudget);
  ark::text::Detokenizer stream(tokenizer, false);
  std::string parts;
  for (const std::int32_t id : ids) {
    parts += stream.push(id);
    tokenizer.token_bytes(id);
  }
  parts += stream.flush();
  if (parts != tokenizer.decode(ids, false) || !ark::text::is_valid_utf8(parts)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using ark::Code;
  const auto attempt = [](auto run) {
    try {
      run();
    } catch (const ark::Error& error) {
      if (error.code() == Code::kBadModel || error.code() == Code::kUnsupported ||
          error.code() == Code::kInvalidArgument)
        return;
      std::cerr << "an input may not cause: " << error.what() << '\n';
      std::abort();
    }
  };
  attempt([&] {
    const ark::text::Tokenizer tokenizer(
        ark::text::parse_json({reinterpret_cast<const char*>(data), size}, "fuzz"));
    for (const char* text : kTexts) attempt([&] { go_through(tokenizer, text); });
  });
  return 0;
}
