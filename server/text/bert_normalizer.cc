#include "server/text/normalizer.h"
#include "server/text/unicode.h"

namespace ark::text {
namespace {

// The CJK ideograph blocks; kana and hangul are written with spaces or handled by the vocabulary.
bool is_ideograph(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

class BertNormalizer {
 public:
  explicit BertNormalizer(const JsonView& json)
      : clean_text_(json.at("clean_text").boolean_or(true)),
        space_ideographs_(json.at("handle_chinese_chars").boolean_or(true)),
        lowercase_(json.at("lowercase").boolean_or(true)),
        strip_accents_(json.at("strip_accents").boolean_or(lowercase_)) {}

  void operator()(std::string& text, Budget& budget) const {
    budget.charge_bytes(2 * text.size());
    std::string out;
    for (std::size_t at = 0; at < text.size();) append(out, next_char(text, at));
    if (strip_accents_) {
      const std::string decomposed = normalize(out, NormalForm::kNfd);
      out.clear();
      for (std::size_t at = 0; at < decomposed.size();)
        if (const char32_t c = next_char(decomposed, at); !is_nonspacing_mark(c)) append_utf8(out, c);
    }
    text = lowercase_ ? to_lower(out) : std::move(out);
  }

 private:
  void append(std::string& out, char32_t c) const {
    if (clean_text_) {
      const bool blank = c == '\t' || c == '\n' || c == '\r';
      if (c == 0 || c == 0xFFFD || (!blank && is_other(c))) return;
      if (blank || is_whitespace(c)) c = ' ';
    }
    const bool spaced = space_ideographs_ && is_ideograph(c);
    if (spaced) out += ' ';
    append_utf8(out, c);
    if (spaced) out += ' ';
  }

  bool clean_text_, space_ideographs_, lowercase_, strip_accents_;
};

}  // namespace

Normalizer::Step parse_bert_normalizer(const JsonView& json) { return BertNormalizer(json); }

}  // namespace ark::text
