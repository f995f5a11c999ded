// The attributes of a canonical node: a small sorted map from name to value.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/expr.h"
#include "base/tensor.h"

namespace ark {

using AttributeValue = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                                    std::vector<std::string>, Shape, Tensor>;

class Attributes {
 public:
  Attributes() = default;
  Attributes(std::initializer_list<std::pair<const std::string, AttributeValue>> values) : values_(values) {}

  bool has(std::string_view name) const { return values_.find(name) != values_.end(); }
  void set(std::string name, AttributeValue value) {
    values_.insert_or_assign(std::move(name), std::move(value));
  }
  void erase(std::string_view name);

  // Getters throw Error(kBadModel) naming the attribute if it is absent (or of another type).
  template <typename T>
  const T& get(std::string_view name) const;
  int64_t integer(std::string_view name) const { return get<int64_t>(name); }
  int64_t integer_or(std::string_view name, int64_t fallback) const {
    return has(name) ? integer(name) : fallback;
  }
  double real(std::string_view name) const;  // an integer converts
  double real_or(std::string_view name, double fallback) const { return has(name) ? real(name) : fallback; }
  std::string text_or(std::string_view name, std::string fallback) const {
    return has(name) ? get<std::string>(name) : fallback;
  }
  const std::vector<int64_t>& ints(std::string_view name) const { return get<std::vector<int64_t>>(name); }
  std::vector<int64_t> ints_or(std::string_view name, std::vector<int64_t> fallback) const {
    return has(name) ? ints(name) : fallback;
  }
  const Shape& shape(std::string_view name) const { return get<Shape>(name); }

  const std::map<std::string, AttributeValue, std::less<>>& values() const { return values_; }
  std::string str() const;  // "{axis=1, perm=[0, 2, 1]}", empty if there are none

 private:
  std::map<std::string, AttributeValue, std::less<>> values_;
};

[[noreturn]] void attribute_error(std::string_view name, bool present);

template <typename T>
const T& Attributes::get(std::string_view name) const {
  const auto it = values_.find(name);
  const T* value = it == values_.end() ? nullptr : std::get_if<T>(&it->second);
  if (!value) attribute_error(name, it != values_.end());
  return *value;
}

}  // namespace ark
