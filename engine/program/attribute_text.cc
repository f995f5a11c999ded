#include "engine/program/attribute_text.h"

#include <cstdio>

namespace ark {
namespace {

struct ToText {
  std::string operator()(int64_t v) const { return "i:" + std::to_string(v); }
  std::string operator()(double v) const { return "f:" + real_text(v); }
  std::string operator()(const std::string& v) const { return "s:" + quote(v); }
  std::string operator()(const std::vector<int64_t>& v) const {
    return "I:" + list(v, ", ", [](int64_t i) { return std::to_string(i); });
  }
  std::string operator()(const std::vector<double>& v) const {
    return "F:" + list(v, ", ", [](double d) { return real_text(d); });
  }
  std::string operator()(const std::vector<std::string>& v) const { return "S:" + list(v, ", ", quote); }
  std::string operator()(const Shape& v) const {
    return "E:" + list(v, "; ", [](const Expr& e) { return e.str(); });
  }
  std::string operator()(const Tensor& t) const {
    std::string text = "T:" + std::string(name_of(t.dtype)) +
                       list(t.dims, ", ", [](int64_t i) { return std::to_string(i); }) + "\"";
    for (int64_t i = 0; i < t.bytes(); ++i) {
      char hex[3];
      std::snprintf(hex, sizeof hex, "%02x", static_cast<unsigned>(t.data.get()[i]));
      text += hex;
    }
    return text + "\"";
  }

  template <typename T, typename F>
  static std::string list(const std::vector<T>& items, const char* separator, F&& text) {
    std::string result = "[";
    for (std::size_t i = 0; i < items.size(); ++i) result += (i ? separator : "") + text(items[i]);
    return result + "]";
  }
};

Tensor read_tensor(TextCursor& c) {
  const DType dtype = dtype_from_name(c.word());
  Dims dims;
  c.list([&] { dims.push_back(c.integer()); });
  if (dtype == DType::kUndefined) c.fail("unknown element type before");
  const std::string hex = c.quoted();
  Tensor t = Tensor::empty(dtype, dims);
  if (static_cast<int64_t>(hex.size()) != 2 * t.bytes()) c.fail("tensor of another size before");
  for (int64_t i = 0; i < t.bytes(); ++i) {
    const std::string digits = hex.substr(static_cast<std::size_t>(2 * i), 2);
    t.data.get()[i] = static_cast<std::byte>(std::strtol(digits.c_str(), nullptr, 16));
  }
  return t;
}

AttributeValue read_value(TextCursor& c) {
  if (c.accept("i:")) return c.integer();
  if (c.accept("f:")) return c.real();
  if (c.accept("s:")) return c.quoted();
  if (c.accept("T:")) return read_tensor(c);
  if (c.accept("I:")) {
    std::vector<int64_t> v;
    c.list([&] { v.push_back(c.integer()); });
    return v;
  }
  if (c.accept("F:")) {
    std::vector<double> v;
    c.list([&] { v.push_back(c.real()); });
    return v;
  }
  if (c.accept("S:")) {
    std::vector<std::string> v;
    c.list([&] { v.push_back(c.quoted()); });
    return v;
  }
  c.expect("E:");
  Shape v;
  c.list([&] { v.push_back(c.expression(";]")); }, ";");
  return v;
}

}  // namespace

std::string real_text(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

std::string real_text(float value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value));
  return text;
}

std::string attributes_text(const Attributes& attributes) {
  std::string text;
  for (const auto& [name, value] : attributes.values()) {
    text += (text.empty() ? "{" : ", ") + name + "=" + std::visit(ToText{}, value);
  }
  return text.empty() ? "{}" : text + "}";
}

Attributes read_attributes(TextCursor& c) {
  Attributes attributes;
  c.expect("{");
  while (!c.accept("}")) {
    std::string name = c.word();
    c.expect("=");
    attributes.set_named(std::move(name), read_value(c));
    if (!c.accept(",") && !c.peek("}")) c.fail("expected ',' or '}'");
  }
  return attributes;
}

}  // namespace ark
