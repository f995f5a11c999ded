// Sets of texts that a client asks the model to keep to: what it may write next is known after each token.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/json_fwd.h"

namespace ark::text {

class TokenTrie;
namespace grammar {
class Rules;
class TokenMasks;
struct Pushdown;
}  // namespace grammar

// Compiled; immutable and shared between threads, but for what GrammarStates have found out and leave to each other.
// What cannot be had is kInvalidArgument: the message names the place (JSON pointer of the schema's keyword, line and
// column, index), what is wrong or not supported there, and what to do.
class Grammar {
 public:
  using Ptr = std::shared_ptr<const Grammar>;

  // One JSON value that the schema accepts, and any JSON object. Blanks and numbers are bounded.
  static Ptr of_json_schema(const Json& schema);
  static Ptr of_json_object();
  // The whole text matches.
  static Ptr of_regex(std::string_view pattern);
  static Ptr of_choices(std::span<const std::string> choices);
  // llama.cpp's GBNF, from its rule `root`.
  static Ptr of_gbnf(std::string_view text);
  // Calls of functions (name, JSON Schema of the arguments): each {"name": ..., "arguments": ...} between `begin` and
  // `end`. One, or if `many` one or more; or else one value of the schema `otherwise`, unless that is null.
  static Ptr of_calls(std::string_view begin, std::string_view end,
                      std::span<const std::pair<std::string, Json>> functions, bool many,
                      const Json* otherwise = nullptr);

  explicit Grammar(grammar::Pushdown pushdown);
  ~Grammar();

  // What it takes with all that is kept of it, for caches of grammars: grows while texts are written, up to some 8 MiB
  // for each vocabulary on top.
  std::size_t bytes() const;

 private:
  friend class GrammarState;
  // What texts of this vocabulary share; another one where it is `full`.
  std::shared_ptr<grammar::TokenMasks> masks(const std::shared_ptr<const TokenTrie>& trie,
                                             const grammar::TokenMasks* full) const;

  struct Shared {
    std::weak_ptr<const TokenTrie> trie;
    std::shared_ptr<grammar::TokenMasks> masks;
  };
  const std::shared_ptr<const grammar::Pushdown> pushdown_;
  mutable std::mutex mutex_;
  mutable std::vector<Shared> shared_;
};

}  // namespace ark::text
