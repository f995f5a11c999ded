#include "server/text/detokenizer.h"

#include "server/text/tokenizer_parts.h"

namespace ark::text {

namespace {

constexpr int kTold = 8;  // of the tokens before: a decoder asks whether there is text, not which

}  // namespace

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special, std::span<const std::int32_t> before)
    : tokenizer_(tokenizer), skip_special_(skip_special), stream_(tokenizer.parts_->decoder) {
  if (before.empty()) return;
  std::size_t begin = before.size();
  for (int told = 0; begin > 0 && told < kTold; --begin) told += is_text(before[begin - 1]);
  for (const std::int32_t id : before.subspan(begin)) push(id);
  flush();
}

bool Detokenizer::is_text(std::int32_t id) const {
  const auto token = tokenizer_.token(id);
  return token && !(skip_special_ && tokenizer_.parts_->added.is_special(*token));
}

std::string Detokenizer::push(std::int32_t id) {
  own_begin_ = 0;
  if (!is_text(id)) return {};
  std::string text = stream_.push(*tokenizer_.token(id));
  own_begin_ = stream_.own_begin();
  return text;
}

std::string Detokenizer::flush() { return stream_.flush(); }

}  // namespace ark::text
