// Filters of single values.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "server/text/jinja/builtins.h"
#include "server/text/jinja/strings.h"
#include "server/text/unicode.h"

namespace ark::text::jinja {
namespace {

Value same_text(Call& c) { return c.text(); }

Value escape_markup(Call& c) {
  const std::string text = c.text();
  TextBuilder out(c.budget);
  for (const char each : text) {
    static constexpr std::string_view kMarkup = "&<>'\"";
    static constexpr const char* kEntities[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    if (const std::size_t found = kMarkup.find(each); found != kMarkup.npos)
      out += kEntities[found];
    else
      out += each;
  }
  return out.take();
}

// A filter that changes letters.
template <std::string (*kFunction)(std::string_view)>
Value cased(Call& c) {
  const std::string text = c.text();
  charge_case(text, c.budget);
  return kFunction(text);
}

Value trim(Call& c) {
  const std::string text = c.text();
  const std::string_view stripped = strip(text, c.string_if_given(0), true, true);
  c.budget.charge_bytes(stripped.size());
  return stripped;
}

Value replace_filter(Call& c) {
  Arguments plain{{to_text(c.get(0), c.budget), to_text(c.get(1), c.budget)}, {}};
  if (c.given(2)) plain.positional.push_back(c.get(2));
  return c.interpreter.call(*find_method(c.text(), "replace"), plain);
}

// What indents a line: a number of blanks, or a text.
std::string indentation(Call& c, std::size_t index, std::int64_t limit) {
  if (c.get(index).is_string()) return c.string(index);
  const std::int64_t blanks = std::max<std::int64_t>(c.integer(index), 0);
  if (blanks > limit) c.fail("indents by more than " + std::to_string(limit));
  return std::string(static_cast<std::size_t>(blanks), ' ');
}

Value indent_filter(Call& c) {
  const std::string blanks = c.has(0) ? indentation(c, 0, 10000) : "    ";
  if (!c.input.is_string()) c.wrong_type("a string", c.input);
  c.budget.charge_bytes(c.input.as_string().size());
  const std::string text = c.input.as_string() + "\n";
  const Parts lines = split_lines(text, false, c.budget);
  TextBuilder out(c.budget);
  if (c.flag(1)) out += blanks;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += "\n";
    if (i > 0 && (c.flag(2) || !lines[i].empty())) out += blanks;
    out += lines[i];
  }
  return out.take();
}

Value length_filter(Call& c) { return static_cast<std::int64_t>(length(c.input)); }

Value default_filter(Call& c) {
  const bool missing = c.input.is_undefined() || (c.flag(1) && !truthy(c.input));
  return missing ? c.get_or(0, "") : c.input;
}

// Decimal digits with white space around them and a sign; nothing if the text is something else.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  const std::string_view stripped = strip(text, std::nullopt, true, true);
  std::string_view digits = stripped;
  if (digits.starts_with('+')) digits.remove_prefix(1);
  const std::string_view unsigned_digits = digits.substr(digits.starts_with('-'));
  if (unsigned_digits.empty() || unsigned_digits.find_first_not_of("0123456789.eE+-") != digits.npos ||
      unsigned_digits[0] == '+' || (digits.size() < stripped.size() && digits[0] == '-'))
    return std::nullopt;
  Number value{};
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (result.ec != std::errc() || result.ptr != digits.data() + digits.size()) return std::nullopt;
  return value;
}

Value int_filter(Call& c) {
  if (c.input.is_undefined()) use_of_undefined(c.input);
  if (c.input.is_integral()) return c.input.as_int();
  std::optional<double> number;
  if (c.input.is_float()) number = c.input.as_number();
  if (c.input.is_string()) {
    if (const auto whole = parse_number<std::int64_t>(c.input.as_string())) return *whole;
    number = parse_number<double>(c.input.as_string());
  }
  const bool fits = number && std::abs(*number) < 9.2e18;
  return fits ? Value(static_cast<std::int64_t>(*number)) : c.get_or(0, 0);
}

Value float_filter(Call& c) {
  if (c.input.is_undefined()) use_of_undefined(c.input);
  if (c.input.is_number()) return c.input.as_number();
  const auto number = c.input.is_string() ? parse_number<double>(c.input.as_string()) : std::nullopt;
  return number ? Value(*number) : c.get_or(0, 0.0);
}

Value abs_filter(Call& c) {
  if (c.input.is_undefined()) use_of_undefined(c.input);
  if (c.input.is_float()) return std::abs(c.input.as_number());
  if (!c.input.is_integral()) c.wrong_type("a number", c.input);
  return c.input.as_int() < 0 ? negate(c.input) : Value(c.input.as_int());
}

Value json_filter(Call& c) {
  JsonStyle style;
  style.ascii = c.flag(0);
  style.sort_keys = c.flag(3);
  if (c.given(1)) {
    style.indent = indentation(c, 1, 1000);
    style.item_separator = ",";
  }
  if (c.given(2)) {
    const std::vector<Value> separators = iterate(c.get(2), c.budget);
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string())
      c.fail("needs two separators");
    style.item_separator = separators[0].as_string();
    style.key_separator = separators[1].as_string();
  }
  return to_json(c.input, style, c.budget);
}

Value items_filter(Call& c) {
  if (c.input.is_undefined()) return Value::generator({});
  if (!c.input.is_dict()) throw TemplateError("Can only get item pairs from a mapping.");
  return Value::generator(dict_items(c.input.as_dict(), c.budget));
}

constexpr Builtin kFilters[] = {
    {"upper", "", cased<to_upper>},
    {"lower", "", cased<to_lower>},
    {"capitalize", "", cased<capitalize>},
    {"title", "", cased<title_words>},
    {"string", "", same_text},
    {"safe", "", same_text},
    {"escape", "", escape_markup},
    {"e", "", escape_markup},
    {"trim", "chars", trim},
    {"replace", "old new count", replace_filter},
    {"indent", "width first blank", indent_filter},
    {"length", "", length_filter},
    {"count", "", length_filter},
    {"default", "default_value boolean", default_filter},
    {"d", "default_value boolean", default_filter},
    {"int", "default", int_filter},
    {"float", "default", float_filter},
    {"abs", "", abs_filter},
    {"tojson", "ensure_ascii indent separators sort_keys", json_filter},
    {"items", "", items_filter},
};

}  // namespace

const Builtin* find_filter(std::string_view name) {
  const Builtin* found = find_named(kFilters, name);
  return found ? found : find_sequence_filter(name);
}

}  // namespace ark::text::jinja
