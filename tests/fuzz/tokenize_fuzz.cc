// libFuzzer: any text through the tokenizers of tests/server/text/tokenizer_cases.json; the first byte chooses
// one, the second where stop strings and parts are cut. Streams equal wholes; what byte-level tokenizers encode
// decodes to itself.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <vector>

#include "base/error.h"
#include "server/json.h"
#include "server/text/detokenizer.h"
#include "server/text/json_view.h"
#include "server/text/stop_checker.h"
#include "server/text/tokenizer.h"
#include "server/text/unicode.h"
#include "tests/fixtures.h"

namespace {

using ark::text::Tokenizer;

constexpr std::size_t kMaxText = 512;

struct Loaded {
  Tokenizer tokenizer;
  bool lossless;
};

std::vector<Loaded> load() {
  std::vector<Loaded> out;
  const auto file = ark::test::source_root() / "tests" / "server" / "text" / "tokenizer_cases.json";
  const ark::Json cases = ark::text::parse_json_file(file);
  for (const ark::Json& entry : cases.at("tokenizers"))
    out.push_back({Tokenizer(entry.at("tokenizer")), entry.at("lossless").get<bool>()});
  return out;
}

void check(bool holds, const char* what) {
  if (holds) return;
  std::cerr << "does not hold: " << what << '\n';
  std::abort();
}

void check_stops(const std::string& text, std::size_t cut) {
  const std::vector<std::string> stops = {text.substr(0, cut % 7), text.substr(text.size() / 2, cut % 5),
                                          "\n\n"};
  ark::text::StopChecker whole(stops), parts(stops);
  const std::string expected = whole.push(text) + whole.flush();
  std::string out;
  for (std::size_t at = 0; at < text.size(); at += 1 + cut % 9)
    out += parts.push(text.substr(at, 1 + cut % 9));
  out += parts.flush();
  check(out == expected && whole.stopped() == parts.stopped(),
        "stop strings do not depend on how text is cut");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  static const std::vector<Loaded> tokenizers = load();
  if (size < 2) return 0;
  const Loaded& chosen = tokenizers[data[0] % tokenizers.size()];
  const std::string bytes(reinterpret_cast<const char*>(data) + 2, std::min(size - 2, kMaxText));
  const std::string text = ark::text::lossy_utf8(bytes);
  check(ark::text::is_valid_utf8(text), "lossy_utf8 makes UTF-8");
  check((text == bytes) == ark::text::is_valid_utf8(bytes), "only what is not UTF-8 changes");
  try {
    const std::vector<std::int32_t> ids = chosen.tokenizer.encode(text, false);
    ark::text::Detokenizer stream(chosen.tokenizer, false);
    std::string parts;
    for (const std::int32_t id : ids) {
      const std::string part = stream.push(id);
      check(ark::text::is_valid_utf8(part), "parts are whole characters");
      parts += part;
    }
    parts += stream.flush();
    check(parts == chosen.tokenizer.decode(ids, false), "a stream equals the whole");
    check(!chosen.lossless || parts == text, "byte level: decode(encode(x)) is x");
    check_stops(text, data[1]);
  } catch (const ark::Error& error) {
    check(error.code() == ark::Code::kInvalidArgument, error.what());
  }
  return 0;
}
