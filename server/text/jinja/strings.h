// Python's string functions on UTF-8.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ark::text::jinja {

bool is_space(char32_t c);  // str.isspace() of one character

// str.strip() and its one-sided forms; `characters` empty: white space.
std::string strip(std::string_view text, const std::optional<std::string>& characters, bool left, bool right);
std::string lower(std::string_view text);  // with the final sigma
std::string capitalize(std::string_view text);
std::string title(std::string_view text);
std::string swap_case(std::string_view text);

// `separator` empty: runs of white space. At most `limit` cuts unless negative; `from_right`: rsplit.
std::vector<std::string> split(std::string_view text, const std::optional<std::string>& separator,
                               std::int64_t limit, bool from_right);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends);
// At most `limit` replacements unless negative.
std::string replace(std::string_view text, std::string_view from, std::string_view to, std::int64_t limit);

// Pads to `width` characters: fill left, right, or on both sides.
enum class Side { kLeft, kRight, kBoth };
std::string pad(std::string_view text, std::int64_t width, char32_t fill, Side side);

// Whether the text is not empty and the predicate holds for all its characters.
template <typename Predicate>
bool all_characters(std::u32string_view text, Predicate predicate) {
  for (char32_t c : text)
    if (!predicate(c)) return false;
  return !text.empty();
}

}  // namespace ark::text::jinja
