// UTF-8 and the Unicode character properties that tokenizers and templates ask for.
//
// Functions that take text expect valid UTF-8 (check with is_valid_utf8 at the border) unless they say
// otherwise. Character data is utf8proc's, normal forms included.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ark::text {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

bool is_valid_utf8(std::string_view text);

// Reads the character at `at` and moves `at` behind it.
char32_t next_char(std::string_view text, std::size_t& at);
// Moves `at`, behind a character, to its beginning and reads it.
char32_t previous_char(std::string_view text, std::size_t& at);
void append_utf8(std::string& out, char32_t c);
std::string to_utf8(std::u32string_view characters);
std::u32string to_utf32(std::string_view text);
std::size_t count_chars(std::string_view text);

// Whether the byte goes on with a character that has begun.
constexpr bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }
// Length of the sequence that starts with this lead byte (1 for a byte that cannot lead).
std::size_t utf8_sequence_length(unsigned char lead);
// Reads a byte stream that need not be UTF-8: how `bytes` begins.
struct Utf8Prefix {
  std::size_t length;  // bytes of the valid character, or of the broken part that one U+FFFD stands for
  bool valid;
  bool incomplete;  // everything seen is a proper prefix of some character: more bytes may complete it
};
Utf8Prefix utf8_prefix(std::string_view bytes);
// Each maximal broken part becomes one U+FFFD (the Unicode standard's recommended practice).
std::string lossy_utf8(std::string_view bytes);

bool is_whitespace(char32_t c);   // White_Space
bool is_number(char32_t c);       // Nd, Nl, No
bool is_decimal(char32_t c);      // Nd
bool is_letter(char32_t c);       // L*
bool is_punctuation(char32_t c);  // P*
bool is_other(char32_t c);        // C*, unassigned included
bool is_mark(char32_t c);         // M*
bool is_nonspacing_mark(char32_t c);
bool is_word(char32_t c);       // \w of UTS 18: alphabetic, marks, decimal numbers, connectors, joiners
bool is_upper(char32_t c);      // Lu
bool is_lower(char32_t c);      // Ll
bool is_title(char32_t c);      // Lt
bool is_printable(char32_t c);  // Python's str.isprintable: not C*, not Z* but the space

std::string to_lower(std::string_view text);  // per character, full mapping
std::string to_upper(std::string_view text);  // per character, full mapping
std::string to_title(char32_t c);             // full mapping

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
std::string normalize(std::string_view text, NormalForm form);

// Byte ranges of the extended grapheme clusters of the text.
std::vector<std::string_view> graphemes(std::string_view text);

// Where `part` begins at `from` or later, or npos: in linear time, which std::string_view::find does not promise.
std::size_t find_text(std::string_view text, std::string_view part, std::size_t from = 0);

}  // namespace ark::text
