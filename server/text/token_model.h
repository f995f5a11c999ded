// The model of a tokenizer: turns one pre-tokenized piece into ids.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "server/text/budget.h"
#include "server/text/vocabulary.h"

namespace ark::text {

class TokenModel {
 public:
  virtual ~TokenModel() = default;

  // Appends the ids of a non-empty piece, and charges for looking them up. Thread safe.
  virtual void encode(std::string_view piece, std::vector<std::int32_t>& ids, Budget& budget) const = 0;

  const Vocabulary& vocabulary() const { return vocabulary_; }

  // model.type BPE, Unigram, WordPiece or WordLevel.
  static std::unique_ptr<TokenModel> parse(const JsonView& json);

 protected:
  // The id of each byte as "<0xNN>", or of none if the vocabulary lacks one of them.
  bool append_bytes(std::string_view text, std::vector<std::int32_t>& ids) const;
  // Of a text that needs the unknown token where the vocabulary has none.
  [[noreturn]] static void throw_unknown(std::string_view piece, std::string_view unknown_token);

  Vocabulary vocabulary_;
};

std::unique_ptr<TokenModel> parse_bpe(const JsonView& json);
std::unique_ptr<TokenModel> parse_unigram(const JsonView& json);
std::unique_ptr<TokenModel> parse_word_piece(const JsonView& json);
std::unique_ptr<TokenModel> parse_word_level(const JsonView& json);

}  // namespace ark::text
