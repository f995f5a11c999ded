// Python's string functions on UTF-8.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ark::text::jinja {

bool is_space(char32_t c);  // str.isspace() of one character

// str.strip() and its one-sided forms; without `characters`: white space.
std::string strip(std::string_view text, const std::optional<std::string>& characters, bool left, bool right);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);  // str.title(): words are runs of letters
std::string title_words(
    std::string_view text);  // Jinja's filter: words begin behind blanks, hyphens and brackets

// Without `separator`: at runs of white space. At most `limit` cuts unless negative; `from_right`: rsplit.
std::vector<std::string> split(std::string_view text, const std::optional<std::string>& separator,
                               std::int64_t limit, bool from_right);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends);
// At most `limit` replacements unless negative.
std::string replace(std::string_view text, std::string_view from, std::string_view to, std::int64_t limit);

}  // namespace ark::text::jinja
