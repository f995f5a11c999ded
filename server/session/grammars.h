// Forms that texts of one model are asked for: grammars, compiled once and kept as long as they are asked for again.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/schedule/constraint.h"

namespace ark::text {
class Grammar;
class TokenTrie;
class Tokenizer;
}  // namespace ark::text

namespace ark::session {

// Safe from any thread.
class Grammars {
 public:
  using Compile = std::function<std::shared_ptr<const text::Grammar>()>;

  // `tokenizer` outlives it; null: the model has none.
  explicit Grammars(const text::Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  // Texts of the form that `key` names: equal keys, equal grammars. `marks`: special tokens that are part of the text;
  // others are not. Throws Error: kUnsupported without a tokenizer, and what `compile` throws.
  schedule::StartConstraint start(const std::string& key, const Compile& compile,
                                  std::vector<int32_t> marks = {});

 private:
  std::shared_ptr<const text::Grammar> find(const std::string& key);

  const text::Tokenizer* tokenizer_;
  std::once_flag trie_once_;
  std::shared_ptr<const text::TokenTrie> trie_;

  std::mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<const text::Grammar>>> kept_;  // latest first
  std::size_t bytes_ = 0;                                                         // of keys
};

}  // namespace ark::session
