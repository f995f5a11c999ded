// Methods of strings, lists and dicts. Those that would change their object do not exist in templates.
#include <algorithm>
#include <span>

#include "server/text/jinja/builtins.h"
#include "server/text/jinja/strings.h"
#include "server/text/unicode.h"

namespace ark::text::jinja {
namespace {

Value string_list(const Parts& parts, Budget& budget) {
  std::vector<Value> items = room_for(parts.size(), budget);
  for (const std::string_view part : parts) {
    budget.charge_bytes(kTextBytes + part.size());
    items.emplace_back(part);
  }
  return Value::list(std::move(items));
}

Value copy_of(std::string_view text, Budget& budget) {
  budget.charge_bytes(text.size());
  return text;
}

template <bool kLeft, bool kRight>
Value strip_method(Call& c) {
  return copy_of(strip(c.input.as_string(), c.string_if_given(0), kLeft, kRight), c.budget);
}

template <bool kFromRight>
Value split_method(Call& c) {
  const auto separator = c.string_if_given(0);
  if (separator && separator->empty()) c.fail("got an empty separator");
  return string_list(split(c.input.as_string(), separator, c.integer_or(1, -1), kFromRight, c.budget),
                     c.budget);
}

Value splitlines_method(Call& c) {
  return string_list(split_lines(c.input.as_string(), c.flag(0), c.budget), c.budget);
}

template <bool kAtEnd>
Value affix_method(Call& c) {
  const Value& affix = c.get(0);
  const bool many = affix.is_flavor(List::Flavor::kTuple);
  const std::span<const Value> affixes = many ? std::span(affix.as_list().items) : std::span(&affix, 1);
  const std::string& text = c.input.as_string();
  return std::any_of(affixes.begin(), affixes.end(), [&](const Value& candidate) {
    if (!candidate.is_string()) c.wrong_type("a string or a tuple of strings", candidate);
    return kAtEnd ? text.ends_with(candidate.as_string()) : text.starts_with(candidate.as_string());
  });
}

// The position in characters, or -1.
template <bool kFromRight>
Value position_method(Call& c) {
  const std::string &text = c.input.as_string(), &part = c.string(0);
  if (kFromRight) c.budget.charge_reading(text.size() * (1 + part.size()));  // rfind may take so long
  const std::size_t at = kFromRight ? text.rfind(part) : find_text(text, part);
  return at == std::string::npos
             ? -1
             : static_cast<std::int64_t>(count_chars(std::string_view(text).substr(0, at)));
}

Value count_method(Call& c) {
  const std::string &text = c.input.as_string(), &part = c.string(0);
  if (part.empty()) return static_cast<std::int64_t>(count_chars(text) + 1);
  std::int64_t count = 0;
  for (std::size_t at = find_text(text, part); at != text.npos; at = find_text(text, part, at + part.size()))
    ++count;
  return count;
}

Value replace_method(Call& c) {
  return replace(c.input.as_string(), c.string(0), c.string(1), c.integer_or(2, -1), c.budget);
}

Value join_method(Call& c) {
  TextBuilder out(c.budget);
  bool first = true;
  for (const Value& item : iterate(c.get(0), c.budget)) {
    if (!item.is_string()) c.wrong_type("strings", item);
    if (!std::exchange(first, false)) out += c.input.as_string();
    out += item.as_string();
  }
  return out.take();
}

bool is_alphanumeric(char32_t c) { return is_letter(c) || is_number(c); }

// Whether the text is not empty and all its characters are of a kind.
template <bool (*kPredicate)(char32_t)>
Value all_method(Call& c) {
  const std::string& text = c.input.as_string();
  for (std::size_t at = 0; at < text.size();)
    if (!kPredicate(next_char(text, at))) return false;
  return !text.empty();
}

template <std::string (*kFunction)(std::string_view)>
Value text_method(Call& c) {
  charge_case(c.input.as_string(), c.budget);
  return kFunction(c.input.as_string());
}

// A field of format(): to what width numbers are filled, and their decimals ("02d", ".2f").
std::string format_field(const Value& value, const std::string& spec, Budget& budget) {
  if (spec.empty()) return to_text(value, budget);
  const std::size_t point = std::min(spec.find('.'), spec.size() - 1);
  const std::string width = spec.substr(0, point),
                    decimals =
                        point + 1 < spec.size() ? spec.substr(point + 1, spec.size() - point - 2) : "6";
  const auto digits = [](const std::string& text) {
    return text.size() <= 3 && text.find_first_not_of("0123456789") == std::string::npos;
  };
  const bool whole = spec.back() == 'd' && point == spec.size() - 1 && value.is_integral();
  const bool real = spec.back() == 'f' && value.is_number() && !value.is_bool() && !decimals.empty();
  if ((!whole && !real) || !digits(width) || !digits(decimals))
    throw TemplateError("format(): the specification '" + spec + "' is not supported here");
  char buffer[2400];  // 999 for the width or the decimals each, 309 digits before the point
  if (whole)
    std::snprintf(buffer, sizeof buffer, ("%" + width + "lld").c_str(),
                  static_cast<long long>(value.as_int()));
  else
    std::snprintf(buffer, sizeof buffer, ("%" + width + "." + decimals + "f").c_str(), value.as_number());
  return buffer;
}

// "{} {name:02d}".format(...): fields by position or name.
Value format_method(Call& c) {
  const std::string& format = c.input.as_string();
  TextBuilder out(c.budget);
  std::size_t next = 0;
  const auto argument = [&](const std::string& field) {
    if (field.find_first_not_of("0123456789") == std::string::npos) {
      const std::size_t index = field.empty() ? next++ : field.size() > 6 ? SIZE_MAX : std::stoul(field);
      if (index >= c.arguments.positional.size()) c.fail("lacks argument " + std::to_string(index));
      return c.arguments.positional[index];
    }
    c.budget.charge(c.arguments.keywords.size() / kNamesPerUnit);
    for (const auto& [name, value] : c.arguments.keywords)
      if (name == field) return value;
    c.fail("lacks '" + field + "'");
  };
  for (std::size_t at = 0; at < format.size(); ++at) {
    const char each = format[at];
    if (each != '{' && each != '}') {
      out += each;
    } else if (at + 1 < format.size() && format[at + 1] == each) {
      out += each;
      ++at;
    } else if (each == '}') {
      c.fail("single '}' encountered in format string");
    } else {
      const std::size_t end = format.find('}', at);
      if (end == std::string::npos) c.fail("single '{' encountered in format string");
      const std::size_t colon = std::min(format.find(':', at), end);
      const std::string field = format.substr(at + 1, colon - at - 1);
      if (field.find_first_of("{[.!:") != std::string::npos)
        c.fail("takes only plain fields, not {" + field + "}");
      const std::string spec = colon < end ? format.substr(colon + 1, end - colon - 1) : "";
      out += format_field(argument(field), spec, c.budget);
      at = end;
    }
  }
  return out.take();
}

constexpr Builtin kStringMethods[] = {
    {"strip", "chars", strip_method<true, true>},
    {"lstrip", "chars", strip_method<true, false>},
    {"rstrip", "chars", strip_method<false, true>},
    {"split", "sep maxsplit", split_method<false>},
    {"rsplit", "sep maxsplit", split_method<true>},
    {"splitlines", "keepends", splitlines_method},
    {"startswith", "prefix", affix_method<false>},
    {"endswith", "suffix", affix_method<true>},
    {"find", "sub", position_method<false>},
    {"rfind", "sub", position_method<true>},
    {"count", "sub", count_method},
    {"replace", "old new count", replace_method},
    {"join", "iterable", join_method},
    {"removeprefix", "prefix",
     [](Call& c) -> Value {
       const std::string_view text = c.input.as_string(), prefix = c.string(0);
       return copy_of(text.substr(text.starts_with(prefix) ? prefix.size() : 0), c.budget);
     }},
    {"removesuffix", "suffix",
     [](Call& c) -> Value {
       const std::string_view text = c.input.as_string(), suffix = c.string(0);
       return copy_of(text.substr(0, text.size() - (text.ends_with(suffix) ? suffix.size() : 0)), c.budget);
     }},
    {"upper", "", text_method<to_upper>},
    {"lower", "", text_method<to_lower>},
    {"title", "", text_method<title>},
    {"capitalize", "", text_method<capitalize>},
    {"isdigit", "", all_method<is_decimal>},
    {"isalpha", "", all_method<is_letter>},
    {"isalnum", "", all_method<is_alphanumeric>},
    {"isspace", "", all_method<is_space>},
    {"format", "*", format_method},
};

Value index_method(Call& c) {
  const auto& items = c.input.as_list().items;
  const auto found = std::find_if(items.begin(), items.end(),
                                  [&](const Value& item) { return equal(item, c.get(0), c.budget); });
  if (found == items.end()) c.fail("does not find " + repr(c.get(0), c.budget));
  return static_cast<std::int64_t>(found - items.begin());
}

constexpr Builtin kListMethods[] = {{"index", "value", index_method}};

// A view of a dict's keys or values.
template <List::Flavor kFlavor>
Value view_method(Call& c) {
  std::vector<Value> out = room_for(c.input.as_dict().items.size(), c.budget);
  for (const auto& [key, value] : c.input.as_dict().items)
    out.push_back(kFlavor == List::Flavor::kKeys ? key : value);
  return Value::list(std::move(out), kFlavor);
}

constexpr Builtin kDictMethods[] = {
    {"keys", "", view_method<List::Flavor::kKeys>},
    {"values", "", view_method<List::Flavor::kValues>},
    {"items", "",
     [](Call& c) { return Value::list(dict_items(c.input.as_dict(), c.budget), List::Flavor::kItems); }},
    {"get", "key default",
     [](Call& c) {
       const Value* found = c.input.as_dict().find(c.get(0), c.budget);
       return found ? *found : c.get_or(1, Value());
     }},
};

}  // namespace

std::optional<Value> find_method(const Value& object, std::string_view name) {
  const Builtin* method = object.is_string()     ? find_named(kStringMethods, name)
                          : object.is_dict()     ? find_named(kDictMethods, name)
                          : object.is_sequence() ? find_named(kListMethods, name)
                                                 : nullptr;
  return method ? std::optional(bound(*method, object)) : std::nullopt;
}

}  // namespace ark::text::jinja
