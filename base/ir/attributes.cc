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

template <typename T>
Attribute::Attribute(Key<T> key, std::type_identity_t<T> value)
    : name(key.name), value(std::in_place_type<T>, std::move(value)) {}
Attribute::Attribute(const Attribute& other) = default;
Attribute::~Attribute() = default;

template <typename T>
void Attributes::set(Key<T> key, std::type_identity_t<T> value) {
  set_named(std::string(key.name), AttributeValue(std::in_place_type<T>, std::move(value)));
}

template Attribute::Attribute(Key<int64_t>, int64_t);
template Attribute::Attribute(Key<double>, double);
template Attribute::Attribute(Key<std::string>, std::string);
template Attribute::Attribute(Key<std::vector<int64_t>>, std::vector<int64_t>);
template Attribute::Attribute(Key<std::vector<double>>, std::vector<double>);
template Attribute::Attribute(Key<std::vector<std::string>>, std::vector<std::string>);
template Attribute::Attribute(Key<Shape>, Shape);
template Attribute::Attribute(Key<Tensor>, Tensor);
template void Attributes::set(Key<int64_t>, int64_t);
template void Attributes::set(Key<double>, double);
template void Attributes::set(Key<std::string>, std::string);
template void Attributes::set(Key<std::vector<int64_t>>, std::vector<int64_t>);
template void Attributes::set(Key<std::vector<double>>, std::vector<double>);
template void Attributes::set(Key<std::vector<std::string>>, std::vector<std::string>);
template void Attributes::set(Key<Shape>, Shape);
template void Attributes::set(Key<Tensor>, Tensor);

Attributes::Attributes() = default;
Attributes::Attributes(std::initializer_list<Attribute> attributes) {
  for (const Attribute& a : attributes) values_.insert_or_assign(a.name, a.value);
}
Attributes::Attributes(const Attributes& other) = default;
Attributes::Attributes(Attributes&& other) noexcept = default;
Attributes& Attributes::operator=(const Attributes& other) = default;
Attributes& Attributes::operator=(Attributes&& other) noexcept = default;
Attributes::~Attributes() = default;

const AttributeValue* Attributes::find(std::string_view name) const {
  const auto it = values_.find(name);
  return it == values_.end() ? nullptr : &it->second;
}

void Attributes::set(Attribute attribute) {
  set_named(std::move(attribute.name), std::move(attribute.value));
}

void Attributes::set_named(std::string name, AttributeValue value) {
  values_.insert_or_assign(std::move(name), std::move(value));
}

void Attributes::erase_named(std::string_view name) {
  if (const auto it = values_.find(name); it != values_.end()) values_.erase(it);
}

void Attributes::change_sizes(const std::function<Expr(const Expr&)>& change) {
  for (auto& [name, value] : values_)
    if (Shape* shape = std::get_if<Shape>(&value))
      for (Expr& size : *shape) size = change(std::as_const(size));
}

void Attributes::collect_symbols(std::set<std::string>& into) const {
  for (const auto& [name, value] : values_)
    if (const Shape* shape = std::get_if<Shape>(&value))
      for (const Expr& size : *shape) size.collect_symbols(into);
}

bool Attributes::has_symbols() const {  // asked for each node of a plain step: without a set
  for (const auto& [name, value] : values_)
    if (const Shape* shape = std::get_if<Shape>(&value))
      for (const Expr& size : *shape)
        if (!size.constant()) return true;
  return false;
}

Attributes Attributes::evaluated(const SymbolValues& symbols) const {
  Attributes result = *this;
  result.change_sizes([&](const Expr& e) { return Expr(e.evaluate(symbols)); });
  return result;
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
