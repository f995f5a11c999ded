// Filters of single values.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "server/text/jinja/arguments.h"
#include "server/text/jinja/builtins.h"
#include "server/text/jinja/strings.h"
#include "server/text/unicode.h"

namespace ark::text::jinja {
namespace {

template <std::string (*kFunction)(std::string_view)>
Value text_filter(Interpreter&, const Value& input, const Arguments& arguments) {
  Parameters(arguments, "this filter", {});
  return kFunction(to_text(input));
}

// Words begin behind blanks, hyphens and opening brackets.
std::string title_words(std::string_view text) {
  std::string out;
  bool inside = false;
  for (char32_t c : to_utf32(text)) {
    std::string character;
    append_utf8(character, c);
    out += inside ? lower(character) : to_upper(character);
    inside = !(is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<');
  }
  return out;
}

std::string same_text(std::string_view text) { return std::string(text); }

std::string escape_markup(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

Value trim(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "trim", {"chars"});
  const auto characters = parameters.given(0) ? std::optional(parameters.string(0)) : std::nullopt;
  return strip(to_text(input), characters, true, true);
}

Value replace_text(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "replace", {"old", "new", "count"});
  Arguments plain{{to_text(parameters.get(0)), to_text(parameters.get(1))}, {}};
  if (parameters.given(2)) plain.positional.push_back(parameters.get(2));
  return interpreter.call(*find_method(Value(to_text(input)), "replace"), plain);
}

Value center(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  Arguments plain{{Parameters(arguments, "center", {"width"}).get_or(0, Value(80))}, {}};
  return interpreter.call(*find_method(Value(to_text(input)), "center"), plain);
}

Value indent(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "indent", {"width", "first", "blank"});
  std::string blanks(4, ' ');
  if (parameters.has(0)) {
    const Value width = parameters.get(0);
    if (!width.is_string() && parameters.integer(0) > 10000) parameters.fail("indents by more than 10000");
    blanks =
        width.is_string()
            ? width.as_string()
            : std::string(static_cast<std::size_t>(std::max<std::int64_t>(parameters.integer(0), 0)), ' ');
  }
  if (!input.is_string()) parameters.fail(std::string("needs a string, not ") + input.type_name());
  const std::vector<std::string> lines = split_lines(input.as_string() + "\n", false);
  interpreter.meter().charge_bytes(input.as_string().size() + lines.size() * (blanks.size() + 1));
  std::string out = parameters.flag(1) ? blanks : "";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += "\n";
    if (i > 0 && (parameters.flag(2) || !lines[i].empty())) out += blanks;
    out += lines[i];
  }
  return out;
}

// The text of a string, cut behind a word; or the list itself, if it is short.
Value truncate(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "truncate", {"length", "killwords", "end", "leeway"});
  const std::int64_t limit = parameters.integer_or(0, 255),
                     leeway = parameters.given(3) ? parameters.integer(3) : 5;
  const std::string end = parameters.string_or(2, "...");
  const auto end_size = static_cast<std::int64_t>(count_chars(end));
  if (limit < end_size || leeway < 0) parameters.fail("expected length >= " + std::to_string(end_size));
  if (static_cast<std::int64_t>(length(input)) <= limit + leeway) return input;
  if (!input.is_string()) parameters.fail(std::string("needs a string, not ") + input.type_name());
  const std::u32string text = to_utf32(input.as_string());
  std::string kept = to_utf8(std::u32string_view(text).substr(0, static_cast<std::size_t>(limit - end_size)));
  if (!parameters.flag(1)) kept = kept.substr(0, kept.rfind(' '));
  return kept + end;
}

Value word_count(Interpreter&, const Value& input, const Arguments& arguments) {
  Parameters(arguments, "wordcount", {});
  std::int64_t count = 0;
  bool inside = false;
  for (char32_t c : to_utf32(to_text(input))) {
    const bool word = is_letter(c) || is_number(c) || c == '_';
    count += word && !inside;
    inside = word;
  }
  return count;
}

Value format(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  if (arguments.keywords.empty())
    return format_percent(to_text(input), Value::tuple(arguments.positional), interpreter.meter());
  if (!arguments.positional.empty())
    throw TemplateError("format takes positional or keyword arguments, not both");
  auto dict = std::make_shared<Dict>();
  for (const auto& [name, value] : arguments.keywords) dict->set(Value(name), value);
  return format_percent(to_text(input), std::shared_ptr<const Dict>(std::move(dict)), interpreter.meter());
}

Value length_of(Interpreter&, const Value& input, const Arguments& arguments) {
  Parameters(arguments, "length", {});
  return static_cast<std::int64_t>(length(input));
}

Value default_value(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "default", {"default_value", "boolean"});
  const bool missing = input.is_undefined() || (parameters.flag(1) && !truthy(input));
  return missing ? parameters.get_or(0, Value("")) : input;
}

// Python's float() of a string: nothing if it is not one.
std::optional<double> parse_float(std::string_view text) {
  std::string digits = lower(strip(text, std::nullopt, true, true));
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (digits[i] != '_') continue;
    const auto is_digit = [&](std::size_t k) {
      return k < digits.size() && digits[k] >= '0' && digits[k] <= '9';
    };
    if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) return std::nullopt;
  }
  std::erase(digits, '_');
  const std::string_view body =
      std::string_view(digits).substr(digits.starts_with('+') || digits.starts_with('-'));
  if (body == "inf" || body == "infinity") return digits[0] == '-' ? -INFINITY : INFINITY;
  if (body == "nan") return NAN;
  if (body.empty() || body.find_first_not_of("0123456789.e+-") != std::string_view::npos || body[0] == '+' ||
      body[0] == '-')
    return std::nullopt;
  double value = 0;
  const auto result = std::from_chars(body.data(), body.data() + body.size(), value);
  if (result.ptr != body.data() + body.size()) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range)
    value = std::strtod(body.data(), nullptr);
  else if (result.ec != std::errc())
    return std::nullopt;
  return digits[0] == '-' ? -value : value;
}

std::optional<std::int64_t> truncated(double value) {
  if (!(std::abs(value) < 9.2e18)) return std::nullopt;
  return static_cast<std::int64_t>(value);
}

// Python's int(text, base).
std::optional<std::int64_t> parse_integer(std::string_view text, int base) {
  std::string digits = lower(strip(text, std::nullopt, true, true));
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.erase(0, 1);
  const std::string prefix = base == 16 ? "0x" : base == 8 ? "0o" : base == 2 ? "0b" : "-";
  if (digits.starts_with(prefix)) digits.erase(0, 2);
  if (digits.empty() || digits.starts_with('_') || digits.ends_with('_') ||
      digits.find("__") != std::string::npos)
    return std::nullopt;
  std::erase(digits, '_');
  if (digits[0] == '-') return std::nullopt;
  if (negative) digits.insert(0, 1, '-');
  std::int64_t value = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (result.ec != std::errc() || result.ptr != digits.data() + digits.size()) return std::nullopt;
  return value;
}

Value to_integer(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "int", {"default", "base"});
  const Value fallback = parameters.get_or(0, Value(0));
  const std::int64_t base = parameters.integer_or(1, 10);
  if (base < 2 || base > 36) parameters.fail("needs a base between 2 and 36");
  if (input.is_undefined()) use_of_undefined(input);
  if (input.is_integral()) return input.as_int();
  std::optional<double> number;
  if (input.is_float()) number = input.as_number();
  if (input.is_string()) {
    if (const auto value = parse_integer(input.as_string(), static_cast<int>(base))) return *value;
    number = parse_float(input.as_string());
  }
  const auto value = number ? truncated(*number) : std::nullopt;
  return value ? Value(*value) : fallback;
}

Value to_float(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "float", {"default"});
  if (input.is_undefined()) use_of_undefined(input);
  if (input.is_number()) return input.as_number();
  const auto number = input.is_string() ? parse_float(input.as_string()) : std::nullopt;
  return number ? Value(*number) : parameters.get_or(0, Value(0.0));
}

Value absolute(Interpreter&, const Value& input, const Arguments& arguments) {
  Parameters(arguments, "abs", {});
  if (input.is_undefined()) use_of_undefined(input);
  if (input.is_float()) return std::abs(input.as_number());
  if (!input.is_integral())
    throw TemplateError(std::string("bad operand type for abs(): '") + input.type_name() + "'");
  return input.as_int() < 0 ? negate(input) : Value(input.as_int());
}

// Python's round(): to the nearest, ties to even.
Value round_number(const Value& input, std::int64_t precision) {
  if (input.is_float()) {
    const double value = input.as_number();
    if (std::isnan(value) || std::isinf(value) || precision > 300) return value;
    if (precision >= 0) {
      char buffer[700];
      std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), value);
      return std::strtod(buffer, nullptr);
    }
    const double unit = std::pow(10.0, static_cast<double>(-precision));
    return std::nearbyint(value / unit) * unit;
  }
  if (precision >= 0) return input.as_int();
  if (precision < -18) return 0;
  std::int64_t unit = 1;
  for (std::int64_t i = 0; i < -precision; ++i) unit *= 10;
  const std::int64_t value = input.as_int();
  std::int64_t low = value / unit, rest = value % unit;
  if (rest < 0) rest += unit, --low;
  if (rest > unit - rest || (rest == unit - rest && (low & 1))) ++low;
  return low * unit;
}

Value round_filter(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "round", {"precision", "method"});
  const std::string method = parameters.string_or(1, "common");
  if (method != "common" && method != "ceil" && method != "floor")
    parameters.fail("needs common, ceil or floor");
  if (input.is_undefined()) use_of_undefined(input);
  if (!input.is_number()) parameters.fail(std::string("needs a number, not ") + input.type_name());
  const std::int64_t precision = parameters.integer_or(0, 0);
  if (method == "common") return round_number(input, precision);
  const double unit = std::pow(10.0, static_cast<double>(precision)), scaled = input.as_number() * unit;
  const double whole = method == "ceil" ? std::ceil(scaled) : std::floor(scaled);
  return (whole == 0 ? 0.0 : whole) / unit;  // Python goes through an integer, which has no -0
}

Value json_filter(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = parameters.flag(0);
  style.sort_keys = parameters.flag(3);
  if (parameters.given(1)) {
    const Value indent = parameters.get(1);
    if (!indent.is_string() && parameters.integer(1) > 1000) parameters.fail("indents by more than 1000");
    style.indent =
        indent.is_string()
            ? indent.as_string()
            : std::string(static_cast<std::size_t>(std::max<std::int64_t>(parameters.integer(1), 0)), ' ');
    style.item_separator = ",";
  }
  if (parameters.given(2)) {
    const std::vector<Value> separators = iterate(parameters.get(2));
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string())
      parameters.fail("needs two separators");
    style.item_separator = separators[0].as_string();
    style.key_separator = separators[1].as_string();
  }
  std::string text = to_json(input, style);
  interpreter.meter().charge_bytes(text.size());
  return text;
}

Value items_filter(Interpreter&, const Value& input, const Arguments& arguments) {
  Parameters(arguments, "items", {});
  if (input.is_undefined()) return Value::generator({});
  if (!input.is_dict()) throw TemplateError("Can only get item pairs from a mapping.");
  std::vector<Value> items;
  for (const auto& [key, value] : input.as_dict().items) items.push_back(Value::tuple({key, value}));
  return Value::generator(std::move(items));
}

Value attribute_filter(Interpreter&, const Value& input, const Arguments& arguments) {
  const std::string name = to_text(Parameters(arguments, "attr", {"name"}).get(0));
  if (input.is_dict()) {
    const auto method = find_method(input, name);
    return method ? *method : Value::undefined("'dict object' has no attribute '" + name + "'");
  }
  return Interpreter::attribute(input, name);
}

struct Entry {
  std::string_view name;
  Filter filter;
};

constexpr Entry kFilters[] = {
    {"upper", text_filter<to_upper>},
    {"lower", text_filter<lower>},
    {"capitalize", text_filter<capitalize>},
    {"title", text_filter<title_words>},
    {"string", text_filter<same_text>},
    {"safe", text_filter<same_text>},
    {"escape", text_filter<escape_markup>},
    {"e", text_filter<escape_markup>},
    {"forceescape", text_filter<escape_markup>},
    {"trim", trim},
    {"replace", replace_text},
    {"center", center},
    {"indent", indent},
    {"truncate", truncate},
    {"wordcount", word_count},
    {"format", format},
    {"length", length_of},
    {"count", length_of},
    {"default", default_value},
    {"d", default_value},
    {"int", to_integer},
    {"float", to_float},
    {"abs", absolute},
    {"round", round_filter},
    {"tojson", json_filter},
    {"items", items_filter},
    {"attr", attribute_filter},
};

}  // namespace

Filter find_filter(std::string_view name) {
  for (const Entry& entry : kFilters)
    if (entry.name == name) return entry.filter;
  return nullptr;
}

}  // namespace ark::text::jinja
