// str(), repr() and json.dumps() of values, as Python writes them.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "server/text/jinja/operations.h"
#include "server/text/unicode.h"

namespace ark::text::jinja {
namespace {

void append_escape(TextBuilder& out, char32_t c) {
  char buffer[16];
  const char* format = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
  std::snprintf(buffer, sizeof buffer, format, static_cast<unsigned>(c));
  out += buffer;
}

void append_quoted(TextBuilder& out, std::string_view text) {
  const bool double_quotes = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = double_quotes ? '"' : '\'';
  out += quote;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t here = at;
    const char32_t c = next_char(text, at);
    if (c == '\\' || c == static_cast<char32_t>(quote))
      (out += '\\') += static_cast<char>(c);
    else if (c == '\n')
      out += "\\n";
    else if (c == '\r')
      out += "\\r";
    else if (c == '\t')
      out += "\\t";
    else if (is_printable(c))
      out += text.substr(here, at - here);
    else
      append_escape(out, c);
  }
  out += quote;
}

// One UTF-16 code unit as \uxxxx.
void append_unit(TextBuilder& out, unsigned unit) {
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += "0123456789abcdef"[unit >> shift & 0xF];
}

void append_json_string(TextBuilder& out, std::string_view text, bool ascii) {
  out += '"';
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t here = at;
    const char32_t c = next_char(text, at);
    static constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
    if (const std::size_t short_form = c < 0x80 ? kEscaped.find(static_cast<char>(c)) : kEscaped.npos;
        short_form != kEscaped.npos) {
      (out += '\\') += kLetters[short_form];
    } else if (c < 0x20 || (ascii && c >= 0x7F && c < 0x10000)) {
      append_unit(out, c);
    } else if (ascii && c >= 0x10000) {
      append_unit(out, 0xD800 + ((c - 0x10000) >> 10));
      append_unit(out, 0xDC00 + ((c - 0x10000) & 0x3FF));
    } else {
      out += text.substr(here, at - here);
    }
  }
  out += '"';
}

// Appends to one string and charges for it as it grows: as Python's repr(), or as its json.dumps() where there is a
// style for it.
class Printer {
 public:
  Printer(Budget& budget, const JsonStyle* json) : budget_(budget), json_(json), out_(budget) {}

  std::string run(const Value& value) {
    write(value);
    return out_.take();
  }

 private:
  void write(const Value& value) {
    budget_.charge();
    if (value.is_string())
      write_string(value.as_string());
    else if (value.is_none() || value.is_number())
      out_ += simple(value);
    else if (value.is_dict())
      write_pairs("{", value.as_dict().items, "}");
    else if (value.is_sequence())
      write_list(value);
    else if (json_)
      throw TemplateError(std::string("Object of type ") + value.type_name() + " is not JSON serializable");
    else if (value.is_undefined())
      out_ += "Undefined";
    else if (value.is_callable())
      out_ += value.as_callable().name;
    else if (value.is_namespace())
      write_pairs("<Namespace {", value.as_namespace().attributes, "}>");
    else if (value.is_flavor(List::Flavor::kGenerator))
      out_ += "<generator object>";
    else
      write_list(value);
  }

  std::string simple(const Value& value) const {
    if (value.is_none()) return json_ ? "null" : "None";
    if (value.is_bool()) return value.as_bool() ? (json_ ? "true" : "True") : (json_ ? "false" : "False");
    if (value.is_int()) return std::to_string(value.as_int());
    const double number = value.as_number();
    if (json_ && std::isnan(number)) return "NaN";
    if (json_ && std::isinf(number)) return number < 0 ? "-Infinity" : "Infinity";
    return float_repr(number);
  }

  void write_string(const std::string& text) {
    if (json_)
      append_json_string(out_, text, json_->ascii);
    else
      append_quoted(out_, text);
  }

  template <typename Items, typename WriteItem>
  void write_items(std::string_view open, const Items& items, std::string_view close, WriteItem write_item) {
    out_ += open;
    ++level_;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += json_ ? std::string_view(json_->item_separator) : ", ";
      break_line();
      write_item(items[i]);
    }
    --level_;
    if (!items.empty()) break_line();
    out_ += close;
  }

  void write_list(const Value& value) {
    const auto& items = value.as_list().items;
    const bool tuple = !json_ && value.is_flavor(List::Flavor::kTuple);
    // As in dict_keys([...]).
    const std::string name = value.is_sequence() ? "" : std::string(value.type_name()) + "(";
    const std::string close = tuple ? (items.size() == 1 ? ",)" : ")") : "]";
    write_items(name + (tuple ? "(" : "["), items, name.empty() ? close : close + ")",
                [this](const Value& item) { write(item); });
  }

  template <typename Key>
  void write_pairs(const char* open, std::vector<std::pair<Key, Value>> pairs, const char* close) {
    if (json_ && json_->sort_keys)
      std::stable_sort(pairs.begin(), pairs.end(), [this](const auto& a, const auto& b) {
        return compare(a.first, b.first, budget_) < 0;
      });
    write_items(open, pairs, close, [this](const auto& pair) {
      const Value key = pair.first;
      if (!json_ || key.is_string())
        write(key);
      else if (key.is_none() || key.is_number())
        write_string(simple(key));
      else
        throw TemplateError(std::string("keys must be str, int, float, bool or None, not ") +
                            key.type_name());
      out_ += json_ ? std::string_view(json_->key_separator) : ": ";
      write(pair.second);
    });
  }

  void break_line() {
    if (!json_ || !json_->indent) return;
    out_ += '\n';
    for (int i = 0; i < level_; ++i) out_ += *json_->indent;
  }

  Budget& budget_;
  const JsonStyle* json_;
  TextBuilder out_;
  int level_ = 0;
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

std::string repr(const Value& value, Budget& budget) { return Printer(budget, nullptr).run(value); }

std::string to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  return Printer(budget, &style).run(value);
}

std::string to_text(const Value& value, Budget& budget) {
  if (value.is_undefined()) return "";
  if (!value.is_string()) return repr(value, budget);
  budget.charge_bytes(value.as_string().size());
  return value.as_string();
}

}  // namespace ark::text::jinja
