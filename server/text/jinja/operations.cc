#include "server/text/jinja/operations.h"

#include <algorithm>

#include "server/text/unicode.h"

namespace ark::text::jinja {
namespace {

bool equal_items(const std::vector<Value>& a, const std::vector<Value>& b, Budget& budget) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](const Value& left, const Value& right) { return equal(left, right, budget); });
}

bool equal_dicts(const Dict& a, const Dict& b, Budget& budget) {
  if (a.items.size() != b.items.size()) return false;
  return std::all_of(a.items.begin(), a.items.end(), [&](const auto& item) {
    const Value* other = b.find(item.first, budget);
    return other && equal(item.second, *other, budget);
  });
}

bool equal_strings(const std::string& a, const std::string& b, Budget& budget) {
  if (a.size() != b.size()) return false;
  budget.charge_reading(a.size());
  return a == b;
}

template <typename T>
int order(const T& a, const T& b) {
  return a < b ? -1 : b < a ? 1 : 0;
}

// The position of an index in [0, size), negative ones counted from the end.
std::optional<std::size_t> position(std::int64_t index, std::size_t size) {
  const auto count = static_cast<std::int64_t>(size);
  if (index < -count || index >= count) return std::nullopt;
  return static_cast<std::size_t>(index < 0 ? index + count : index);
}

// The indices that start:stop:step selects, as Python's slice.indices(): first, first + step, ... `count` of them.
struct Selection {
  std::int64_t first, step, count;
};

Selection select(const Value& start, const Value& stop, const Value& step, std::size_t size) {
  const auto number = [](const Value& value, std::int64_t missing) {
    if (value.is_none()) return missing;
    if (!value.is_integral()) throw TemplateError("slice indices must be integers or None");
    return value.as_int();
  };
  const std::int64_t stride = number(step, 1), count = static_cast<std::int64_t>(size);
  if (stride == 0) throw TemplateError("slice step cannot be zero");
  const std::int64_t low = stride < 0 ? -1 : 0, high = stride < 0 ? count - 1 : count;
  const auto bound = [&](const Value& value, std::int64_t missing) {
    if (value.is_none()) return missing;
    const std::int64_t index = number(value, 0);
    return std::clamp(index < 0 ? (index < -count ? low : index + count) : index, low, high);
  };
  const std::int64_t first = bound(start, stride < 0 ? high : low),
                     last = bound(stop, stride < 0 ? low : high);
  const std::int64_t width = stride > 0 ? last - first : first - last;
  // Steps beyond the size select one, and the smallest integer has no absolute value.
  const std::int64_t pace = std::clamp(stride, -count - 1, count + 1);
  return {first, pace, width <= 0 ? 0 : (width - 1) / (pace < 0 ? -pace : pace) + 1};
}

// The selected characters: in one walk through the text, from its end for negative steps.
std::string slice_text(const std::string& text, const Selection& selected, Budget& budget) {
  TextBuilder out(budget);
  const bool back = selected.step < 0;
  std::size_t at = 0;
  std::int64_t index = 0;
  if (back) at = text.size(), index = static_cast<std::int64_t>(count_chars(text)) - 1;
  for (std::int64_t taken = 0, wanted = selected.first; taken < selected.count; index += back ? -1 : 1) {
    const std::size_t before = at;
    if (back)
      previous_char(text, at);
    else
      next_char(text, at);
    if (index != wanted) continue;
    out += std::string_view(text).substr(std::min(before, at), back ? before - at : at - before);
    ++taken, wanted += selected.step;
  }
  return out.take();
}

}  // namespace

void use_of_undefined(const Value& value) { throw TemplateError(value.undefined_what()); }

bool truthy(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_integral()) return value.as_int() != 0;
  if (value.is_float()) return value.as_number() != 0;
  if (value.is_string()) return !value.as_string().empty();
  if (value.is_flavor(List::Flavor::kGenerator)) return true;
  if (value.is_list()) return !value.as_list().items.empty();
  if (value.is_dict()) return !value.as_dict().items.empty();
  return true;
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.charge();
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() == b.as_int();
    return a.as_number() == b.as_number();
  }
  if (a.is_string() && b.is_string()) return equal_strings(a.as_string(), b.as_string(), budget);
  if (a.is_none() || a.is_undefined()) return a.is_none() ? b.is_none() : b.is_undefined();
  if (a.is_sequence() && b.is_sequence() && a.as_list().flavor == b.as_list().flavor)
    return equal_items(a.as_list().items, b.as_list().items, budget);
  if (a.is_dict() && b.is_dict()) return equal_dicts(a.as_dict(), b.as_dict(), budget);
  return a.same_object(b);
}

int compare(const Value& a, const Value& b, Budget& budget) {
  budget.charge();
  if (a.is_undefined()) use_of_undefined(a);
  if (b.is_undefined()) use_of_undefined(b);
  if (a.is_integral() && b.is_integral()) return order(a.as_int(), b.as_int());
  if (a.is_number() && b.is_number()) return order(a.as_number(), b.as_number());
  if (a.is_string() && b.is_string()) {
    budget.charge_reading(std::min(a.as_string().size(), b.as_string().size()));
    return order(a.as_string(), b.as_string());  // bytes order as code points do
  }
  if (a.is_sequence() && b.is_sequence() && a.as_list().flavor == b.as_list().flavor) {
    const auto &left = a.as_list().items, &right = b.as_list().items;
    for (std::size_t i = 0; i < left.size() && i < right.size(); ++i)
      if (!equal(left[i], right[i], budget)) return compare(left[i], right[i], budget);
    return order(left.size(), right.size());
  }
  throw TemplateError(std::string("no order between '") + a.type_name() + "' and '" + b.type_name() + "'");
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  if (container.is_string()) {
    if (!item.is_string())
      throw TemplateError(std::string("'in <string>' requires string as left operand, not ") +
                          item.type_name());
    budget.charge_reading(container.as_string().size());
    return find_text(container.as_string(), item.as_string()) != std::string::npos;
  }
  if (container.is_dict()) return container.as_dict().find(item, budget) != nullptr;
  const std::vector<Value> items = iterate(container, budget);
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& other) { return equal(other, item, budget); });
}

std::size_t length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_string()) return count_chars(value.as_string());
  if (value.is_list() && !value.is_flavor(List::Flavor::kGenerator)) return value.as_list().items.size();
  if (value.is_dict()) return value.as_dict().items.size();
  throw TemplateError(std::string("object of type '") + value.type_name() + "' has no len()");
}

std::vector<Value> iterate(const Value& value, Budget& budget) {
  std::vector<Value> items;
  if (value.is_undefined()) return items;
  if (value.is_list()) {
    const List& list = value.as_list();
    if (list.flavor == List::Flavor::kGenerator && std::exchange(list.used, true)) return items;
    budget.charge_bytes(list.items.size() * sizeof(Value));
    return list.items;
  }
  if (value.is_dict()) {
    items = room_for(value.as_dict().items.size(), budget);
    for (const auto& [key, unused] : value.as_dict().items) items.push_back(key);
    return items;
  }
  if (value.is_string()) {
    const std::string& text = value.as_string();
    const std::size_t count = count_chars(text);
    budget.charge_bytes(count * kTextBytes);
    items = room_for(count, budget);
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = at;
      next_char(text, at);
      items.emplace_back(text.substr(begin, at - begin));
    }
    return items;
  }
  throw TemplateError(std::string("'") + value.type_name() + "' object is not iterable");
}

std::vector<Value> dict_items(const Dict& dict, Budget& budget) {
  budget.charge_bytes(dict.items.size() * (kListBytes + 2 * sizeof(Value)));
  std::vector<Value> out = room_for(dict.items.size(), budget);
  for (const auto& [key, value] : dict.items) out.push_back(Value::tuple({key, value}));
  return out;
}

std::optional<Value> subscript(const Value& object, const Value& key, Budget& budget) {
  if (object.is_undefined()) use_of_undefined(object);
  if (object.is_dict()) {
    if (key.is_list() || key.is_dict()) return std::nullopt;
    const Value* found = object.as_dict().find(key, budget);
    return found ? std::optional(*found) : std::nullopt;
  }
  if (!key.is_integral()) return std::nullopt;
  if (object.is_string()) {
    budget.charge_reading(object.as_string().size());
    const std::string& text = object.as_string();
    const auto at = position(key.as_int(), count_chars(text));
    if (!at) return std::nullopt;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < *at; ++i) next_char(text, begin);
    return text.substr(begin, utf8_sequence_length(static_cast<unsigned char>(text[begin])));
  }
  if (object.is_sequence()) {
    const auto at = position(key.as_int(), object.as_list().items.size());
    return at ? std::optional(object.as_list().items[*at]) : std::nullopt;
  }
  return std::nullopt;
}

Value slice(const Value& object, const Value& start, const Value& stop, const Value& step, Budget& budget) {
  if (object.is_undefined()) use_of_undefined(object);
  if (object.is_string()) {
    const std::string& text = object.as_string();
    budget.charge_reading(text.size());
    return slice_text(text, select(start, stop, step, count_chars(text)), budget);
  }
  if (!object.is_sequence())
    return Value::undefined(std::string("'") + object.type_name() + "' object cannot be sliced");
  const auto& items = object.as_list().items;
  const Selection selected = select(start, stop, step, items.size());
  budget.charge_bytes(kListBytes);
  std::vector<Value> out = room_for(static_cast<std::size_t>(selected.count), budget);
  for (std::int64_t i = 0; i < selected.count; ++i)
    out.push_back(items[static_cast<std::size_t>(selected.first + i * selected.step)]);
  return Value::list(std::move(out), object.as_list().flavor);
}

}  // namespace ark::text::jinja
