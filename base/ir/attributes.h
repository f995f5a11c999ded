// The attributes of a canonical node: a small sorted map from name to value.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/expr.h"
#include "base/tensor.h"

namespace ark {

using AttributeValue = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                                    std::vector<std::string>, Shape, Tensor>;

// The name and type of an attribute; base/ir/keys.h lists them all.
template <typename T>
struct Key {
  std::string_view name;
};

struct Attribute {
  // In braces, as lists of attributes are written, a value that T cannot hold does not compile.
  template <typename T>
  Attribute(Key<T> key, std::type_identity_t<T> value)
      : name(key.name), value(std::in_place_type<T>, std::move(value)) {}
  std::string name;
  AttributeValue value;
};

class Attributes {
 public:
  Attributes() = default;
  Attributes(std::initializer_list<Attribute> attributes);

  template <typename T>
  bool has(Key<T> key) const {
    return values_.contains(key.name);
  }
  template <typename T>
  void set(Key<T> key, std::type_identity_t<T> value) {
    values_.insert_or_assign(std::string(key.name), AttributeValue(std::in_place_type<T>, std::move(value)));
  }
  void set(Attribute attribute) { set_named(std::move(attribute.name), std::move(attribute.value)); }
  // For who reads names from outside: texts of programs.
  void set_named(std::string name, AttributeValue value) {
    values_.insert_or_assign(std::move(name), std::move(value));
  }
  template <typename T>
  void erase(Key<T> key) {
    if (const auto it = values_.find(key.name); it != values_.end()) values_.erase(it);
  }

  // Throws Error(kBadModel) naming the attribute if it is absent, or of another type than its key's.
  template <typename T>
  const T& get(Key<T> key) const;
  template <typename T>
  T get_or(Key<T> key, std::type_identity_t<T> fallback) const {
    return has(key) ? get(key) : std::move(fallback);
  }

  // Replaces each size in attributes of type Shape by `change(size)`.
  template <typename F>
  void change_sizes(F&& change) {
    for (auto& [name, value] : values_)
      if (Shape* shape = std::get_if<Shape>(&value))
        for (Expr& size : *shape) size = change(std::as_const(size));
  }

  const std::map<std::string, AttributeValue, std::less<>>& values() const { return values_; }
  std::string str() const;  // "{axis=1, perm=[0, 2, 1]}", empty if there are none

 private:
  std::map<std::string, AttributeValue, std::less<>> values_;
};

[[noreturn]] void attribute_error(std::string_view name, bool present);

template <typename T>
const T& Attributes::get(Key<T> key) const {
  const auto it = values_.find(key.name);
  const T* value = it == values_.end() ? nullptr : std::get_if<T>(&it->second);
  if (!value) attribute_error(key.name, it != values_.end());
  return *value;
}

}  // namespace ark
