// Whether a grammar holds a text, for tests: through a vocabulary of all bytes.
#pragma once

#include <memory>
#include <string_view>

#include "server/text/grammar/grammar_state.h"

namespace ark::test {

inline std::shared_ptr<const text::TokenTrie> byte_trie() {
  static const auto trie = [] {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    return std::make_shared<const text::TokenTrie>(std::move(tokens), std::vector<bool>(256),
                                                   text::TokenTrie::FirstSpace::kStays);
  }();
  return trie;
}

// Bytes of the text with which some text of the grammar begins.
inline std::size_t goes_to(text::GrammarState& state, std::string_view text) {
  std::size_t at = 0;
  while (at < text.size() && state.accept(static_cast<unsigned char>(text[at]))) ++at;
  return at;
}

inline bool holds(const text::Grammar::Ptr& grammar, std::string_view text) {
  text::GrammarState state(grammar, byte_trie());
  return goes_to(state, text) == text.size() && state.may_end();
}

}  // namespace ark::test
