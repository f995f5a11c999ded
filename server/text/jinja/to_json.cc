// Values as JSON, the way Python's json.dumps writes it.
#include <algorithm>
#include <cmath>

#include "server/text/jinja/operations.h"
#include "server/text/unicode.h"

namespace ark::text::jinja {
namespace {

// One UTF-16 code unit as \uxxxx.
void append_unit(std::string& out, unsigned unit) {
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += "0123456789abcdef"[unit >> shift & 0xF];
}

void append_string(std::string& out, std::string_view text, bool ascii) {
  out += '"';
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_char(text, at);
    static constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
    if (const std::size_t short_form = c < 0x80 ? kEscaped.find(static_cast<char>(c)) : kEscaped.npos;
        short_form != kEscaped.npos) {
      out += {'\\', kLetters[short_form]};
    } else if (c < 0x20 || (ascii && c >= 0x7F && c < 0x10000)) {
      append_unit(out, c);
    } else if (ascii && c >= 0x10000) {
      append_unit(out, 0xD800 + ((c - 0x10000) >> 10));
      append_unit(out, 0xDC00 + ((c - 0x10000) & 0x3FF));
    } else {
      append_utf8(out, c);
    }
  }
  out += '"';
}

std::string number_text(const Value& value) {
  if (!value.is_float()) return std::to_string(value.as_int());
  const double number = value.as_number();
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number < 0 ? "-Infinity" : "Infinity";
  return float_repr(number);
}

std::string key_text(const Value& key) {
  if (key.is_string()) return key.as_string();
  if (key.is_none()) return "null";
  if (key.is_bool()) return key.as_bool() ? "true" : "false";
  if (key.is_number()) return number_text(key);
  throw TemplateError(std::string("keys must be str, int, float, bool or None, not ") + key.type_name());
}

class Writer {
 public:
  Writer(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  std::string run(const Value& value) {
    write(value);
    charge();
    return std::move(out_);
  }

 private:
  void charge() {
    budget_.charge();
    budget_.charge_bytes(out_.size() - charged_);
    charged_ = out_.size();
  }

  void write(const Value& value) {
    charge();
    if (value.is_none())
      out_ += "null";
    else if (value.is_bool())
      out_ += value.as_bool() ? "true" : "false";
    else if (value.is_number())
      out_ += number_text(value);
    else if (value.is_string())
      append_string(out_, value.as_string(), style_.ascii);
    else if (value.is_dict())
      write_dict(value.as_dict());
    else if (value.is_flavor(List::Flavor::kList) || value.is_flavor(List::Flavor::kTuple))
      write_list(value.as_list());
    else
      throw TemplateError(std::string("Object of type ") + value.type_name() + " is not JSON serializable");
  }

  template <typename Items, typename WriteItem>
  void write_items(char open, char close, const Items& items, WriteItem write_item) {
    out_ += open;
    ++level_;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      break_line();
      write_item(items[i]);
    }
    --level_;
    if (!items.empty()) break_line();
    out_ += close;
  }

  void write_list(const List& list) {
    write_items('[', ']', list.items, [this](const Value& item) { write(item); });
  }

  void write_dict(const Dict& dict) {
    auto items = dict.items;
    if (style_.sort_keys)
      std::stable_sort(items.begin(), items.end(), [this](const auto& a, const auto& b) {
        return compare(a.first, b.first, budget_) < 0;
      });
    write_items('{', '}', items, [this](const auto& item) {
      append_string(out_, key_text(item.first), style_.ascii);
      out_ += style_.key_separator;
      write(item.second);
    });
  }

  void break_line() {
    if (!style_.indent) return;
    out_ += '\n';
    for (int i = 0; i < level_; ++i) out_ += *style_.indent;
  }

  const JsonStyle& style_;
  Budget& budget_;
  std::string out_;
  std::size_t charged_ = 0;  // bytes of out_
  int level_ = 0;
};

}  // namespace

std::string to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  return Writer(style, budget).run(value);
}

}  // namespace ark::text::jinja
