// Added tokens: strings of tokenizer.json that are matched in the text before anything else, whatever the
// model's own vocabulary says (control tokens such as <|im_end|>, mostly).
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "server/text/normalizer.h"
#include "server/text/trie.h"
#include "server/text/vocabulary.h"

namespace ark::text {

struct AddedToken {
  std::int32_t id;
  std::string content;
  std::string text;     // what it decodes to: the content, normalized if it is matched so
  bool special;         // left out when decoding with skip_special
  bool single_word;     // only between non-word characters
  bool lstrip, rstrip;  // swallows white space on that side
  bool normalized;      // matched in normalized text, in its own normalized form
};

// A stretch of text: an added token, or text between them.
struct Section {
  std::size_t begin, end;
  std::optional<std::int32_t> id;
};

class AddedTokens {
 public:
  // Reads "added_tokens".
  AddedTokens(const JsonView& list, const Normalizer& normalizer, Budget& budget);

  // Leftmost-longest matches of the tokens that are (not) `normalized`; the sections cover the text.
  std::vector<Section> find(std::string_view text, bool normalized, Budget& budget) const {
    return (normalized ? normalized_ : plain_).find(text, *this, budget);
  }

  const AddedToken* token(std::int32_t id) const;
  std::optional<std::int32_t> find_id(std::string_view content) const;
  bool is_special(std::string_view content) const { return special_.contains(content); }
  const std::vector<AddedToken>& all() const { return tokens_; }

 private:
  class Matcher {
   public:
    void insert(std::string_view pattern, std::size_t token);
    std::vector<Section> find(std::string_view text, const AddedTokens& owner, Budget& budget) const;

   private:
    Trie trie_;              // indices of tokens by their patterns
    bool starts_[256] = {};  // bytes with which a pattern begins
  };

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::int32_t, std::size_t> by_id_;
  StringMap<std::int32_t> ids_;
  StringMap<bool> special_;
  Matcher plain_, normalized_;
};

}  // namespace ark::text
