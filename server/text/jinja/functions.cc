// Global functions, and how builtins are called.
#include <algorithm>
#include <ctime>

#include "server/text/jinja/builtins.h"

namespace ark::text::jinja {
namespace {

constexpr std::int64_t kMaxRange = 100'000;  // as in Jinja's sandbox

Value range(Call& c) {
  const bool one = !c.has(1);
  const std::int64_t start = one ? 0 : c.integer(0), stop = c.integer(one ? 0 : 1), step = c.integer_or(2, 1);
  if (step == 0) c.fail("arg 3 must not be zero");
  const auto distance = static_cast<long double>(stop) - static_cast<long double>(start);
  if (distance / static_cast<long double>(step) > static_cast<long double>(kMaxRange))
    c.fail("is too big; the largest size is " + std::to_string(kMaxRange));
  std::vector<Value> items;
  c.budget.charge_bytes(kListBytes);
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
    items.emplace_back(i);
    if (items.size() >= static_cast<std::size_t>(kMaxRange)) break;
  }
  c.budget.charge_bytes(items.size() * sizeof(Value));
  return Value::list(std::move(items));
}

// What dict() and namespace() take: a mapping or pairs, and keywords.
std::vector<std::pair<Value, Value>> pairs(Call& c) {
  if (c.arguments.positional.size() > 1) c.fail("takes at most one positional argument");
  std::vector<std::pair<Value, Value>> out;
  for (const Value& source : c.arguments.positional) {
    if (source.is_dict()) {
      c.budget.charge_bytes(source.as_dict().items.size() * 2 * sizeof(Value));
      out = source.as_dict().items;
      continue;
    }
    for (const Value& item : iterate(source, c.budget)) {
      const std::vector<Value> pair = iterate(item, c.budget);
      if (pair.size() != 2) c.fail("needs pairs");
      out.emplace_back(pair[0], pair[1]);
    }
  }
  for (const auto& [name, value] : c.arguments.keywords) out.emplace_back(Value(name), value);
  return out;
}

Value make_dict(Call& c) {
  auto dict = std::make_shared<Dict>();
  for (auto& [key, value] : pairs(c)) dict->set(key, std::move(value), c.budget);
  return std::shared_ptr<const Dict>(std::move(dict));
}

Value make_namespace(Call& c) {
  auto object = std::make_shared<Namespace>();
  for (auto& [key, value] : pairs(c)) {
    c.budget.charge(object->attributes.size() / kNamesPerUnit);  // set() looks at all of them
    object->set(to_text(key, c.budget), std::move(value));
  }
  return object;
}

Value strftime_now(Call& c) {
  const std::string format = c.string(0) + " ";  // never empty, so that 0 means "too long"
  const std::time_t now = c.interpreter.now();
  std::tm local{};
  localtime_r(&now, &local);
  char buffer[1024];
  const std::size_t size = std::strftime(buffer, sizeof buffer, format.c_str(), &local);
  if (size == 0) c.fail("makes more than 1000 characters");
  return std::string(buffer, size - 1);
}

constexpr Builtin kFunctions[] = {
    {"range", "start stop step", range},
    {"dict", "*", make_dict},
    {"namespace", "*", make_namespace},
    {"raise_exception", "message",
     [](Call& c) -> Value { throw TemplateError(to_text(c.get(0), c.budget)); }},
    {"strftime_now", "format", strftime_now},
};

}  // namespace

Call::Call(const Builtin& called, Interpreter& in, const Value& before, const Arguments& given)
    : builtin(called), interpreter(in), budget(in.budget()), input(before), arguments(given) {
  std::string_view rest = builtin.parameters;
  if (rest == "*") return;
  std::vector<std::string_view> names;
  while (!rest.empty()) {
    names.push_back(rest.substr(0, rest.find(' ')));
    rest.remove_prefix(std::min(rest.size(), names.back().size() + 1));
  }
  if (arguments.positional.size() > names.size())
    fail("takes at most " + std::to_string(names.size()) + " arguments");
  values_.assign(arguments.positional.begin(), arguments.positional.end());
  values_.resize(names.size());
  for (const auto& [name, value] : arguments.keywords) {
    const auto index = static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    if (index == names.size()) fail("got an unexpected keyword argument '" + name + "'");
    if (values_[index]) fail("got multiple values for argument '" + name + "'");
    values_[index] = value;
  }
}

const Value& Call::get(std::size_t index) const {
  if (!has(index)) fail("lacks argument " + std::to_string(index + 1));
  return *values_[index];
}

std::int64_t Call::integer(std::size_t index) const {
  if (!get(index).is_integral()) wrong_type("an integer", get(index));
  return get(index).as_int();
}

const std::string& Call::string(std::size_t index) const {
  if (!get(index).is_string()) wrong_type("a string", get(index));
  return get(index).as_string();
}

void Call::fail(const std::string& message) const {
  throw TemplateError(std::string(builtin.name) + "() " + message);
}

void Call::wrong_type(const char* wanted, const Value& value) const {
  fail(std::string("needs ") + wanted + ", not " + value.type_name());
}

Value bound(const Builtin& builtin, const Value& object) {
  return Value::function(std::string(builtin.name),
                         [&builtin, object](Interpreter& interpreter, const Arguments& arguments) {
                           return interpreter.apply(&builtin, "function", "", object, arguments);
                         });
}

std::optional<Value> find_function(std::string_view name) {
  const Builtin* found = find_named(kFunctions, name);
  return found ? std::optional(bound(*found, Value())) : std::nullopt;
}

}  // namespace ark::text::jinja
