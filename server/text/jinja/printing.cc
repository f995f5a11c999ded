// str() and repr() of values.
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

void append_quoted(std::string& out, std::string_view text) {
  const bool double_quotes = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = double_quotes ? '"' : '\'';
  out += quote;
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
  out += quote;
}

// Appends to one string and charges for it as it grows.
class Printer {
 public:
  explicit Printer(Budget& budget) : budget_(budget) {}

  std::string str(const Value& value) {
    if (value.is_string())
      out_ = value.as_string();
    else if (!value.is_undefined())
      write(value);
    charge();
    return std::move(out_);
  }

  std::string repr(const Value& value) {
    write(value);
    charge();
    return std::move(out_);
  }

 private:
  void charge() {
    budget_.charge_bytes(out_.size() - charged_);
    budget_.charge();
    charged_ = out_.size();
  }

  void write(const Value& value) {
    charge();
    if (value.is_undefined())
      out_ += "Undefined";
    else if (value.is_none())
      out_ += "None";
    else if (value.is_bool())
      out_ += value.as_bool() ? "True" : "False";
    else if (value.is_int())
      out_ += std::to_string(value.as_int());
    else if (value.is_float())
      out_ += float_repr(value.as_number());
    else if (value.is_string())
      append_quoted(out_, value.as_string());
    else if (value.is_list())
      write_list(value);
    else if (value.is_dict())
      write_pairs("{", value.as_dict().items, "}");
    else if (value.is_callable())
      out_ += value.as_callable().name;
    else
      write_pairs("<Namespace {", value.as_namespace().attributes, "}>");
  }

  void write_list(const Value& value) {
    const std::vector<Value>& items = value.as_list().items;
    const bool tuple = value.is_flavor(List::Flavor::kTuple);
    if (value.is_flavor(List::Flavor::kGenerator)) {
      out_ += "<generator object>";
      return;
    }
    if (!value.is_sequence()) out_ += std::string(value.type_name()) + "(";  // dict_keys([...])
    out_ += tuple ? "(" : "[";
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += ", ";
      write(items[i]);
    }
    out_ += tuple ? (items.size() == 1 ? ",)" : ")") : "]";
    if (!value.is_sequence()) out_ += ")";
  }

  template <typename Key>
  void write_pairs(const char* open, const std::vector<std::pair<Key, Value>>& pairs, const char* close) {
    out_ += open;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      if (i > 0) out_ += ", ";
      write(pairs[i].first);
      out_ += ": ";
      write(pairs[i].second);
    }
    out_ += close;
  }

  Budget& budget_;
  std::string out_;
  std::size_t charged_ = 0;  // bytes of out_
};

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
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), text.data() + text.size(), exponent);
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    std::string out = sign + digits.substr(0, 1) + (count > 1 ? "." + digits.substr(1) : "");
    const std::string magnitude = std::to_string(std::abs(exponent));
    return out + (exponent < 0 ? "e-" : "e+") + (magnitude.size() < 2 ? "0" : "") + magnitude;
  }
  if (exponent < 0) return sign + "0." + std::string(-exponent - 1, '0') + digits;
  if (count <= exponent + 1) return sign + digits + std::string(exponent + 1 - count, '0') + ".0";
  return sign + digits.substr(0, exponent + 1) + "." + digits.substr(exponent + 1);
}

std::string repr(const Value& value, Budget& budget) { return Printer(budget).repr(value); }

std::string to_text(const Value& value, Budget& budget) { return Printer(budget).str(value); }

}  // namespace ark::text::jinja
