// Filters of single values.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "server/text/jinja/arguments.h"
#include "server/text/jinja/builtins.h"
#include "server/text/jinja/strings.h"
#include "server/text/unicode.h"

namespace ark::text::jinja {
namespace {

template <std::string (*kFunction)(std::string_view)>
Value text_filter(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  Parameters(arguments, "this filter", {});
  return kFunction(to_text(input, interpreter.budget()));
}

std::string same_text(std::string_view text) { return std::string(text); }

std::string escape_markup(std::string_view text) {
  std::string out;
  for (char c : text) {
    static constexpr std::string_view kMarkup = "&<>'\"";
    static constexpr const char* kEntities[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    if (const std::size_t found = kMarkup.find(c); found != kMarkup.npos)
      out += kEntities[found];
    else
      out += c;
  }
  return out;
}

Value trim_filter(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "trim", {"chars"});
  const auto characters = parameters.given(0) ? std::optional(parameters.string(0)) : std::nullopt;
  return strip(to_text(input, interpreter.budget()), characters, true, true);
}

Value replace_filter(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "replace", {"old", "new", "count"});
  const auto text = [&](const Value& value) { return Value(to_text(value, interpreter.budget())); };
  Arguments plain{{text(parameters.get(0)), text(parameters.get(1))}, {}};
  if (parameters.given(2)) plain.positional.push_back(parameters.get(2));
  return interpreter.call(*find_method(text(input), "replace"), plain);
}

// What indents a line: a number of blanks, or a text.
std::string indentation(const Parameters& parameters, std::size_t index, std::int64_t limit) {
  const Value width = parameters.get(index);
  if (width.is_string()) return width.as_string();
  const std::int64_t blanks = std::max<std::int64_t>(parameters.integer(index), 0);
  if (blanks > limit) parameters.fail("indents by more than " + std::to_string(limit));
  return std::string(static_cast<std::size_t>(blanks), ' ');
}

Value indent_filter(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "indent", {"width", "first", "blank"});
  const std::string blanks = parameters.has(0) ? indentation(parameters, 0, 10000) : "    ";
  if (!input.is_string()) parameters.fail(std::string("needs a string, not ") + input.type_name());
  const std::vector<std::string> lines = split_lines(input.as_string() + "\n", false);
  interpreter.budget().charge_bytes(input.as_string().size() +
                                    lines.size() * (blanks.size() + sizeof blanks));
  std::string out = parameters.flag(1) ? blanks : "";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += "\n";
    if (i > 0 && (parameters.flag(2) || !lines[i].empty())) out += blanks;
    out += lines[i];
  }
  return out;
}

Value length_filter(Interpreter&, const Value& input, const Arguments& arguments) {
  Parameters(arguments, "length", {});
  return static_cast<std::int64_t>(length(input));
}

Value default_filter(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "default", {"default_value", "boolean"});
  const bool missing = input.is_undefined() || (parameters.flag(1) && !truthy(input));
  return missing ? parameters.get_or(0, Value("")) : input;
}

// Decimal digits with white space around them and a sign; nothing if the text is something else.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  const std::string stripped = strip(text, std::nullopt, true, true);
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

Value int_filter(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "int", {"default"});
  if (input.is_undefined()) use_of_undefined(input);
  if (input.is_integral()) return input.as_int();
  std::optional<double> number;
  if (input.is_float()) number = input.as_number();
  if (input.is_string()) {
    if (const auto whole = parse_number<std::int64_t>(input.as_string())) return *whole;
    number = parse_number<double>(input.as_string());
  }
  const bool fits = number && std::abs(*number) < 9.2e18;
  return fits ? Value(static_cast<std::int64_t>(*number)) : parameters.get_or(0, Value(0));
}

Value float_filter(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "float", {"default"});
  if (input.is_undefined()) use_of_undefined(input);
  if (input.is_number()) return input.as_number();
  const auto number = input.is_string() ? parse_number<double>(input.as_string()) : std::nullopt;
  return number ? Value(*number) : parameters.get_or(0, Value(0.0));
}

Value abs_filter(Interpreter&, const Value& input, const Arguments& arguments) {
  Parameters(arguments, "abs", {});
  if (input.is_undefined()) use_of_undefined(input);
  if (input.is_float()) return std::abs(input.as_number());
  if (!input.is_integral())
    throw TemplateError(std::string("bad operand type for abs(): '") + input.type_name() + "'");
  return input.as_int() < 0 ? negate(input) : Value(input.as_int());
}

Value json_filter(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = parameters.flag(0);
  style.sort_keys = parameters.flag(3);
  if (parameters.given(1)) {
    style.indent = indentation(parameters, 1, 1000);
    style.item_separator = ",";
  }
  if (parameters.given(2)) {
    const std::vector<Value> separators = iterate(parameters.get(2), interpreter.budget());
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string())
      parameters.fail("needs two separators");
    style.item_separator = separators[0].as_string();
    style.key_separator = separators[1].as_string();
  }
  return to_json(input, style, interpreter.budget());
}

Value items_filter(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  Parameters(arguments, "items", {});
  if (input.is_undefined()) return Value::generator({});
  if (!input.is_dict()) throw TemplateError("Can only get item pairs from a mapping.");
  interpreter.budget().charge_bytes(input.as_dict().items.size() * 2 * sizeof(Value));
  std::vector<Value> items;
  for (const auto& [key, value] : input.as_dict().items) items.push_back(Value::tuple({key, value}));
  return Value::generator(std::move(items));
}

constexpr Named<Filter> kTextFilters[] = {
    {"upper", text_filter<to_upper>},
    {"lower", text_filter<to_lower>},
    {"capitalize", text_filter<capitalize>},
    {"title", text_filter<title_words>},
    {"string", text_filter<same_text>},
    {"safe", text_filter<same_text>},
    {"escape", text_filter<escape_markup>},
    {"e", text_filter<escape_markup>},
    {"trim", trim_filter},
    {"replace", replace_filter},
    {"indent", indent_filter},
    {"length", length_filter},
    {"count", length_filter},
    {"default", default_filter},
    {"d", default_filter},
    {"int", int_filter},
    {"float", float_filter},
    {"abs", abs_filter},
    {"tojson", json_filter},
    {"items", items_filter},
};

}  // namespace

Filter find_filter(std::string_view name) {
  const Filter found = find_named(kTextFilters, name);
  return found ? found : find_sequence_filter(name);
}

}  // namespace ark::text::jinja
