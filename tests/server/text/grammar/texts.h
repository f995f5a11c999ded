// Whether a grammar holds a text, for tests: through a vocabulary of all bytes.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "server/text/grammar/grammar_state.h"

namespace ark::test {

inline std::shared_ptr<const text::TokenTrie> byte_trie() {
  static const auto trie = [] {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    return std::make_shared<const text::TokenTrie>(tokens, std::vector<bool>(256),
                                                   text::TokenTrie::FirstSpace::kStays);
  }();
  return trie;
}

inline bool holds(const text::Grammar::Ptr& grammar, std::string_view text) {
  text::GrammarState state(grammar, byte_trie());
  for (const char byte : text)
    if (!state.accept(static_cast<unsigned char>(byte))) return false;
  return state.may_end();
}

// The message of the error that compiling ends with; empty where there is none.
template <typename Function>
std::string error_of(Function compile) {
  try {
    compile();
    return "";
  } catch (const Error& error) {
    return error.code() == Code::kInvalidArgument ? error.what() : std::string("wrong code: ") + error.what();
  }
}

}  // namespace ark::test
