// Text of a growing list of ids.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "server/text/decoder.h"
#include "server/text/tokenizer.h"

namespace ark::text {

// What push() and flush() return, put together, is decode() of all ids, and every part is whole characters:
// bytes of an unfinished one wait for their rest, and U+FFFD comes only when no rest can mend them. Owned by
// one thread; the tokenizer must outlive it.
class Detokenizer {
 public:
  // The text goes on behind that of `before`: many decoders drop a space in front of the first token of all.
  Detokenizer(const Tokenizer& tokenizer, bool skip_special, std::span<const std::int32_t> before = {});
  std::string push(std::int32_t id);
  std::string flush();  // at the end
  // Where the token's own text begins in what push() returned last: before it is what waited for the token.
  std::size_t own_begin() const { return own_begin_; }

 private:
  bool is_text(std::int32_t id) const;

  const Tokenizer& tokenizer_;
  bool skip_special_;
  Decoder::Stream stream_;
  std::size_t own_begin_ = 0;
};

}  // namespace ark::text
