// str(), repr() and "%" of values.
#include <charconv>
#include <cmath>
#include <cstdio>

#include "server/text/jinja/operations.h"
#include "server/text/unicode.h"

namespace ark::text::jinja {
namespace {

void append_escape(std::string& out, char32_t c) {
  char buffer[16];
  const char* format = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
  std::snprintf(buffer, sizeof buffer, format, static_cast<unsigned>(c));
  out += buffer;
}

std::string string_repr(std::string_view text) {
  const bool double_quotes = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = double_quotes ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_char(text, at);
    if (c == '\\' || c == static_cast<char32_t>(quote))
      out += {'\\', static_cast<char>(c)};
    else if (c == '\n')
      out += "\\n";
    else if (c == '\r')
      out += "\\r";
    else if (c == '\t')
      out += "\\t";
    else if (is_printable(c))
      append_utf8(out, c);
    else
      append_escape(out, c);
  }
  return out += quote;
}

std::string joined_reprs(const std::vector<Value>& items) {
  std::string out;
  for (const Value& item : items) out += (out.empty() ? "" : ", ") + repr(item);
  return out;
}

std::string list_repr(const List& list) {
  const std::string items = joined_reprs(list.items);
  switch (list.flavor) {
    case List::Flavor::kTuple:
      return "(" + items + (list.items.size() == 1 ? ",)" : ")");
    case List::Flavor::kRange:
      return list.label;
    case List::Flavor::kGenerator:
      return "<generator object>";
    case List::Flavor::kKeys:
      return "dict_keys([" + items + "])";
    case List::Flavor::kValues:
      return "dict_values([" + items + "])";
    case List::Flavor::kItems:
      return "dict_items([" + items + "])";
    default:
      return "[" + items + "]";
  }
}

std::string dict_repr(const Dict& dict) {
  std::string out = "{";
  for (const auto& [key, value] : dict.items)
    out += (out.size() > 1 ? ", " : "") + repr(key) + ": " + repr(value);
  return out + "}";
}

// One conversion of a "%" format.
struct Conversion {
  std::string flags;
  int width = 0, precision = -1;
  char type = 0;
};

constexpr int kMaxWidth = 10000;

int read_number(const std::string& format, std::size_t& at) {
  int number = 0;
  while (at < format.size() && format[at] >= '0' && format[at] <= '9') {
    number = number * 10 + (format[at++] - '0');
    if (number > kMaxWidth) throw TemplateError("a format's width is too large");
  }
  return number;
}

Conversion read_conversion(const std::string& format, std::size_t& at) {
  Conversion conversion;
  while (at < format.size() && std::string_view("-+ 0#").find(format[at]) != std::string_view::npos)
    conversion.flags += format[at++];
  conversion.width = read_number(format, at);
  if (at < format.size() && format[at] == '.') conversion.precision = read_number(format, ++at);
  if (at >= format.size()) throw TemplateError("incomplete format");
  conversion.type = format[at++];
  return conversion;
}

std::string pad(std::string text, const Conversion& conversion) {
  const std::size_t size = count_chars(text), width = static_cast<std::size_t>(conversion.width);
  if (size >= width) return text;
  const std::string blanks(width - size, ' ');
  return conversion.flags.find('-') != std::string::npos ? text + blanks : blanks + text;
}

std::string convert(const Conversion& conversion, const Value& value) {
  if (conversion.type == 's' || conversion.type == 'r') {
    std::string text = conversion.type == 's' ? to_text(value) : repr(value);
    if (conversion.precision >= 0) {
      const std::u32string characters = to_utf32(text);
      text =
          to_utf8(std::u32string_view(characters).substr(0, static_cast<std::size_t>(conversion.precision)));
    }
    return pad(std::move(text), conversion);
  }
  const bool integral = std::string_view("diuxXo").find(conversion.type) != std::string_view::npos;
  if (!integral && std::string_view("fFeEgG").find(conversion.type) == std::string_view::npos)
    throw TemplateError(std::string("unsupported format character '") + conversion.type + "'");
  if (!value.is_number() ||
      (value.is_float() && std::string_view("xXo").find(conversion.type) != std::string_view::npos))
    throw TemplateError(std::string("a number is required by the format, not ") + value.type_name());
  std::string format = "%" + conversion.flags + std::to_string(conversion.width);
  if (format.ends_with("0") && conversion.width == 0) format.pop_back();
  if (conversion.precision >= 0) format += "." + std::to_string(conversion.precision);
  char buffer[kMaxWidth + 400];
  if (integral) {
    if (value.is_float() && !(std::abs(value.as_number()) < 9e18))
      throw TemplateError("a number is too large for the format");
    const long long number = value.is_float() ? static_cast<long long>(value.as_number()) : value.as_int();
    format += std::string("ll") + (conversion.type == 'u' ? 'd' : conversion.type);
    std::snprintf(buffer, sizeof buffer, format.c_str(), number);
  } else {
    std::snprintf(buffer, sizeof buffer, (format + conversion.type).c_str(), value.as_number());
  }
  return buffer;
}

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<std::size_t>(end - buffer));
  const std::string sign = text.starts_with('-') ? "-" : "";
  text.remove_prefix(sign.size());
  const std::size_t e = text.find('e');
  int exponent = 0;
  const char* digits_end = text.data() + text.size();
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), digits_end, exponent);
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    std::string out = sign + digits.substr(0, 1) + (count > 1 ? "." + digits.substr(1) : "");
    const std::string magnitude = std::to_string(std::abs(exponent));
    return out + (exponent < 0 ? "e-" : "e+") + (magnitude.size() < 2 ? "0" : "") + magnitude;
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1)
    return sign + digits + std::string(static_cast<std::size_t>(exponent + 1 - count), '0') + ".0";
  return sign + digits.substr(0, static_cast<std::size_t>(exponent + 1)) + "." +
         digits.substr(static_cast<std::size_t>(exponent + 1));
}

std::string repr(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_string()) return string_repr(value.as_string());
  return to_text(value);
}

std::string to_text(const Value& value) {
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.as_bool() ? "True" : "False";
  if (value.is_int()) return std::to_string(value.as_int());
  if (value.is_float()) return float_repr(value.as_number());
  if (value.is_string()) return value.as_string();
  if (value.is_list()) return list_repr(value.as_list());
  if (value.is_dict()) return dict_repr(value.as_dict());
  if (value.is_callable()) return value.as_callable().name;
  std::string out = "<Namespace {";
  for (const auto& [name, attribute] : value.as_namespace().attributes)
    out += (out.ends_with('{') ? "" : ", ") + string_repr(name) + ": " + repr(attribute);
  return out + "}>";
}

std::string format_percent(const std::string& format, const Value& arguments, Meter& meter) {
  const bool tuple = arguments.is_flavor(List::Flavor::kTuple);
  const std::size_t count = tuple ? arguments.as_list().items.size() : 1;
  std::size_t used = 0;
  std::string out;
  for (std::size_t at = 0; at < format.size();) {
    if (format[at] != '%') {
      out += format[at++];
      continue;
    }
    ++at;
    std::optional<Value> named;
    if (at < format.size() && format[at] == '(') {
      const std::size_t end = format.find(')', at);
      if (end == std::string::npos || !arguments.is_dict()) throw TemplateError("format requires a mapping");
      const Value* found = arguments.as_dict().find(std::string_view(format).substr(at + 1, end - at - 1));
      if (!found) throw TemplateError("the format's key is missing");
      named = *found;
      at = end + 1;
    }
    const Conversion conversion = read_conversion(format, at);
    if (conversion.type == '%') {
      out += '%';
      continue;
    }
    if (!named && used >= count) throw TemplateError("not enough arguments for format string");
    const Value value = named ? *named : tuple ? arguments.as_list().items[used++] : (++used, arguments);
    out += convert(conversion, value);
    meter.charge_bytes(out.size() / 64 + 64);
  }
  // Only what has no items by index must be used up.
  const bool indexable = arguments.is_dict() || arguments.is_undefined() ||
                         arguments.is_flavor(List::Flavor::kList) ||
                         arguments.is_flavor(List::Flavor::kRange);
  if (used < count && !indexable) throw TemplateError("not all arguments converted during string formatting");
  return out;
}

}  // namespace ark::text::jinja
