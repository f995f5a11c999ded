// Python's string functions on UTF-8.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/budget.h"

namespace ark::text::jinja {

bool is_space(char32_t c);  // str.isspace() of one character

// str.strip() and its one-sided forms; without `characters`: white space.
std::string_view strip(std::string_view text, const std::optional<std::string>& characters, bool left,
                       bool right);

// What to_upper and the like may make of a text, in a string that grows.
inline void charge_case(std::string_view text, Budget& budget) { budget.charge_bytes(6 * text.size()); }
std::string capitalize(std::string_view text);
std::string title(std::string_view text);  // str.title(): words are runs of letters
// Jinja's filter: words begin behind blanks, hyphens and brackets.
std::string title_words(std::string_view text);

// Parts of the text; the list of them is charged for.
using Parts = std::vector<std::string_view>;
// Without `separator`: at runs of white space. At most `limit` cuts unless negative; `from_right`: rsplit.
Parts split(std::string_view text, const std::optional<std::string>& separator, std::int64_t limit,
            bool from_right, Budget& budget);
Parts split_lines(std::string_view text, bool keep_ends, Budget& budget);
// At most `limit` replacements unless negative.
std::string replace(std::string_view text, std::string_view from, std::string_view to, std::int64_t limit,
                    Budget& budget);

}  // namespace ark::text::jinja
