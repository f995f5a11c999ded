#include "server/text/detokenizer.h"

#include "server/text/tokenizer_parts.h"

namespace ark::text {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(tokenizer), skip_special_(skip_special), stream_(tokenizer.parts_->decoder) {}

std::string Detokenizer::push(std::int32_t id) {
  own_begin_ = 0;
  const auto token = tokenizer_.token(id);
  if (!token || (skip_special_ && tokenizer_.parts_->added.is_special(*token))) return {};
  std::string text = stream_.push(*token);
  own_begin_ = stream_.own_begin();
  return text;
}

std::string Detokenizer::flush() { return stream_.flush(); }

}  // namespace ark::text
