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

// What a part of a split text takes in a list that grows.
constexpr std::size_t kPartBytes = 3 * sizeof(std::string_view);

Parts split_space(std::string_view text, std::int64_t limit, bool from_right, Budget& budget) {
  Parts parts;
  while (!(text = strip(text, std::nullopt, !from_right, from_right)).empty()) {
    std::size_t at = from_right ? text.size() : 0;
    bool inside = true;
    while (inside && (from_right ? at > 0 : at < text.size())) {
      std::size_t next = at;
      const char32_t c = from_right ? previous_char(text, next) : next_char(text, next);
      inside = static_cast<std::int64_t>(parts.size()) == limit || !is_space(c);
      if (inside) at = next;
    }
    budget.charge_bytes(kPartBytes);
    parts.push_back(from_right ? text.substr(at) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(at);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

bool is_space(char32_t c) { return is_whitespace(c) || (c >= 0x1C && c <= 0x1F); }

std::string_view strip(std::string_view text, const std::optional<std::string>& characters, bool left,
                       bool right) {
  std::u32string set = characters ? to_utf32(*characters) : std::u32string();
  std::sort(set.begin(), set.end());
  const auto drop = [&](char32_t c) {
    return characters ? std::binary_search(set.begin(), set.end(), c) : is_space(c);
  };
  for (std::size_t at = 0; left && !text.empty() && drop(next_char(text, at)); at = 0) text.remove_prefix(at);
  for (std::size_t at = text.size(); right && at > 0 && drop(previous_char(text, at));)
    text = text.substr(0, at);
  return text;
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

Parts split(std::string_view text, const std::optional<std::string>& separator, std::int64_t limit,
            bool from_right, Budget& budget) {
  if (!separator) return split_space(text, limit, from_right, budget);
  from_right &= limit >= 0;
  if (from_right) budget.charge_reading(text.size() * (1 + separator->size()));  // rfind may take so long
  Parts parts;
  for (; limit != 0; --limit) {
    const std::size_t at = from_right ? text.rfind(*separator) : find_text(text, *separator);
    if (at == std::string_view::npos) break;
    const std::string_view before = text.substr(0, at), behind = text.substr(at + separator->size());
    budget.charge_bytes(kPartBytes);
    parts.push_back(from_right ? behind : before);
    text = from_right ? before : behind;
  }
  parts.push_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

Parts split_lines(std::string_view text, bool keep_ends, Budget& budget) {
  Parts lines;
  const auto add = [&](std::size_t begin, std::size_t end) {
    budget.charge_bytes(kPartBytes);
    lines.push_back(text.substr(begin, end - begin));
  };
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = at;
    const char32_t c = next_char(text, at);
    if (!ends_line(c)) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    add(begin, keep_ends ? at : end);
    begin = at;
  }
  if (begin < text.size()) add(begin, text.size());
  return lines;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to, std::int64_t limit,
                    Budget& budget) {
  TextBuilder out(budget);
  std::size_t at = 0;
  if (from.empty()) {  // between all characters
    while (limit != 0) {
      out += to;
      --limit;
      if (at == text.size()) return out.take();
      const std::size_t begin = at;
      next_char(text, at);
      out += text.substr(begin, at - begin);
    }
    return (out += text.substr(at)).take();
  }
  for (std::size_t found = find_text(text, from); found != std::string_view::npos && limit != 0;
       found = find_text(text, from, at), --limit) {
    out += text.substr(at, found - at);
    out += to;
    at = found + from.size();
  }
  return (out += text.substr(at)).take();
}

}  // namespace ark::text::jinja
