#include "base/ir/attributes.h"

#include <charconv>

#include "base/error.h"

namespace ark {
namespace {

std::string text(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return {buffer, end};
}
std::string text(int64_t value) { return std::to_string(value); }
std::string text(const std::string& value) { return '"' + escaped(value) + '"'; }
std::string text(const Shape& value) { return str(value); }

std::string text(const Tensor& value) {
  std::string out = std::string(name_of(value.dtype)) + "[";
  for (std::size_t i = 0; i < value.dims.size(); ++i) out += (i ? ", " : "") + std::to_string(value.dims[i]);
  out += "]";
  const int64_t shown = std::min<int64_t>(value.size(), 4);
  for (int64_t i = 0; i < shown; ++i)
    out += (i ? ", " : " (") + (is_floating(value.dtype) ? text(value.real(i)) : text(value.integer(i)));
  return shown ? out + (shown < value.size() ? ", ...)" : ")") : out;
}

template <typename T>
std::string text(const std::vector<T>& values) {
  std::string out = "[";
  for (std::size_t i = 0; i < values.size(); ++i) out += (i ? ", " : "") + text(values[i]);
  return out + "]";
}

}  // namespace

Attributes::Attributes(std::initializer_list<Attribute> attributes) {
  for (const Attribute& a : attributes) values_.insert_or_assign(a.name, a.value);
}

std::string Attributes::str() const {
  if (values_.empty()) return "";
  std::string out = "{";
  for (const auto& [name, value] : values_) {
    if (out.size() > 1) out += ", ";
    out += name + "=" + std::visit([](const auto& v) { return text(v); }, value);
  }
  return out + "}";
}

void attribute_error(std::string_view name, bool present) {
  throw Error(Code::kBadModel,
              "attribute '" + escaped(name) + "' " + (present ? "is of another type" : "is missing"));
}

}  // namespace ark
