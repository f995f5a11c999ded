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
  for (const std::string& part : split(to_text(attribute, interpreter.budget()), ".", -1, false)) {
    const bool digits = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    step(digits && part.size() < 10 ? Value(static_cast<std::int64_t>(std::stoll(part))) : Value(part));
  }
  return value;
}

Value fold_case(const Value& value, bool case_sensitive, Budget& budget) {
  if (!value.is_string() || case_sensitive) return value;
  budget.charge_bytes(value.as_string().size());
  return to_lower(value.as_string());
}

// What sort, unique, min and max compare: an attribute or the item, without case unless asked.
Value sort_key(Interpreter& interpreter, const Value& item, const Value& attribute, bool case_sensitive) {
  return fold_case(attribute.is_none() ? item : path(interpreter, item, attribute), case_sensitive,
                   interpreter.budget());
}

// The items in the order of their keys; equal ones keep theirs.
std::vector<Value> sorted(Interpreter& interpreter, const std::vector<Value>& items,
                          const std::vector<Value>& keys, bool reverse) {
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return compare(keys[reverse ? b : a], keys[reverse ? a : b], interpreter.budget()) < 0;
  });
  std::vector<Value> out;
  for (std::size_t i : order) out.push_back(items[i]);
  return out;
}

Value sort_filter(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "sort", {"reverse", "case_sensitive", "attribute"});
  const std::vector<Value> items = iterate(input, interpreter.budget());
  std::vector<Value> keys;
  for (const Value& item : items)  // as lists, which compare equal items first: also undefined ones
    keys.push_back(
        Value::list({sort_key(interpreter, item, parameters.get_or(2, Value()), parameters.flag(1))}));
  return Value::list(sorted(interpreter, items, keys, parameters.flag(0)));
}

Value dictsort_filter(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "dictsort", {"case_sensitive", "by", "reverse"});
  const std::string by = parameters.string_or(1, "key");
  if (by != "key" && by != "value") parameters.fail("sorts by key or value");
  if (!input.is_dict()) parameters.fail("needs a mapping");
  std::vector<Value> items, keys;
  for (const auto& [key, value] : input.as_dict().items) {
    items.push_back(Value::tuple({key, value}));
    keys.push_back(fold_case(by == "key" ? key : value, parameters.flag(0), interpreter.budget()));
  }
  return Value::list(sorted(interpreter, items, keys, parameters.flag(2)));
}

Value unique_filter(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "unique", {"case_sensitive", "attribute"});
  Dict seen;
  std::vector<Value> out;
  for (const Value& item : iterate(input, interpreter.budget())) {
    const Value key = sort_key(interpreter, item, parameters.get_or(1, Value()), parameters.flag(0));
    if (seen.find(key)) continue;
    seen.set(key, true);
    out.push_back(item);
  }
  return Value::generator(std::move(out));
}

template <bool kLargest>
Value extreme_filter(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, kLargest ? "max" : "min", {"case_sensitive", "attribute"});
  const std::vector<Value> items = iterate(input, interpreter.budget());
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  std::vector<Value> keys;
  for (const Value& item : items)
    keys.push_back(sort_key(interpreter, item, parameters.get_or(1, Value()), parameters.flag(0)));
  std::size_t best = 0;
  for (std::size_t i = 1; i < items.size(); ++i) {
    const int order = compare(keys[i], keys[best], interpreter.budget());
    if (kLargest ? order > 0 : order < 0) best = i;
  }
  return items[best];
}

Value sum_filter(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "sum", {"attribute", "start"});
  Value total = parameters.get_or(1, Value(0));
  if (total.is_string()) parameters.fail("cannot sum strings; use join");
  for (const Value& item : iterate(input, interpreter.budget()))
    total = calculate(Arithmetic::kAdd, total,
                      parameters.given(0) ? path(interpreter, item, parameters.get(0)) : item,
                      interpreter.budget());
  return total;
}

// The item at 0 or -1; nothing if there is none.
std::optional<Value> end_item(const Value& input, int index, Budget& budget) {
  if (input.is_string() || input.is_sequence()) return subscript(input, index, budget);
  const std::vector<Value> items = iterate(input, budget);
  if (items.empty()) return std::nullopt;
  return index == 0 ? items.front() : items.back();
}

Value first_filter(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  Parameters(arguments, "first", {});
  return end_item(input, 0, interpreter.budget())
      .value_or(Value::undefined("No first item, sequence was empty."));
}

Value last_filter(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  Parameters(arguments, "last", {});
  if (input.is_flavor(List::Flavor::kGenerator)) throw TemplateError("'generator' object is not reversible");
  return end_item(input, -1, interpreter.budget())
      .value_or(Value::undefined("No last item, sequence was empty."));
}

Value join_filter(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters parameters(arguments, "join", {"d", "attribute"});
  const std::string separator = to_text(parameters.get_or(0, Value("")), interpreter.budget());
  std::string out;
  bool begun = false;
  for (const Value& item : iterate(input, interpreter.budget())) {
    const std::string text = to_text(parameters.given(1) ? path(interpreter, item, parameters.get(1)) : item,
                                     interpreter.budget());
    if (std::exchange(begun, true)) out += separator;
    out += text;
    interpreter.budget().charge_bytes(text.size() + separator.size());
  }
  return out;
}

Value list_filter(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  Parameters(arguments, "list", {});
  return Value::list(iterate(input, interpreter.budget()));
}

Value reverse_filter(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  Parameters(arguments, "reverse", {});
  if (input.is_string()) return slice(input, Value(), Value(), -1, interpreter.budget());
  std::vector<Value> items = iterate(input, interpreter.budget());
  std::reverse(items.begin(), items.end());
  return Value::generator(std::move(items));
}

// The arguments behind the first `count`.
Arguments rest_of(const Arguments& arguments, std::size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(
      rest.positional.begin(),
      rest.positional.begin() + static_cast<std::ptrdiff_t>(std::min(count, rest.positional.size())));
  return rest;
}

Value map_filter(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  if (!truthy(input)) return Value::generator({});  // none and false as well as what is empty
  std::vector<Value> out;
  if (arguments.positional.empty()) {
    const Parameters parameters(arguments, "map", {"attribute", "default"});
    const Value attribute = parameters.get(0), fallback = parameters.get_or(1, Value());
    for (const Value& item : iterate(input, interpreter.budget()))
      out.push_back(path(interpreter, item, attribute, parameters.given(1) ? &fallback : nullptr));
    return Value::generator(std::move(out));
  }
  const std::string name = to_text(arguments.positional[0], interpreter.budget());
  for (const Value& item : iterate(input, interpreter.budget())) {
    Arguments rest = rest_of(arguments, 1);
    out.push_back(interpreter.apply_filter(name, item, rest));
  }
  return Value::generator(std::move(out));
}

template <bool kAttribute, bool kWanted>
Value select_filter(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  constexpr std::size_t kTestAt = kAttribute ? 1 : 0;
  if (!truthy(input)) return Value::generator({});
  if (arguments.positional.size() < kTestAt) throw TemplateError("selectattr needs an attribute");
  std::vector<Value> out;
  for (const Value& item : iterate(input, interpreter.budget())) {
    const Value subject = kAttribute ? path(interpreter, item, arguments.positional[0]) : item;
    Arguments rest = rest_of(arguments, kTestAt + 1);
    const bool holds = arguments.positional.size() > kTestAt
                           ? interpreter.apply_test(
                                 to_text(arguments.positional[kTestAt], interpreter.budget()), subject, rest)
                           : truthy(subject);
    if (holds == kWanted) out.push_back(item);
  }
  return Value::generator(std::move(out));
}

constexpr Named<Filter> kSequenceFilters[] = {
    {"first", first_filter},
    {"last", last_filter},
    {"join", join_filter},
    {"list", list_filter},
    {"reverse", reverse_filter},
    {"map", map_filter},
    {"select", select_filter<false, true>},
    {"reject", select_filter<false, false>},
    {"selectattr", select_filter<true, true>},
    {"rejectattr", select_filter<true, false>},
    {"sort", sort_filter},
    {"dictsort", dictsort_filter},
    {"unique", unique_filter},
    {"min", extreme_filter<false>},
    {"max", extreme_filter<true>},
    {"sum", sum_filter},
};

}  // namespace

Filter find_sequence_filter(std::string_view name) { return find_named(kSequenceFilters, name); }

}  // namespace ark::text::jinja
