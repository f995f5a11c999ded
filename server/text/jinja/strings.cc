#include "server/text/jinja/strings.h"

#include <algorithm>

#include "server/text/unicode.h"

namespace ark::text::jinja {
namespace {

bool is_cased(char32_t c) { return is_upper(c) || is_lower(c) || is_title(c); }

bool ends_line(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

// Small letters but for the first character of each word, of which `begin` makes something else.
template <typename Begin, typename GoesOn>
std::string by_words(std::string_view text, Begin begin, GoesOn goes_on) {
  std::string out;
  bool inside = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t here = at;
    const char32_t c = next_char(text, at);
    const std::string_view character = text.substr(here, at - here);
    out += inside ? to_lower(character) : begin(character, c);
    inside = goes_on(c);
  }
  return out;
}

std::vector<std::string> split_space(std::string_view text, std::int64_t limit) {
  std::vector<std::string> parts;
  const std::u32string characters = to_utf32(text);
  std::size_t at = 0;
  while (true) {
    while (at < characters.size() && is_space(characters[at])) ++at;
    if (at == characters.size()) return parts;
    std::size_t end = at;
    if (limit >= 0 && static_cast<std::int64_t>(parts.size()) == limit) {
      end = characters.size();
      while (end > at && is_space(characters[end - 1])) --end;
    } else {
      while (end < characters.size() && !is_space(characters[end])) ++end;
    }
    parts.push_back(to_utf8(std::u32string_view(characters).substr(at, end - at)));
    if (limit >= 0 && static_cast<std::int64_t>(parts.size()) > limit) return parts;
    at = end;
  }
}

std::string reversed(std::string_view text) {
  std::u32string characters = to_utf32(text);
  std::reverse(characters.begin(), characters.end());
  return to_utf8(characters);
}

}  // namespace

bool is_space(char32_t c) { return is_whitespace(c) || (c >= 0x1C && c <= 0x1F); }

std::string strip(std::string_view text, const std::optional<std::string>& characters, bool left,
                  bool right) {
  const std::u32string all = to_utf32(text);
  std::u32string set = characters ? to_utf32(*characters) : std::u32string();
  std::sort(set.begin(), set.end());
  const auto drop = [&](char32_t c) {
    return characters ? std::binary_search(set.begin(), set.end(), c) : is_space(c);
  };
  std::size_t begin = 0, end = all.size();
  while (left && begin < end && drop(all[begin])) ++begin;
  while (right && end > begin && drop(all[end - 1])) --end;
  return to_utf8(std::u32string_view(all).substr(begin, end - begin));
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  std::size_t at = 0;
  const std::string first = to_title(next_char(text, at));
  return first + to_lower(text.substr(at));
}

std::string title(std::string_view text) {
  return by_words(
      text, [](std::string_view, char32_t c) { return to_title(c); }, is_cased);
}

std::string title_words(std::string_view text) {
  return by_words(
      text, [](std::string_view character, char32_t) { return to_upper(character); },
      [](char32_t c) {
        return !is_space(c) &&
               (c >= 0x80 || std::string_view("-({[<").find(static_cast<char>(c)) == std::string_view::npos);
      });
}

std::vector<std::string> split(std::string_view text, const std::optional<std::string>& separator,
                               std::int64_t limit, bool from_right) {
  if (from_right && limit >= 0) {
    const auto mirrored = separator ? std::optional(reversed(*separator)) : std::nullopt;
    std::vector<std::string> parts = split(reversed(text), mirrored, limit, false);
    std::reverse(parts.begin(), parts.end());
    for (std::string& part : parts) part = reversed(part);
    return parts;
  }
  if (!separator) return split_space(text, limit);
  std::vector<std::string> parts;
  std::size_t from = 0;
  for (std::size_t at = find_text(text, *separator); at != std::string_view::npos && limit != 0;
       at = find_text(text, *separator, from), --limit) {
    parts.emplace_back(text.substr(from, at - from));
    from = at + separator->size();
  }
  parts.emplace_back(text.substr(from));
  return parts;
}

std::vector<std::string> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = at;
    const char32_t c = next_char(text, at);
    if (!ends_line(c)) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.emplace_back(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to, std::int64_t limit) {
  std::string out;
  std::size_t at = 0;
  if (from.empty()) {  // between all characters
    while (limit != 0) {
      out += to;
      --limit;
      if (at == text.size()) return out;
      const std::size_t begin = at;
      next_char(text, at);
      out += text.substr(begin, at - begin);
    }
    return out += text.substr(at);
  }
  for (std::size_t found = find_text(text, from); found != std::string_view::npos && limit != 0;
       found = find_text(text, from, at), --limit) {
    out += text.substr(at, found - at);
    out += to;
    at = found + from.size();
  }
  return out += text.substr(at);
}

}  // namespace ark::text::jinja
