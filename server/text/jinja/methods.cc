// Methods of strings, lists and dicts. Those that would change their object do not exist in templates.
#include <algorithm>

#include "server/text/jinja/arguments.h"
#include "server/text/jinja/builtins.h"
#include "server/text/jinja/strings.h"
#include "server/text/unicode.h"

namespace ark::text::jinja {
namespace {

using Method = Value (*)(Interpreter&, const Value& self, const Arguments&);

std::optional<std::string> optional_text(const Parameters& parameters, std::size_t index) {
  return parameters.given(index) ? std::optional(parameters.string(index)) : std::nullopt;
}

Value string_list(std::vector<std::string> parts, Interpreter& interpreter) {
  std::vector<Value> items;
  std::size_t bytes = 0;
  for (std::string& part : parts) {
    bytes += part.size() + sizeof(Value) + sizeof(std::string);
    items.emplace_back(std::move(part));
  }
  interpreter.budget().charge_bytes(bytes);
  return Value::list(std::move(items));
}

template <bool kLeft, bool kRight>
Value strip_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "strip", {"chars"});
  return strip(self.as_string(), optional_text(parameters, 0), kLeft, kRight);
}

template <bool kFromRight>
Value split_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "split", {"sep", "maxsplit"});
  const auto separator = optional_text(parameters, 0);
  if (separator && separator->empty()) parameters.fail("got an empty separator");
  return string_list(split(self.as_string(), separator, parameters.integer_or(1, -1), kFromRight),
                     interpreter);
}

Value splitlines_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "splitlines", {"keepends"});
  return string_list(split_lines(self.as_string(), parameters.flag(0)), interpreter);
}

template <bool kAtEnd>
Value affix_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, kAtEnd ? "endswith" : "startswith", {"affix"});
  const Value affix = parameters.get(0);
  const std::vector<Value> affixes =
      affix.is_flavor(List::Flavor::kTuple) ? affix.as_list().items : std::vector{affix};
  const std::string& text = self.as_string();
  return std::any_of(affixes.begin(), affixes.end(), [&](const Value& candidate) {
    if (!candidate.is_string()) parameters.fail("needs a string or a tuple of strings");
    return kAtEnd ? text.ends_with(candidate.as_string()) : text.starts_with(candidate.as_string());
  });
}

// The position in characters, or -1.
template <bool kFromRight>
Value find_method_of_text(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "find", {"sub"});
  const std::string &text = self.as_string(), part = parameters.string(0);
  const std::size_t at = kFromRight ? text.rfind(part) : text.find(part);
  return at == std::string::npos ? -1 : static_cast<std::int64_t>(count_chars(text.substr(0, at)));
}

Value count_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const std::string &text = self.as_string(), part = Parameters(arguments, "count", {"sub"}).string(0);
  if (part.empty()) return static_cast<std::int64_t>(count_chars(text) + 1);
  std::int64_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size()))
    ++count;
  return count;
}

Value replace_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "replace", {"old", "new", "count"});
  const std::string from = parameters.string(0), to = parameters.string(1);
  const std::string& text = self.as_string();
  interpreter.budget().charge_bytes(text.size() +
                                    (from.empty() ? text.size() + 1 : text.size() / from.size()) * to.size());
  return replace(text, from, to, parameters.integer_or(2, -1));
}

Value join_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "join", {"iterable"});
  std::string out;
  bool first = true;
  for (const Value& item : iterate(parameters.get(0), interpreter.budget())) {
    if (!item.is_string()) throw TemplateError(std::string("join() needs strings, not ") + item.type_name());
    if (!std::exchange(first, false)) out += self.as_string();
    out += item.as_string();
    interpreter.budget().charge_bytes(item.as_string().size() + self.as_string().size());
  }
  return out;
}

template <bool kAtEnd>
Value remove_affix_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const std::string affix = Parameters(arguments, "removeprefix", {"affix"}).string(0),
                    &text = self.as_string();
  if (kAtEnd) return text.ends_with(affix) ? text.substr(0, text.size() - affix.size()) : text;
  return text.starts_with(affix) ? text.substr(affix.size()) : text;
}

bool is_alphanumeric(char32_t c) { return is_letter(c) || is_number(c); }

// Whether the text is not empty and all its characters are of a kind.
template <bool (*kPredicate)(char32_t)>
Value all_method(Interpreter&, const Value& self, const Arguments& arguments) {
  Parameters(arguments, "is...", {});
  const std::string& text = self.as_string();
  for (std::size_t at = 0; at < text.size();)
    if (!kPredicate(next_char(text, at))) return false;
  return !text.empty();
}

template <std::string (*kFunction)(std::string_view)>
Value text_method(Interpreter&, const Value& self, const Arguments& arguments) {
  Parameters(arguments, "upper", {});
  return kFunction(self.as_string());
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
Value format_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const std::string& format = self.as_string();
  std::string out;
  std::size_t next = 0;
  const auto argument = [&](const std::string& field) {
    if (field.find_first_not_of("0123456789") == std::string::npos) {
      const std::size_t index = field.empty() ? next++ : field.size() > 6 ? SIZE_MAX : std::stoul(field);
      if (index >= arguments.positional.size())
        throw TemplateError("replacement index out of range for positional args");
      return arguments.positional[index];
    }
    const auto found = std::find_if(arguments.keywords.begin(), arguments.keywords.end(),
                                    [&](const auto& keyword) { return keyword.first == field; });
    if (found == arguments.keywords.end()) throw TemplateError("format() lacks '" + field + "'");
    return found->second;
  };
  for (std::size_t at = 0; at < format.size(); ++at) {
    const char c = format[at];
    if (c != '{' && c != '}') {
      out += c;
    } else if (at + 1 < format.size() && format[at + 1] == c) {
      out += c;
      ++at;
    } else if (c == '}') {
      throw TemplateError("single '}' encountered in format string");
    } else {
      const std::size_t end = format.find('}', at);
      if (end == std::string::npos) throw TemplateError("single '{' encountered in format string");
      const std::size_t colon = std::min(format.find(':', at), end);
      const std::string field = format.substr(at + 1, colon - at - 1);
      if (field.find_first_of("{[.!:") != std::string::npos)
        throw TemplateError("format(): only plain fields are supported, not {" + field + "}");
      const std::string spec = colon < end ? format.substr(colon + 1, end - colon - 1) : "";
      out += format_field(argument(field), spec, interpreter.budget());
      at = end;
    }
  }
  interpreter.budget().charge_bytes(out.size());
  return out;
}

constexpr Named<Method> kStringMethods[] = {
    {"strip", strip_method<true, true>},
    {"lstrip", strip_method<true, false>},
    {"rstrip", strip_method<false, true>},
    {"split", split_method<false>},
    {"rsplit", split_method<true>},
    {"splitlines", splitlines_method},
    {"startswith", affix_method<false>},
    {"endswith", affix_method<true>},
    {"find", find_method_of_text<false>},
    {"rfind", find_method_of_text<true>},
    {"count", count_method},
    {"replace", replace_method},
    {"join", join_method},
    {"removeprefix", remove_affix_method<false>},
    {"removesuffix", remove_affix_method<true>},
    {"upper", text_method<to_upper>},
    {"lower", text_method<to_lower>},
    {"title", text_method<title>},
    {"capitalize", text_method<capitalize>},
    {"isdigit", all_method<is_decimal>},
    {"isalpha", all_method<is_letter>},
    {"isalnum", all_method<is_alphanumeric>},
    {"isspace", all_method<is_space>},
    {"format", format_method},
};

Value index_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Value wanted = Parameters(arguments, "index", {"value"}).get(0);
  const auto& items = self.as_list().items;
  const auto found = std::find_if(items.begin(), items.end(), [&](const Value& item) {
    return equal(item, wanted, interpreter.budget());
  });
  if (found == items.end()) throw TemplateError(repr(wanted, interpreter.budget()) + " is not in list");
  return static_cast<std::int64_t>(found - items.begin());
}

constexpr Named<Method> kListMethods[] = {{"index", index_method}};

// A view of a dict's keys, values or both.
template <List::Flavor kFlavor>
Value view_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  Parameters(arguments, "this method", {});
  std::vector<Value> out;
  interpreter.budget().charge_bytes(self.as_dict().items.size() * 2 * sizeof(Value));
  for (const auto& [key, value] : self.as_dict().items)
    out.push_back(kFlavor == List::Flavor::kKeys     ? key
                  : kFlavor == List::Flavor::kValues ? value
                                                     : Value::tuple({key, value}));
  return Value::list(std::move(out), kFlavor);
}

Value get_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "get", {"key", "default"});
  const Value* found = self.as_dict().find(parameters.get(0));
  return found ? *found : parameters.get_or(1, Value());
}

constexpr Named<Method> kDictMethods[] = {{"keys", view_method<List::Flavor::kKeys>},
                                          {"values", view_method<List::Flavor::kValues>},
                                          {"items", view_method<List::Flavor::kItems>},
                                          {"get", get_method}};

}  // namespace

std::optional<Value> find_method(const Value& object, std::string_view name) {
  Method method = nullptr;
  if (object.is_string()) method = find_named(kStringMethods, name);
  if (object.is_dict()) method = find_named(kDictMethods, name);
  if (object.is_sequence()) method = find_named(kListMethods, name);
  if (!method) return std::nullopt;
  return Value::function(std::string(name), [method, object](Interpreter& interpreter, Arguments& arguments) {
    if (object.is_string()) interpreter.budget().charge_reading(object.as_string().size());
    return method(interpreter, object, arguments);
  });
}

}  // namespace ark::text::jinja
