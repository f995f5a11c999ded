// Filters of lists and other iterables.
#include <algorithm>
#include <numeric>

#include "server/text/jinja/builtins.h"
#include "server/text/jinja/strings.h"
#include "server/text/unicode.h"

namespace ark::text::jinja {
namespace {

// "a.b.0": item after item; a missing one is undefined, or `fallback`.
Value path(Interpreter& interpreter, const Value& start, const Value& attribute,
           const Value* fallback = nullptr) {
  Value value = start;
  const auto step = [&](const Value& key) {
    value = interpreter.item(value, key);
    if (fallback && value.is_undefined()) value = *fallback;
  };
  if (attribute.is_integral()) {
    step(attribute);
    return value;
  }
  const std::string names = to_text(attribute, interpreter.budget());
  for (const std::string_view part : split(names, ".", -1, false, interpreter.budget())) {
    const bool digits = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    step(digits && part.size() < 10 ? Value(static_cast<std::int64_t>(std::stoll(std::string(part))))
                                    : Value(part));
  }
  return value;
}

Value fold_case(const Value& value, bool case_sensitive, Budget& budget) {
  if (!value.is_string() || case_sensitive) return value;
  charge_case(value.as_string(), budget);
  return to_lower(value.as_string());
}

// What sort, unique, min and max compare: an attribute (an argument) or the item, without case unless asked.
Value sort_key(Call& c, const Value& item, const Value* attribute, bool case_sensitive) {
  return fold_case(attribute ? path(c.interpreter, item, *attribute) : item, case_sensitive, c.budget);
}
const Value* if_given(const Call& c, std::size_t index) { return c.given(index) ? &c.get(index) : nullptr; }

// The items in the order of their keys; equal ones keep theirs.
Value sorted(const std::vector<Value>& items, const std::vector<Value>& keys, bool reverse, Budget& budget) {
  budget.charge_bytes(items.size() * 2 * sizeof(std::size_t));  // one for the sort
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return compare(keys[reverse ? b : a], keys[reverse ? a : b], budget) < 0;
  });
  std::vector<Value> out = room_for(items.size(), budget);
  for (std::size_t i : order) out.push_back(items[i]);
  return Value::list(std::move(out));
}

Value sort_filter(Call& c) {
  const std::vector<Value> items = iterate(c.input, c.budget);
  std::vector<Value> attributes;  // "a,b": those with the same a by b
  if (c.given(2) && c.get(2).is_string())
    for (const std::string_view name : split(c.get(2).as_string(), ",", -1, false, c.budget))
      attributes.emplace_back(name);
  const std::size_t parts = std::max<std::size_t>(attributes.size(), 1);
  c.budget.charge_bytes(items.size() * (kListBytes + parts * kTextBytes));
  std::vector<Value> keys = room_for(items.size(), c.budget);
  for (const Value& item : items) {  // lists, which compare equal items first: also undefined ones
    std::vector<Value> key = room_for(parts, c.budget);
    for (std::size_t i = 0; i < parts; ++i)
      key.push_back(sort_key(c, item, attributes.empty() ? if_given(c, 2) : &attributes[i], c.flag(1)));
    keys.push_back(Value::list(std::move(key)));
  }
  return sorted(items, keys, c.flag(0), c.budget);
}

Value dictsort_filter(Call& c) {
  const std::string by = c.string_if_given(1).value_or("key");
  if (by != "key" && by != "value") c.fail("sorts by key or value");
  if (!c.input.is_dict()) c.wrong_type("a mapping", c.input);
  std::vector<Value> keys = room_for(c.input.as_dict().items.size(), c.budget);
  c.budget.charge_bytes(c.input.as_dict().items.size() * kTextBytes);
  for (const auto& [key, value] : c.input.as_dict().items)
    keys.push_back(fold_case(by == "key" ? key : value, c.flag(0), c.budget));
  return sorted(dict_items(c.input.as_dict(), c.budget), keys, c.flag(2), c.budget);
}

Value unique_filter(Call& c) {
  Dict seen;
  const std::vector<Value> items = iterate(c.input, c.budget);
  std::vector<Value> out = room_for(items.size(), c.budget);
  for (const Value& item : items) {
    const Value key = sort_key(c, item, if_given(c, 1), c.flag(0));
    if (seen.find(key, c.budget)) continue;
    seen.set(key, true, c.budget);
    out.push_back(item);
  }
  return Value::generator(std::move(out));
}

template <int kSign>
Value extreme_filter(Call& c) {
  std::optional<Value> best, best_key;
  for (const Value& item : iterate(c.input, c.budget)) {
    const Value key = sort_key(c, item, if_given(c, 1), c.flag(0));
    if (best && kSign * compare(key, *best_key, c.budget) <= 0) continue;
    best = item, best_key = key;
  }
  return best.value_or(Value::undefined("No aggregated item, sequence was empty."));
}

Value sum_filter(Call& c) {
  Value total = c.get_or(1, 0);
  if (total.is_string()) c.fail("cannot sum strings; use join");
  for (const Value& item : iterate(c.input, c.budget))
    total =
        calculate(Arithmetic::kAdd, total, c.given(0) ? path(c.interpreter, item, c.get(0)) : item, c.budget);
  return total;
}

// The item at 0 or -1.
template <int kIndex>
Value end_filter(Call& c) {
  if (kIndex < 0 && c.input.is_flavor(List::Flavor::kGenerator)) c.fail("cannot reverse a generator");
  std::optional<Value> item;
  if (c.input.is_string() || c.input.is_sequence())
    item = subscript(c.input, kIndex, c.budget);
  else if (const std::vector<Value> items = iterate(c.input, c.budget); !items.empty())
    item = kIndex == 0 ? items.front() : items.back();
  return item.value_or(Value::undefined("No first or last item, sequence was empty."));
}

Value join_filter(Call& c) {
  const std::string separator = to_text(c.get_or(0, ""), c.budget);
  TextBuilder out(c.budget);
  bool begun = false;
  for (const Value& item : iterate(c.input, c.budget)) {
    const std::string text = to_text(c.given(1) ? path(c.interpreter, item, c.get(1)) : item, c.budget);
    if (std::exchange(begun, true)) out += separator;
    out += text;
  }
  return out.take();
}

Value list_filter(Call& c) { return Value::list(iterate(c.input, c.budget)); }

Value reverse_filter(Call& c) {
  if (c.input.is_string()) return slice(c.input, Value(), Value(), -1, c.budget);
  std::vector<Value> items = iterate(c.input, c.budget);
  std::reverse(items.begin(), items.end());
  return Value::generator(std::move(items));
}

// The arguments behind the first `count`.
Arguments rest_of(const Arguments& arguments, std::size_t count, Budget& budget) {
  budget.charge_bytes(arguments.positional.size() * sizeof(Value));
  Arguments rest = arguments;
  const auto end = static_cast<std::ptrdiff_t>(std::min(count, rest.positional.size()));
  rest.positional.erase(rest.positional.begin(), rest.positional.begin() + end);
  return rest;
}

constexpr Builtin kMapAttribute{"map", "attribute default", nullptr};

Value map_filter(Call& c) {
  if (!truthy(c.input)) return Value::generator({});  // none and false as well as what is empty
  const std::vector<Value> items = iterate(c.input, c.budget);
  std::vector<Value> out = room_for(items.size(), c.budget);
  if (c.arguments.positional.empty()) {
    const Call by_attribute(kMapAttribute, c.interpreter, c.input, c.arguments);
    const Value attribute = by_attribute.get(0), fallback = by_attribute.get_or(1, Value());
    for (const Value& item : items)
      out.push_back(path(c.interpreter, item, attribute, by_attribute.given(1) ? &fallback : nullptr));
    return Value::generator(std::move(out));
  }
  const std::string name = to_text(c.arguments.positional[0], c.budget);
  const Arguments rest = rest_of(c.arguments, 1, c.budget);
  const Builtin* filter = find_filter(name);
  for (const Value& item : items) out.push_back(c.interpreter.apply(filter, "filter", name, item, rest));
  return Value::generator(std::move(out));
}

template <bool kAttribute, bool kWanted>
Value select_filter(Call& c) {
  constexpr std::size_t kTestAt = kAttribute ? 1 : 0;
  const std::vector<Value>& given = c.arguments.positional;
  if (!truthy(c.input)) return Value::generator({});
  if (given.size() < kTestAt) c.fail("needs an attribute");
  const std::string name = given.size() > kTestAt ? to_text(given[kTestAt], c.budget) : "";
  const Arguments rest = rest_of(c.arguments, kTestAt + 1, c.budget);
  const Builtin* test = find_test(name);
  const std::vector<Value> items = iterate(c.input, c.budget);
  std::vector<Value> out = room_for(items.size(), c.budget);
  for (const Value& item : items) {
    Value holds = kAttribute ? path(c.interpreter, item, given[0]) : item;
    if (given.size() > kTestAt) holds = c.interpreter.apply(test, "test", name, holds, rest);
    if (truthy(holds) == kWanted) out.push_back(item);
  }
  return Value::generator(std::move(out));
}

constexpr Builtin kSequenceFilters[] = {
    {"first", "", end_filter<0>},
    {"last", "", end_filter<-1>},
    {"join", "d attribute", join_filter},
    {"list", "", list_filter},
    {"reverse", "", reverse_filter},
    {"map", "*", map_filter},
    {"select", "*", select_filter<false, true>},
    {"reject", "*", select_filter<false, false>},
    {"selectattr", "*", select_filter<true, true>},
    {"rejectattr", "*", select_filter<true, false>},
    {"sort", "reverse case_sensitive attribute", sort_filter},
    {"dictsort", "case_sensitive by reverse", dictsort_filter},
    {"unique", "case_sensitive attribute", unique_filter},
    {"min", "case_sensitive attribute", extreme_filter<-1>},
    {"max", "case_sensitive attribute", extreme_filter<1>},
    {"sum", "attribute start", sum_filter},
};

}  // namespace

const Builtin* find_sequence_filter(std::string_view name) { return find_named(kSequenceFilters, name); }

}  // namespace ark::text::jinja
