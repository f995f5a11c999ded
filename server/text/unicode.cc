#include "server/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace ark::text {
namespace {

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

bool in_categories(char32_t c, utf8proc_category_t first, utf8proc_category_t last) {
  const auto value = category(c);
  return value >= first && value <= last;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

// Upper-case mappings to several characters that occur in running text (SpecialCasing.txt, unconditional).
constexpr std::pair<char32_t, std::string_view> kSpecialUpper[] = {{0x00DF, "SS"},
                                                                   {0x0149, "\u02BCN"},
                                                                   {0x01F0, "J\u030C"},
                                                                   {0x0390, "\u0399\u0308\u0301"},
                                                                   {0x03B0, "\u03A5\u0308\u0301"},
                                                                   {0x0587, "\u0535\u0552"},
                                                                   {0xFB00, "FF"},
                                                                   {0xFB01, "FI"},
                                                                   {0xFB02, "FL"},
                                                                   {0xFB03, "FFI"},
                                                                   {0xFB04, "FFL"},
                                                                   {0xFB05, "ST"},
                                                                   {0xFB06, "ST"}};

std::string_view special_upper(char32_t c) {
  for (const auto& [lower, upper] : kSpecialUpper)
    if (lower == c) return upper;
  return {};
}

}  // namespace

std::size_t utf8_sequence_length(unsigned char lead) {
  return lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC2 ? 2 : 1;
}

Utf8Prefix utf8_prefix(std::string_view bytes) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {1, false, false};
  const std::size_t n = utf8_sequence_length(static_cast<unsigned char>(lead));
  for (std::size_t i = 1; i < n; ++i) {
    if (i == bytes.size()) return {i, false, true};
    unsigned low = 0x80, high = 0xBF;
    if (i == 1) {
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    }
    if (byte(i) < low || byte(i) > high) return {i, false, false};
  }
  return {n, true, false};
}

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Prefix prefix = utf8_prefix(text);
    if (!prefix.valid) return false;
    text.remove_prefix(prefix.length);
  }
  return true;
}

std::string lossy_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Prefix prefix = utf8_prefix(bytes);
    out += prefix.valid ? bytes.substr(0, prefix.length) : kReplacementCharacter;
    bytes.remove_prefix(prefix.length);
  }
  return out;
}

char32_t next_char(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  const std::size_t n = std::min(utf8_sequence_length(lead), text.size() - at);
  char32_t c = n == 1 ? lead : lead & (0x7F >> n);
  for (std::size_t i = 1; i < n; ++i) c = c << 6 | (byte(at + i) & 0x3F);
  at += n;
  return c;
}

char32_t previous_char(std::string_view text, std::size_t& at) {
  do --at;
  while (at > 0 && is_continuation(text[at]));
  std::size_t behind = at;
  return next_char(text, behind);
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
  } else if (c < 0x10000) {
    out += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3F)),
            static_cast<char>(0x80 | (c & 0x3F))};
  } else {
    out += {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 0x3F)),
            static_cast<char>(0x80 | (c >> 6 & 0x3F)), static_cast<char>(0x80 | (c & 0x3F))};
  }
}

std::string to_utf8(std::u32string_view characters) {
  std::string out;
  out.reserve(characters.size());
  for (char32_t c : characters) append_utf8(out, c);
  return out;
}

std::u32string to_utf32(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) out += next_char(text, at);
  return out;
}

std::size_t count_chars(std::string_view text) {
  return text.size() - static_cast<std::size_t>(std::ranges::count_if(text, is_continuation));
}

bool is_whitespace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_number(char32_t c) { return in_categories(c, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO); }
bool is_decimal(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
bool is_letter(char32_t c) { return in_categories(c, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO); }
bool is_punctuation(char32_t c) { return in_categories(c, UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO); }
bool is_mark(char32_t c) { return in_categories(c, UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME); }
bool is_nonspacing_mark(char32_t c) { return category(c) == UTF8PROC_CATEGORY_MN; }
bool is_upper(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LL; }
bool is_title(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LT; }

bool is_other(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_CN || in_categories(c, UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CO);
}

bool is_word(char32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || c == '_' || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
  const auto value = category(c);
  // Symbols are alphabetic (Other_Alphabetic) only as circled and squared letters.
  const bool lettered_symbol = (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
                               (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
  return is_letter(c) || is_mark(c) || value == UTF8PROC_CATEGORY_ND || value == UTF8PROC_CATEGORY_NL ||
         value == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D || lettered_symbol;
}

bool is_printable(char32_t c) {
  return c == ' ' || !(is_other(c) || in_categories(c, UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_ZP));
}

std::string to_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_char(text, at);
    if (c == 0x130) {
      out += "i\u0307";  // the one character whose lower case is two
    } else {
      append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  }
  return out;
}

std::string to_upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_char(text, at);
    if (const std::string_view special = special_upper(c); !special.empty()) {
      out += special;
    } else {
      append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
    }
  }
  return out;
}

std::string to_title(char32_t c) {
  std::string out;
  if (const std::string_view special = special_upper(c); !special.empty()) {
    std::size_t at = 0;
    append_utf8(out, next_char(special, at));
    return out + to_lower(special.substr(at));
  }
  append_utf8(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
  return out;
}

std::string normalize(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  int options = UTF8PROC_STABLE;
  options |= form == NormalForm::kNfc || form == NormalForm::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* buffer = nullptr;
  const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                 static_cast<utf8proc_ssize_t>(text.size()), &buffer,
                                 static_cast<utf8proc_option_t>(options));
  if (size < 0)
    throw Error(Code::kInvalidArgument, std::string("text cannot be normalized: ") + utf8proc_errmsg(size));
  std::string out(reinterpret_cast<const char*>(buffer), static_cast<std::size_t>(size));
  std::free(buffer);
  return out;
}

std::vector<std::string_view> graphemes(std::string_view text) {
  std::vector<std::string_view> out;
  std::size_t begin = 0;
  utf8proc_int32_t previous = -1, state = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t here = at;
    const auto c = static_cast<utf8proc_int32_t>(next_char(text, at));
    if (previous >= 0 && utf8proc_grapheme_break_stateful(previous, c, &state)) {
      out.push_back(text.substr(begin, here - begin));
      begin = here;
    }
    previous = c;
  }
  if (begin < text.size()) out.push_back(text.substr(begin));
  return out;
}

std::size_t find_text(std::string_view text, std::string_view part, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found ? static_cast<std::size_t>(static_cast<const char*>(found) - text.data()) : text.npos;
}

}  // namespace ark::text
