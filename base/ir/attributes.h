// The attributes of a canonical node: a small sorted map from name to value.
#pragma once

#include <functional>
#include <map>
#include <set>
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
  Attribute(Key<T> key, std::type_identity_t<T> value);
  Attribute(const Attribute& other);
  ~Attribute();
  std::string name;
  AttributeValue value;
};

class Attributes {
 public:
  Attributes();
  Attributes(std::initializer_list<Attribute> attributes);
  // All that instantiates the map is in attributes.cc: two hundred files include this.
  Attributes(const Attributes& other);
  Attributes(Attributes&& other) noexcept;
  Attributes& operator=(const Attributes& other);
  Attributes& operator=(Attributes&& other) noexcept;
  ~Attributes();

  template <typename T>
  bool has(Key<T> key) const {
    return find(key.name) != nullptr;
  }
  template <typename T>
  void set(Key<T> key, std::type_identity_t<T> value);
  void set(Attribute attribute);
  // For who reads names from outside: texts of programs.
  void set_named(std::string name, AttributeValue value);
  template <typename T>
  void erase(Key<T> key) {
    erase_named(key.name);
  }

  // Throws Error(kBadModel) naming the attribute if it is absent, or of another type than its key's.
  template <typename T>
  const T& get(Key<T> key) const;
  template <typename T>
  T get_or(Key<T> key, std::type_identity_t<T> fallback) const {
    return has(key) ? get(key) : std::move(fallback);
  }

  // Replaces each size in attributes of type Shape by `change(size)`.
  void change_sizes(const std::function<Expr(const Expr&)>& change);
  // The symbols of these sizes; whether there are any; a copy without, as kernels want it.
  void collect_symbols(std::set<std::string>& into) const;
  bool has_symbols() const;
  Attributes evaluated(const SymbolValues& symbols) const;

  const std::map<std::string, AttributeValue, std::less<>>& values() const { return values_; }
  std::string str() const;  // "{axis=1, perm=[0, 2, 1]}", empty if there are none

 private:
  const AttributeValue* find(std::string_view name) const;  // null if absent
  void erase_named(std::string_view name);
  std::map<std::string, AttributeValue, std::less<>> values_;
};

[[noreturn]] void attribute_error(std::string_view name, bool present);

template <typename T>
const T& Attributes::get(Key<T> key) const {
  const AttributeValue* found = find(key.name);
  const T* value = found ? std::get_if<T>(found) : nullptr;
  if (!value) attribute_error(key.name, found != nullptr);
  return *value;
}

}  // namespace ark
