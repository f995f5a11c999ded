// ark-tokenize TOKENIZER.json: JSON lines on standard input -> JSON lines on standard output.
//
//   {"text": "..."}  ->  {"ids": [...], "text": decode(ids)}      or  {"error": "..."}
//   {"ids": [...]}   ->  {"text": "...", "parts": [...]}          parts: what each id adds to the stream
#include <iostream>

#include "server/json.h"
#include "server/text/detokenizer.h"
#include "server/text/tokenizer.h"
#include "server/tools/main_guard.h"

namespace {

ark::Json answer(const ark::text::Tokenizer& tokenizer, const ark::Json& line, bool special,
                 bool skip_special) {
  if (line.contains("text")) {
    const auto ids = tokenizer.encode(line.at("text").get<std::string>(), special);
    return {{"ids", ids}, {"text", tokenizer.decode(ids, skip_special)}};
  }
  const auto ids = line.at("ids").get<std::vector<std::int32_t>>();
  ark::text::Detokenizer stream(tokenizer, skip_special);
  ark::Json parts = ark::Json::array();
  for (std::int32_t id : ids) parts.push_back(stream.push(id));
  parts.push_back(stream.flush());
  return {{"text", tokenizer.decode(ids, skip_special)}, {"parts", parts}};
}

int run(const std::string& file, bool special, bool skip_special) {
  const auto tokenizer = ark::text::Tokenizer::load(file);
  for (std::string line; std::getline(std::cin, line);) {
    ark::Json result;
    try {
      result = answer(tokenizer, ark::parse_json(line), special, skip_special);
    } catch (const std::exception& error) {  // a bad line is its own line's answer
      result = {{"error", error.what()}};
    }
    std::cout << ark::to_text(result) << '\n';
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  ark::CommandLine line("ark-tokenize", "Text to token ids and back: JSON lines on standard input");
  std::string file;
  bool no_special = false, skip_special = false;
  line.text("tokenizer", file, "a tokenizer.json");
  line.require("tokenizer");
  line.flag("--no-special", no_special, "do not add what the post-processor adds (bos ...)");
  line.flag("--skip-special", skip_special, "leave special tokens out of decoded text");
  return ark::run_main(line, argc, argv, [&] { return run(file, !no_special, skip_special); });
}
