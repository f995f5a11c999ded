#include "server/text/grammar/regex_classes.h"

#include "server/text/unicode.h"

namespace ark::text::grammar {
namespace {

// Each takes some 10 ms: made once, when it is first named.
template <bool (*is)(char32_t)>
const CodeSet& kept() {
  static const CodeSet set = code_points_where(is);
  return set;
}

bool is_any_word(char32_t c) { return is_word(c) || is_number(c); }
// Python has the separators U+001C to U+001F, ECMAScript the byte order mark.
bool is_any_space(char32_t c) { return is_whitespace(c) || (c >= 0x1C && c <= 0x1F) || c == 0xFEFF; }

}  // namespace

const CodeSet& escaped_class(char letter, bool wide) {
  static const CodeSet digits{{'0', '9'}}, words{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
      spaces{{'\t', '\r'}, {' ', ' '}};
  if (letter == 'd') return wide ? kept<is_number>() : digits;
  if (letter == 'w') return wide ? kept<is_any_word>() : words;
  return wide ? kept<is_any_space>() : spaces;
}

const CodeSet* property_class(std::string_view name) {
  if (name == "L" || name == "Letter") return &kept<is_letter>();
  if (name == "Lu" || name == "Uppercase_Letter") return &kept<is_upper>();
  if (name == "Ll" || name == "Lowercase_Letter") return &kept<is_lower>();
  if (name == "Lt" || name == "Titlecase_Letter") return &kept<is_title>();
  if (name == "N" || name == "Number") return &kept<is_number>();
  if (name == "Nd" || name == "Decimal_Number") return &kept<is_decimal>();
  if (name == "P" || name == "Punctuation") return &kept<is_punctuation>();
  if (name == "M" || name == "Mark") return &kept<is_mark>();
  return nullptr;
}

}  // namespace ark::text::grammar
