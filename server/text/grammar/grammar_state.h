// Where one generated text stands in a grammar.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "server/text/grammar/grammar.h"
#include "server/text/grammar/token_masks.h"

namespace ark::text {

// Owned by one thread. A copy goes its own way: it is small.
class GrammarState {
 public:
  // `visible_specials`: special tokens whose text is to be seen, and so may stand in the grammar's texts.
  GrammarState(Grammar::Ptr grammar, std::shared_ptr<const TokenTrie> trie,
               std::vector<std::int32_t> visible_specials = {});

  // Bit t % 32 of word t / 32: token t may come next. The mask may have room for more tokens than there are, or for
  // fewer. False where none may come. Throws kInvalidArgument where the grammar is too ambiguous, as accept() does.
  bool allowed(std::span<std::uint32_t> mask);
  // False where the token does not continue the text; nothing has changed then.
  bool accept(std::int32_t token);

  // The text so far is one of the grammar's, and nothing can follow it.
  bool may_end() const { return position_.may_end; }
  bool must_end() const { return position_.must_end; }

 private:
  void renew();

  Grammar::Ptr grammar_;
  std::shared_ptr<const TokenTrie> trie_;
  std::vector<std::int32_t> visible_specials_;
  std::shared_ptr<grammar::TokenMasks> masks_;
  grammar::TokenMasks::Position position_;
  std::size_t work_left_;  // that nobody has done before; each token brings some
};

}  // namespace ark::text
