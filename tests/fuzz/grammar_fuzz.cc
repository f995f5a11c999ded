// libFuzzer: the first byte chooses what the rest is: a JSON Schema, a regular expression or GBNF. It is refused by
// name, or a random text is written by the masks: what is allowed is accepted, and nothing else.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "server/json.h"
#include "server/text/grammar/grammar_state.h"

namespace {

using ark::text::Grammar;
using ark::text::GrammarState;
using ark::text::TokenTrie;

constexpr int kSteps = 24, kAsked = 16;

std::shared_ptr<const TokenTrie> make_trie() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* token : {"\"",    "\": ",     "\", \"",   "{\"",      "\"}", "}, {", "null", "true",
                            "ab",    "abc",      "aaaa",     " a",       "  ",  "\n  ", "12",   "0.5",
                            "\\u00", "\xC3\xA9", "\xE4\xB8", "\x9F\x98", "",    "[[",   "]]",   "a.b"})
    tokens.emplace_back(token);
  return std::make_shared<const TokenTrie>(tokens, std::vector<bool>(tokens.size()),
                                           TokenTrie::FirstSpace::kStays);
}

void check(bool holds, const char* what) {
  if (holds) return;
  std::cerr << "does not hold: " << what << '\n';
  std::abort();
}

Grammar::Ptr compiled(std::uint8_t kind, const std::string& source) {
  if (kind % 3 == 1) return Grammar::of_regex(source);
  if (kind % 3 == 2) return Grammar::of_gbnf(source);
  if (!ark::why_too_large(source, {.depth = 64, .values = 10'000}).empty()) return nullptr;
  const ark::Json schema = ark::parse_json_or_discard(source);
  return schema.is_discarded() ? nullptr : Grammar::of_json_schema(schema);
}

void walk(const Grammar::Ptr& grammar, const std::shared_ptr<const TokenTrie>& trie, std::mt19937& random) {
  GrammarState state(grammar, trie);
  std::vector<std::uint32_t> mask((static_cast<std::size_t>(trie->size()) + 31) / 32);
  for (int step = 0; step < kSteps; ++step) {
    const bool any = state.allowed(mask);
    check(any != state.must_end(), "there are all bytes: a text can go on, or has come to its end");
    if (!any) return;
    const auto is_allowed = [&](std::int32_t token) { return (mask[token / 32] >> token % 32 & 1) != 0; };
    for (int i = 0; i < kAsked; ++i) {
      const auto token = static_cast<std::int32_t>(random() % trie->size());
      GrammarState copy = state;
      check(copy.accept(token) == is_allowed(token), "what is allowed is what is accepted");
    }
    auto token = static_cast<std::int32_t>(random() % trie->size());
    while (!is_allowed(token)) token = (token + 1) % trie->size();
    check(state.accept(token), "an allowed token is accepted");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  static const std::shared_ptr<const TokenTrie> trie = make_trie();
  if (size == 0) return 0;
  std::mt19937 random(static_cast<unsigned>(size));
  try {
    const Grammar::Ptr grammar =
        compiled(data[0], std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
    if (grammar) walk(grammar, trie, random);
  } catch (const ark::Error& error) {
    check(error.code() == ark::Code::kInvalidArgument, error.what());
  }
  return 0;
}
