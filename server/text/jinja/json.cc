// Values as JSON, the way Python's json.dumps writes it.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "server/json.h"
#include "server/text/jinja/operations.h"
#include "server/text/unicode.h"

namespace ark::text::jinja {
namespace {

void append_unit(std::string& out, unsigned unit) {
  char buffer[8];
  std::snprintf(buffer, sizeof buffer, "\\u%04x", unit);
  out += buffer;
}

void append_string(std::string& out, std::string_view text, bool ascii) {
  out += '"';
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_char(text, at);
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\b':
        out += "\\b";
        break;
      default:
        if (c < 0x20 || (ascii && c >= 0x7F && c < 0x10000)) {
          if (c == 0x7F)
            out += '\x7F';
          else
            append_unit(out, static_cast<unsigned>(c));
        } else if (ascii && c >= 0x10000) {
          append_unit(out, 0xD800 + static_cast<unsigned>((c - 0x10000) >> 10));
          append_unit(out, 0xDC00 + static_cast<unsigned>((c - 0x10000) & 0x3FF));
        } else {
          append_utf8(out, c);
        }
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

const std::string& checked_utf8(const std::string& text) {
  if (!is_valid_utf8(text)) throw TemplateError("a string of the input is not valid UTF-8");
  return text;
}

class Writer {
 public:
  explicit Writer(const JsonStyle& style) : style_(style) {}

  void write(const Value& value) {
    if (value.is_none())
      out += "null";
    else if (value.is_bool())
      out += value.as_bool() ? "true" : "false";
    else if (value.is_number())
      out += number_text(value);
    else if (value.is_string())
      append_string(out, value.as_string(), style_.ascii);
    else if (value.is_dict())
      write_dict(value.as_dict());
    else if (value.is_flavor(List::Flavor::kList) || value.is_flavor(List::Flavor::kTuple))
      write_list(value.as_list());
    else
      throw TemplateError(std::string("Object of type ") + value.type_name() + " is not JSON serializable");
  }

  std::string out;

 private:
  template <typename Items, typename WriteItem>
  void write_items(char open, char close, const Items& items, WriteItem write_item) {
    out += open;
    ++level_;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += style_.item_separator;
      break_line();
      write_item(items[i]);
    }
    --level_;
    if (!items.empty()) break_line();
    out += close;
  }

  void write_list(const List& list) {
    write_items('[', ']', list.items, [this](const Value& item) { write(item); });
  }

  void write_dict(const Dict& dict) {
    auto items = dict.items;
    if (style_.sort_keys)
      std::stable_sort(items.begin(), items.end(),
                       [](const auto& a, const auto& b) { return compare(a.first, b.first) < 0; });
    write_items('{', '}', items, [this](const auto& item) {
      append_string(out, key_text(item.first), style_.ascii);
      out += style_.key_separator;
      write(item.second);
    });
  }

  void break_line() {
    if (!style_.indent) return;
    out += '\n';
    for (int i = 0; i < level_; ++i) out += *style_.indent;
  }

  const JsonStyle& style_;
  int level_ = 0;
};

}  // namespace

std::string to_json(const Value& value, const JsonStyle& style) {
  Writer writer(style);
  writer.write(value);
  return std::move(writer.out);
}

Value from_json(const Json& json, int depth) {
  if (depth > kMaxContainerDepth - 10)
    throw TemplateError("the input is nested deeper than " + std::to_string(kMaxContainerDepth - 10));
  switch (json.type()) {
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
      return json.get<std::int64_t>();
    case Json::value_t::number_unsigned: {
      const auto number = json.get<std::uint64_t>();
      if (number > INT64_MAX) return static_cast<double>(number);
      return static_cast<std::int64_t>(number);
    }
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string:
      return checked_utf8(json.get_ref<const std::string&>());
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(from_json(item, depth + 1));
      return Value::list(std::move(items));
    }
    case Json::value_t::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& [key, item] : json.items()) dict->set(checked_utf8(key), from_json(item, depth + 1));
      return std::shared_ptr<const Dict>(std::move(dict));
    }
    default:
      return Value();
  }
}

}  // namespace ark::text::jinja
