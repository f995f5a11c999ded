// Filters of lists and other iterables.
#include <algorithm>
#include <numeric>

#include "server/text/jinja/arguments.h"
#include "server/text/jinja/builtins.h"
#include "server/text/jinja/strings.h"
#include "server/text/unicode.h"

namespace ark::text::jinja {
namespace {

// "a.b.0": item after item; a missing one is undefined, or `fallback`.
Value path(const Value& start, const Value& attribute, const Value* fallback = nullptr) {
  Value value = start;
  const auto step = [&](const Value& key) {
    value = Interpreter::item(value, key);
    if (fallback && value.is_undefined()) value = *fallback;
  };
  if (attribute.is_integral()) {
    step(attribute);
    return value;
  }
  for (const std::string& part : split(to_text(attribute), ".", -1, false)) {
    const bool digits = all_characters(to_utf32(part), [](char32_t c) { return c >= '0' && c <= '9'; });
    step(digits && part.size() < 10 ? Value(static_cast<std::int64_t>(std::stoll(part))) : Value(part));
  }
  return value;
}

Value fold_case(const Value& value, bool case_sensitive) {
  return value.is_string() && !case_sensitive ? Value(lower(value.as_string())) : value;
}

// What sort, unique, min and max compare: an attribute or the item, without case unless asked.
Value sort_key(const Value& item, const Value& attribute, bool case_sensitive) {
  return fold_case(attribute.is_none() ? item : path(item, attribute), case_sensitive);
}

// Of sort: one key per attribute ("a,b.c"), as a list: lists compare equal items first, also undefined ones.
std::vector<Value> sort_keys(const std::vector<Value>& items, const Value& attribute, bool case_sensitive) {
  std::vector<Value> attributes{attribute};
  if (attribute.is_string()) {
    attributes.clear();
    for (std::string& name : split(attribute.as_string(), ",", -1, false))
      attributes.emplace_back(std::move(name));
  }
  std::vector<Value> keys;
  for (const Value& item : items) {
    std::vector<Value> parts;
    for (const Value& name : attributes) parts.push_back(sort_key(item, name, case_sensitive));
    keys.push_back(Value::list(std::move(parts)));
  }
  return keys;
}

// The items in the order of their keys; equal ones keep theirs.
std::vector<Value> sorted(const std::vector<Value>& items, const std::vector<Value>& keys, bool reverse) {
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return reverse ? compare(keys[b], keys[a]) < 0 : compare(keys[a], keys[b]) < 0;
  });
  std::vector<Value> out;
  for (std::size_t i : order) out.push_back(items[i]);
  return out;
}

Value sort_filter(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "sort", {"reverse", "case_sensitive", "attribute"});
  const std::vector<Value> items = iterate(input);
  return Value::list(
      sorted(items, sort_keys(items, parameters.get_or(2, Value()), parameters.flag(1)), parameters.flag(0)));
}

Value dict_sort(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "dictsort", {"case_sensitive", "by", "reverse"});
  const std::string by = parameters.string_or(1, "key");
  if (by != "key" && by != "value") parameters.fail("sorts by key or value");
  if (!input.is_dict()) parameters.fail("needs a mapping");
  std::vector<Value> items, keys;
  for (const auto& [key, value] : input.as_dict().items) {
    items.push_back(Value::tuple({key, value}));
    keys.push_back(fold_case(by == "key" ? key : value, parameters.flag(0)));
  }
  return Value::list(sorted(items, keys, parameters.flag(2)));
}

Value unique(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "unique", {"case_sensitive", "attribute"});
  Dict seen;
  std::vector<Value> out;
  for (const Value& item : iterate(input)) {
    const Value key = sort_key(item, parameters.get_or(1, Value()), parameters.flag(0));
    if (seen.find(key)) continue;
    seen.set(key, true);
    out.push_back(item);
  }
  return Value::generator(std::move(out));
}

template <bool kLargest>
Value extreme(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, kLargest ? "max" : "min", {"case_sensitive", "attribute"});
  const std::vector<Value> items = iterate(input);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  std::vector<Value> keys;
  for (const Value& item : items)
    keys.push_back(sort_key(item, parameters.get_or(1, Value()), parameters.flag(0)));
  std::size_t best = 0;
  for (std::size_t i = 1; i < items.size(); ++i) {
    const int order = compare(keys[i], keys[best]);
    if (kLargest ? order > 0 : order < 0) best = i;
  }
  return items[best];
}

Value sum(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "sum", {"attribute", "start"});
  Value total = parameters.get_or(1, Value(0));
  if (total.is_string()) parameters.fail("cannot sum strings; use join");
  for (const Value& item : iterate(input))
    total = calculate(Arithmetic::kAdd, total, parameters.given(0) ? path(item, parameters.get(0)) : item,
                      interpreter.meter());
  return total;
}

Value first(Interpreter&, const Value& input, const Arguments& arguments) {
  Parameters(arguments, "first", {});
  const std::vector<Value> items = iterate(input);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Value last(Interpreter&, const Value& input, const Arguments& arguments) {
  Parameters(arguments, "last", {});
  if (input.is_flavor(List::Flavor::kGenerator)) throw TemplateError("'generator' object is not reversible");
  const std::vector<Value> items = iterate(input);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value join(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "join", {"d", "attribute"});
  const std::string separator = to_text(parameters.get_or(0, Value("")));
  std::string out;
  bool begun = false;
  for (const Value& item : iterate(input)) {
    const std::string text = to_text(parameters.given(1) ? path(item, parameters.get(1)) : item);
    if (std::exchange(begun, true)) out += separator;
    out += text;
    interpreter.meter().charge_bytes(text.size() + separator.size());
  }
  return out;
}

Value list(Interpreter&, const Value& input, const Arguments& arguments) {
  Parameters(arguments, "list", {});
  return Value::list(iterate(input));
}

Value reverse(Interpreter&, const Value& input, const Arguments& arguments) {
  Parameters(arguments, "reverse", {});
  std::vector<Value> items = iterate(input);
  std::reverse(items.begin(), items.end());
  if (!input.is_string()) return Value::generator(std::move(items));
  std::string out;
  for (const Value& item : items) out += item.as_string();
  return out;
}

// The arguments behind the first `count`.
Arguments rest_of(const Arguments& arguments, std::size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(
      rest.positional.begin(),
      rest.positional.begin() + static_cast<std::ptrdiff_t>(std::min(count, rest.positional.size())));
  return rest;
}

Value map(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  if (!truthy(input)) return Value::generator({});  // none and false as well as what is empty
  std::vector<Value> out;
  if (arguments.positional.empty()) {
    const Parameters parameters(arguments, "map", {"attribute", "default"});
    const Value attribute = parameters.get(0), fallback = parameters.get_or(1, Value());
    for (const Value& item : iterate(input))
      out.push_back(path(item, attribute, parameters.given(1) ? &fallback : nullptr));
    return Value::generator(std::move(out));
  }
  const std::string name = to_text(arguments.positional[0]);
  for (const Value& item : iterate(input)) {
    Arguments rest = rest_of(arguments, 1);
    out.push_back(interpreter.apply_filter(name, item, rest));
  }
  return Value::generator(std::move(out));
}

template <bool kAttribute, bool kWanted>
Value select(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  constexpr std::size_t kTestAt = kAttribute ? 1 : 0;
  if (!truthy(input)) return Value::generator({});
  if (arguments.positional.size() < kTestAt) throw TemplateError("selectattr needs an attribute");
  std::vector<Value> out;
  for (const Value& item : iterate(input)) {
    interpreter.meter().charge_step();
    const Value subject = kAttribute ? path(item, arguments.positional[0]) : item;
    Arguments rest = rest_of(arguments, kTestAt + 1);
    const bool holds = arguments.positional.size() > kTestAt
                           ? interpreter.apply_test(to_text(arguments.positional[kTestAt]), subject, rest)
                           : truthy(subject);
    if (holds == kWanted) out.push_back(item);
  }
  return Value::generator(std::move(out));
}

Value batch(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "batch", {"linecount", "fill_with"});
  const std::int64_t size = parameters.integer(0);
  if (size < 1 || size > 100000) parameters.fail("needs a size between 1 and 100000");
  std::vector<Value> out, line;
  for (const Value& item : iterate(input)) {
    line.push_back(item);
    if (static_cast<std::int64_t>(line.size()) == size) out.push_back(Value::list(std::exchange(line, {})));
  }
  if (!line.empty()) {
    if (parameters.given(1)) line.resize(static_cast<std::size_t>(size), parameters.get(1));
    out.push_back(Value::list(std::move(line)));
  }
  return Value::generator(std::move(out));
}

Value slice_filter(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "slice", {"slices", "fill_with"});
  const std::int64_t slices = parameters.integer(0);
  if (slices < 1 || slices > 100000) parameters.fail("needs between 1 and 100000 slices");
  const std::vector<Value> items = iterate(input);
  const auto count = static_cast<std::int64_t>(items.size()), each = count / slices, longer = count % slices;
  std::vector<Value> out;
  auto at = items.begin();
  for (std::int64_t i = 0; i < slices; ++i) {
    std::vector<Value> part(at, at + each + (i < longer));
    at += each + (i < longer);
    if (parameters.given(1) && i >= longer) part.push_back(parameters.get(1));
    out.push_back(Value::list(std::move(part)));
  }
  return Value::generator(std::move(out));
}

Value group_by(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "groupby", {"attribute", "default", "case_sensitive"});
  const Value attribute = parameters.get(0), fallback = parameters.get_or(1, Value());
  const std::vector<Value> items = iterate(input);
  std::vector<Value> keys;
  for (const Value& item : items)
    keys.push_back(
        fold_case(path(item, attribute, parameters.given(1) ? &fallback : nullptr), parameters.flag(2)));
  const std::vector<Value> ordered = sorted(items, keys, false), ordered_keys = sorted(keys, keys, false);
  std::vector<Value> groups;
  for (std::size_t i = 0; i < ordered.size();) {
    const Value grouper = path(ordered[i], attribute, parameters.given(1) ? &fallback : nullptr);
    std::vector<Value> members;
    const std::size_t begin = i;
    for (; i < ordered.size() && equal(ordered_keys[i], ordered_keys[begin]); ++i)
      members.push_back(ordered[i]);
    groups.push_back(Value::list({grouper, Value::list(std::move(members))}, List::Flavor::kTuple, "group"));
  }
  return Value::list(std::move(groups));
}

struct Entry {
  std::string_view name;
  Filter filter;
};

constexpr Entry kFilters[] = {
    {"first", first},
    {"last", last},
    {"join", join},
    {"list", list},
    {"reverse", reverse},
    {"map", map},
    {"select", select<false, true>},
    {"reject", select<false, false>},
    {"selectattr", select<true, true>},
    {"rejectattr", select<true, false>},
    {"sort", sort_filter},
    {"dictsort", dict_sort},
    {"unique", unique},
    {"min", extreme<false>},
    {"max", extreme<true>},
    {"sum", sum},
    {"batch", batch},
    {"slice", slice_filter},
    {"groupby", group_by},
};

}  // namespace

Filter find_sequence_filter(std::string_view name) {
  for (const Entry& entry : kFilters)
    if (entry.name == name) return entry.filter;
  return nullptr;
}

}  // namespace ark::text::jinja
