// Methods of strings, lists and dicts. Those that would change their object do not exist in templates.
#include <algorithm>
#include <cmath>

#include "server/text/jinja/arguments.h"
#include "server/text/jinja/builtins.h"
#include "server/text/jinja/strings.h"
#include "server/text/unicode.h"

namespace ark::text::jinja {
namespace {

using Method = Value (*)(Interpreter&, const Value& self, const Arguments&);
struct Entry {
  std::string_view name;
  Method method;
};

constexpr std::int64_t kMaxPadding = 1 << 20;

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
  interpreter.meter().charge_bytes(bytes);
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

// The part of a string that find(), count(), startswith() ... look at, and where it begins, in characters.
struct Window {
  std::u32string text;
  std::size_t begin = 0;
  bool valid = true;  // false if start lies behind the end
  Window(const std::string& whole, const Parameters& parameters, std::size_t start_index) {
    const std::u32string all = to_utf32(whole);
    const auto size = static_cast<std::int64_t>(all.size());
    const auto bound = [&](std::size_t index, std::int64_t missing) {
      if (!parameters.given(index)) return missing;
      const std::int64_t value = parameters.integer(index);
      return value < 0 ? std::max<std::int64_t>(value + size, 0) : value;
    };
    const std::int64_t start = bound(start_index, 0), end = std::min(bound(start_index + 1, size), size);
    valid = start <= end;
    begin = static_cast<std::size_t>(std::min(start, size));
    if (valid) text = all.substr(begin, static_cast<std::size_t>(end - start));
  }
};

template <bool kAtEnd>
Value affix_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, kAtEnd ? "endswith" : "startswith", {"prefix", "start", "end"});
  const Window window(self.as_string(), parameters, 1);
  const Value affix = parameters.get(0);
  const std::vector<Value> affixes =
      affix.is_flavor(List::Flavor::kTuple) ? affix.as_list().items : std::vector{affix};
  return std::any_of(affixes.begin(), affixes.end(), [&](const Value& candidate) {
    if (!candidate.is_string()) parameters.fail("needs a string or a tuple of strings");
    const std::u32string text = to_utf32(candidate.as_string());
    return window.valid && (kAtEnd ? window.text.ends_with(text) : window.text.starts_with(text));
  });
}

template <bool kFromRight, bool kMustExist>
Value find_in(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "find", {"sub", "start", "end"});
  const Window window(self.as_string(), parameters, 1);
  const std::u32string text = to_utf32(parameters.string(0));
  const std::size_t at = !window.valid ? std::u32string::npos
                         : kFromRight  ? window.text.rfind(text)
                                       : window.text.find(text);
  if (at != std::u32string::npos) return static_cast<std::int64_t>(at + window.begin);
  if (kMustExist) throw TemplateError("substring not found");
  return -1;
}

Value count_in(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "count", {"sub", "start", "end"});
  const Window window(self.as_string(), parameters, 1);
  const std::u32string text = to_utf32(parameters.string(0));
  if (!window.valid) return 0;
  if (text.empty()) return static_cast<std::int64_t>(window.text.size() + 1);
  std::int64_t count = 0;
  for (std::size_t at = window.text.find(text); at != std::u32string::npos;
       at = window.text.find(text, at + text.size()))
    ++count;
  return count;
}

Value replace_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "replace", {"old", "new", "count"});
  const std::string from = parameters.string(0), to = parameters.string(1);
  const std::string& text = self.as_string();
  interpreter.meter().charge_bytes(text.size() +
                                   (from.empty() ? text.size() + 1 : text.size() / from.size()) * to.size());
  return replace(text, from, to, parameters.integer_or(2, -1));
}

Value join_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "join", {"iterable"});
  std::string out;
  bool first = true;
  for (const Value& item : iterate(parameters.get(0))) {
    if (!item.is_string()) throw TemplateError(std::string("join() needs strings, not ") + item.type_name());
    if (!std::exchange(first, false)) out += self.as_string();
    out += item.as_string();
    interpreter.meter().charge_bytes(item.as_string().size() + self.as_string().size());
  }
  return out;
}

template <Side kSide>
Value pad_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "ljust", {"width", "fillchar"});
  const std::int64_t width = parameters.integer(0);
  if (width > kMaxPadding)
    parameters.fail("pads to more than " + std::to_string(kMaxPadding) + " characters");
  const std::u32string fill = to_utf32(parameters.string_or(1, " "));
  if (fill.size() != 1) parameters.fail("needs a fill of one character");
  return pad(self.as_string(), width, fill[0], kSide);
}

Value zfill_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "zfill", {"width"});
  const std::int64_t width = parameters.integer(0);
  if (width > kMaxPadding)
    parameters.fail("pads to more than " + std::to_string(kMaxPadding) + " characters");
  const std::string& text = self.as_string();
  const std::size_t sign = text.starts_with('+') || text.starts_with('-');
  return text.substr(0, sign) +
         pad(text.substr(sign), width - static_cast<std::int64_t>(sign), U'0', Side::kLeft);
}

template <bool kAtEnd>
Value remove_affix(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "removeprefix", {"affix"});
  const std::string affix = parameters.string(0), &text = self.as_string();
  if (kAtEnd) return text.ends_with(affix) ? text.substr(0, text.size() - affix.size()) : text;
  return text.starts_with(affix) ? text.substr(affix.size()) : text;
}

template <bool kFromRight>
Value partition_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "partition", {"sep"});
  const std::string separator = parameters.string(0), &text = self.as_string();
  if (separator.empty()) parameters.fail("got an empty separator");
  const std::size_t at = kFromRight ? text.rfind(separator) : text.find(separator);
  if (at == std::string::npos)
    return kFromRight ? Value::tuple({"", "", text}) : Value::tuple({text, "", ""});
  return Value::tuple({text.substr(0, at), separator, text.substr(at + separator.size())});
}

template <bool (*kPredicate)(char32_t)>
Value all_method(Interpreter&, const Value& self, const Arguments& arguments) {
  Parameters(arguments, "is...", {});
  return all_characters(to_utf32(self.as_string()), kPredicate);
}

bool is_alphanumeric(char32_t c) { return is_letter(c) || is_number(c); }

template <bool (*kWanted)(char32_t), bool (*kOther)(char32_t)>
Value case_method(Interpreter&, const Value& self, const Arguments& arguments) {
  Parameters(arguments, "isupper", {});
  const std::u32string text = to_utf32(self.as_string());
  return std::any_of(text.begin(), text.end(), kWanted) &&
         std::none_of(text.begin(), text.end(), [](char32_t c) { return kOther(c) || is_title(c); });
}

template <std::string (*kFunction)(std::string_view)>
Value text_method(Interpreter&, const Value& self, const Arguments& arguments) {
  Parameters(arguments, "upper", {});
  return kFunction(self.as_string());
}

// A field of format(): the specifications of numbers that mean the same behind '%' ("02d", ".2f").
std::string format_field(const Value& value, const std::string& spec, Meter& meter) {
  if (spec.empty()) return to_text(value);
  const std::size_t point = spec.find_first_not_of("0123456789");
  const bool whole = point == spec.size() - 1 && spec[point] == 'd' && value.is_integral();
  const bool real =
      point != std::string::npos && (value.is_integral() || value.is_float()) && spec.back() == 'f' &&
      (point == spec.size() - 1 || (spec[point] == '.' && point + 2 < spec.size() &&
                                    spec.find_first_not_of("0123456789", point + 1) == spec.size() - 1));
  if (!whole && !real)
    throw TemplateError("format(): the specification '" + spec + "' is not supported here");
  return format_percent("%" + spec, Value::tuple({value}), meter);
}

// "{} {name:02d}".format(...): fields by position or name.
Value format_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const std::string& format = self.as_string();
  std::string out;
  std::size_t next = 0;
  for (std::size_t at = 0; at < format.size(); ++at) {
    const char c = format[at];
    if ((c == '{' || c == '}') && at + 1 < format.size() && format[at + 1] == c) {
      out += c;
      ++at;
    } else if (c == '}') {
      throw TemplateError("single '}' encountered in format string");
    } else if (c == '{') {
      const std::size_t end = format.find('}', at);
      if (end == std::string::npos) throw TemplateError("single '{' encountered in format string");
      const std::size_t colon = std::min(format.find(':', at), end);
      const std::string field = format.substr(at + 1, colon - at - 1);
      const std::string spec = colon < end ? format.substr(colon + 1, end - colon - 1) : "";
      if (field.find_first_of("{[.!:") != std::string::npos)
        throw TemplateError("format(): only plain fields are supported, not {" + field + "}");
      const bool number = field.find_first_not_of("0123456789") == std::string::npos;
      if (number) {
        const std::size_t index = field.empty() ? next++ : field.size() > 6 ? SIZE_MAX : std::stoul(field);
        if (index >= arguments.positional.size())
          throw TemplateError("replacement index out of range for positional args");
        out += format_field(arguments.positional[index], spec, interpreter.meter());
      } else {
        const auto found = std::find_if(arguments.keywords.begin(), arguments.keywords.end(),
                                        [&](const auto& keyword) { return keyword.first == field; });
        if (found == arguments.keywords.end()) throw TemplateError("format() lacks '" + field + "'");
        out += format_field(found->second, spec, interpreter.meter());
      }
      at = end;
    } else {
      out += c;
    }
  }
  interpreter.meter().charge_bytes(out.size());
  return out;
}

Value lines_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "splitlines", {"keepends"});
  return string_list(split_lines(self.as_string(), parameters.flag(0)), interpreter);
}

constexpr Entry kStringMethods[] = {
    {"strip", strip_method<true, true>},
    {"lstrip", strip_method<true, false>},
    {"rstrip", strip_method<false, true>},
    {"split", split_method<false>},
    {"rsplit", split_method<true>},
    {"splitlines", lines_method},
    {"startswith", affix_method<false>},
    {"endswith", affix_method<true>},
    {"find", find_in<false, false>},
    {"rfind", find_in<true, false>},
    {"index", find_in<false, true>},
    {"rindex", find_in<true, true>},
    {"count", count_in},
    {"replace", replace_method},
    {"join", join_method},
    {"ljust", pad_method<Side::kRight>},
    {"rjust", pad_method<Side::kLeft>},
    {"center", pad_method<Side::kBoth>},
    {"zfill", zfill_method},
    {"removeprefix", remove_affix<false>},
    {"removesuffix", remove_affix<true>},
    {"partition", partition_method<false>},
    {"rpartition", partition_method<true>},
    {"upper", text_method<to_upper>},
    {"lower", text_method<lower>},
    {"casefold", text_method<lower>},
    {"title", text_method<title>},
    {"capitalize", text_method<capitalize>},
    {"swapcase", text_method<swap_case>},
    {"isdigit", all_method<is_decimal>},
    {"isdecimal", all_method<is_decimal>},
    {"isnumeric", all_method<is_number>},
    {"isalpha", all_method<is_letter>},
    {"isalnum", all_method<is_alphanumeric>},
    {"isspace", all_method<is_space>},
    {"isupper", case_method<is_upper, is_lower>},
    {"islower", case_method<is_lower, is_upper>},
    {"format", format_method},
};

Value index_of(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "index", {"value"});
  const auto& items = self.as_list().items;
  const auto found = std::find_if(items.begin(), items.end(),
                                  [&](const Value& item) { return equal(item, parameters.get(0)); });
  if (found == items.end()) throw TemplateError(repr(parameters.get(0)) + " is not in list");
  return static_cast<std::int64_t>(found - items.begin());
}

Value count_of(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "count", {"value"});
  const auto& items = self.as_list().items;
  return static_cast<std::int64_t>(std::count_if(
      items.begin(), items.end(), [&](const Value& item) { return equal(item, parameters.get(0)); }));
}

Value copy_of(Interpreter&, const Value& self, const Arguments& arguments) {
  Parameters(arguments, "copy", {});
  return self;
}

constexpr Entry kListMethods[] = {{"index", index_of}, {"count", count_of}, {"copy", copy_of}};

Value keys_of(Interpreter&, const Value& self, const Arguments& arguments) {
  Parameters(arguments, "keys", {});
  return Value::list(iterate(self), List::Flavor::kKeys);
}

Value values_of(Interpreter&, const Value& self, const Arguments& arguments) {
  Parameters(arguments, "values", {});
  std::vector<Value> values;
  for (const auto& [key, value] : self.as_dict().items) values.push_back(value);
  return Value::list(std::move(values), List::Flavor::kValues);
}

Value items_of(Interpreter&, const Value& self, const Arguments& arguments) {
  Parameters(arguments, "items", {});
  std::vector<Value> items;
  for (const auto& [key, value] : self.as_dict().items) items.push_back(Value::tuple({key, value}));
  return Value::list(std::move(items), List::Flavor::kItems);
}

Value get_of(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters(arguments, "get", {"key", "default"});
  const Value* found = self.as_dict().find(parameters.get(0));
  return found ? *found : parameters.get_or(1, Value());
}

constexpr Entry kDictMethods[] = {
    {"keys", keys_of}, {"values", values_of}, {"items", items_of}, {"get", get_of}, {"copy", copy_of}};

Value is_integer(Interpreter&, const Value& self, const Arguments& arguments) {
  Parameters(arguments, "is_integer", {});
  return self.as_number() == std::floor(self.as_number());
}

constexpr Entry kFloatMethods[] = {{"is_integer", is_integer}};

template <std::size_t kCount>
Method find_entry(const Entry (&entries)[kCount], std::string_view name) {
  for (const Entry& entry : entries)
    if (entry.name == name) return entry.method;
  return nullptr;
}

}  // namespace

std::optional<Value> find_method(const Value& object, std::string_view name) {
  Method method = nullptr;
  if (object.is_string()) method = find_entry(kStringMethods, name);
  if (object.is_dict()) method = find_entry(kDictMethods, name);
  if (object.is_float()) method = find_entry(kFloatMethods, name);
  if (object.is_flavor(List::Flavor::kList) || object.is_flavor(List::Flavor::kTuple)) {
    method = find_entry(kListMethods, name);
    if (name == "copy" && object.is_flavor(List::Flavor::kTuple)) method = nullptr;
  }
  if (!method) return std::nullopt;
  return Value::function(std::string(name), [method, object](Interpreter& interpreter, Arguments& arguments) {
    return method(interpreter, object, arguments);
  });
}

}  // namespace ark::text::jinja
