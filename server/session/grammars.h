// Forms that texts of one model are asked for: grammars, compiled once and kept as long as they are asked for again.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/schedule/constraint.h"
#include "server/session/freed_memory.h"

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

  static constexpr std::size_t kMostInUse = std::size_t{512} << 20;

  // `tokenizer` outlives it; null: the model has none. `most_in_use`: bytes of grammars that texts are written by, and
  // each may grow by some MiB while they are.
  explicit Grammars(const text::Tokenizer* tokenizer, std::size_t most_in_use = kMostInUse)
      : tokenizer_(tokenizer), most_in_use_(most_in_use) {}

  // Texts of the form that `key` names: equal keys, equal grammars. `marks`: special tokens that are part of the text;
  // others are not. Throws Error: kUnsupported without a tokenizer, kExhausted where too much is in use, and what
  // `compile` throws.
  schedule::StartConstraint start(const std::string& key, const Compile& compile,
                                  std::vector<int32_t> marks = {});

 private:
  using GrammarPtr = std::shared_ptr<const text::Grammar>;
  GrammarPtr find(const std::string& key);
  void keep(const GrammarPtr& grammar);
  std::size_t bytes_in_use();
  void make_room(std::size_t more);

  const text::Tokenizer* tokenizer_;
  const std::size_t most_in_use_;
  std::once_flag trie_once_;
  std::shared_ptr<const text::TokenTrie> trie_;

  FreedMemory freed_;
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<const text::Grammar>> known_;  // as long as anybody has them
  std::list<GrammarPtr> kept_;                                       // whoever has them; latest first
};

}  // namespace ark::session
