// Global functions.
#include <ctime>

#include "server/text/jinja/arguments.h"
#include "server/text/jinja/builtins.h"

namespace ark::text::jinja {
namespace {

constexpr std::int64_t kMaxRange = 100'000;  // as in Jinja's sandbox

Value range(Interpreter& interpreter, Arguments& arguments) {
  const Parameters parameters(arguments, "range", {"start", "stop", "step"});
  const bool one = !parameters.has(1);
  const std::int64_t start = one ? 0 : parameters.integer(0), stop = parameters.integer(one ? 0 : 1);
  const std::int64_t step = parameters.integer_or(2, 1);
  if (step == 0) parameters.fail("arg 3 must not be zero");
  const auto distance = static_cast<long double>(stop) - static_cast<long double>(start);
  if (distance / static_cast<long double>(step) > static_cast<long double>(kMaxRange))
    parameters.fail("is too big; the largest size is " + std::to_string(kMaxRange));
  std::vector<Value> items;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
    items.emplace_back(i);
    if (items.size() >= static_cast<std::size_t>(kMaxRange)) break;
  }
  interpreter.budget().charge_bytes(items.size() * sizeof(Value));
  return Value::list(std::move(items));
}

// What dict() and namespace() take: a mapping or pairs, and keywords.
std::vector<std::pair<Value, Value>> pairs(const Arguments& arguments, Budget& budget) {
  if (arguments.positional.size() > 1) throw TemplateError("dict() takes at most one positional argument");
  std::vector<std::pair<Value, Value>> out;
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.is_dict()) {
      budget.charge_bytes(source.as_dict().items.size() * 2 * sizeof(Value));
      out = source.as_dict().items;
    } else {
      for (const Value& item : iterate(source, budget)) {
        const std::vector<Value> pair = iterate(item, budget);
        if (pair.size() != 2) throw TemplateError("dict() needs pairs");
        out.emplace_back(pair[0], pair[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.keywords) out.emplace_back(Value(name), value);
  return out;
}

Value make_dict(Interpreter& interpreter, Arguments& arguments) {
  auto dict = std::make_shared<Dict>();
  for (auto& [key, value] : pairs(arguments, interpreter.budget())) dict->set(key, std::move(value));
  return std::shared_ptr<const Dict>(std::move(dict));
}

Value make_namespace(Interpreter& interpreter, Arguments& arguments) {
  auto object = std::make_shared<Namespace>();
  for (auto& [key, value] : pairs(arguments, interpreter.budget())) {
    interpreter.budget().charge(object->attributes.size() / kNamesPerUnit);  // set() looks at all of them
    object->set(to_text(key, interpreter.budget()), std::move(value));
  }
  return object;
}

Value raise_exception(Interpreter& interpreter, Arguments& arguments) {
  const Parameters parameters(arguments, "raise_exception", {"message"});
  throw TemplateError(to_text(parameters.get(0), interpreter.budget()));
}

Value strftime_now(Interpreter& interpreter, Arguments& arguments) {
  const Parameters parameters(arguments, "strftime_now", {"format"});
  const std::string format = parameters.string(0) + " ";  // never empty, so that 0 means "too long"
  const std::time_t now = interpreter.now();
  std::tm local{};
  localtime_r(&now, &local);
  char buffer[1024];
  const std::size_t size = std::strftime(buffer, sizeof buffer, format.c_str(), &local);
  if (size == 0) parameters.fail("makes more than 1000 characters");
  return std::string(buffer, size - 1);
}

// One separator between items that may or may not be printed: "" the first time.
Value joiner(Interpreter&, Arguments& arguments) {
  const Parameters parameters(arguments, "joiner", {"sep"});
  return Value::function("joiner", [separator = parameters.string_or(0, ", "),
                                    used = std::make_shared<bool>(false)](Interpreter&, Arguments&) {
    return std::exchange(*used, true) ? Value(separator) : Value("");
  });
}

}  // namespace

std::optional<Value> find_function(std::string_view name) {
  using Function = Value (*)(Interpreter&, Arguments&);
  static constexpr Named<Function> kFunctions[] = {{"range", range},
                                                   {"dict", make_dict},
                                                   {"namespace", make_namespace},
                                                   {"joiner", joiner},
                                                   {"raise_exception", raise_exception},
                                                   {"strftime_now", strftime_now}};
  const Function found = find_named(kFunctions, name);
  return found ? std::optional(Value::function(std::string(name), found)) : std::nullopt;
}

}  // namespace ark::text::jinja
