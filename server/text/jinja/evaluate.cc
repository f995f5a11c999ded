// Expressions.
#include "server/text/jinja/builtins.h"

namespace ark::text::jinja {
namespace {

std::string object_name(const Value& object) { return std::string("'") + object.type_name() + " object'"; }

bool compare_by(const std::string& name, const Value& left, const Value& right, Budget& budget) {
  if (name == "==") return equal(left, right, budget);
  if (name == "!=") return !equal(left, right, budget);
  if (name == "in") return contains(right, left, budget);
  if (name == "not in") return !contains(right, left, budget);
  const auto is_nan = [](const Value& value) {
    return value.is_float() && value.as_number() != value.as_number();
  };
  const int order = compare(left, right, budget);
  if (is_nan(left) || is_nan(right)) return false;
  return name == "<" ? order < 0 : name == "<=" ? order <= 0 : name == ">" ? order > 0 : order >= 0;
}

}  // namespace

// Functions and undefined values are made where they are asked for.
Value Interpreter::made(Value value) {
  budget_.charge_bytes(kFunctionBytes + (value.is_undefined() ? value.undefined_what().size() : 0));
  return value;
}

Value Interpreter::attribute(const Value& object, const std::string& name) {
  if (object.is_undefined()) use_of_undefined(object);
  budget_.charge_bytes(name.size());  // messages repeat it
  if (object.is_namespace()) {
    budget_.charge(object.as_namespace().attributes.size() / kNamesPerUnit);
    return object.as_namespace().find(name);
  }
  if (auto method = find_method(object, name)) return made(*method);
  if (object.is_dict())
    if (const Value* found = object.as_dict().find(std::string_view(name))) return *found;
  return made(Value::undefined(object_name(object) + " has no attribute '" + name + "'"));
}

Value Interpreter::item(const Value& object, const Value& key) {
  if (const auto found = subscript(object, key, budget_)) return *found;
  if (!key.is_string())
    return made(Value::undefined(object_name(object) + " has no element " + repr(key, budget_)));
  return attribute(object, key.as_string());
}

Value Interpreter::evaluate(const Expression& expression) {
  const Depth depth(*this);
  line_ = expression.line;
  const auto operand = [&](std::size_t i) { return evaluate(*expression.items[i]); };
  switch (expression.kind) {
    case ExpressionKind::kConstant:
      return expression.constant;
    case ExpressionKind::kName:
      return evaluate_name(expression.name);
    case ExpressionKind::kList:
      return Value::list(evaluate_items(expression));
    case ExpressionKind::kTuple:
      return Value::tuple(evaluate_items(expression));
    case ExpressionKind::kDict:
      return evaluate_dict(expression);
    case ExpressionKind::kAttribute:
      return attribute(operand(0), expression.name);
    case ExpressionKind::kSubscript: {
      const Value object = operand(0);
      return item(object, operand(1));
    }
    case ExpressionKind::kSlice: {
      const std::vector<Value> values = evaluate_items(expression);
      return slice(values[0], values[1], values[2], values[3], budget_);
    }
    case ExpressionKind::kCall:
      return evaluate_call(expression);
    case ExpressionKind::kFilter:
      return evaluate_filter(expression, nullptr);
    case ExpressionKind::kTest: {
      const Value input = operand(0);
      return apply(find_test(expression.name), "test", expression.name, input,
                   evaluate_arguments(expression));
    }
    case ExpressionKind::kNegate:
      return negate(operand(0));
    case ExpressionKind::kNot:
      return !truthy(operand(0));
    case ExpressionKind::kAnd: {
      Value left = operand(0);
      return truthy(left) ? operand(1) : left;
    }
    case ExpressionKind::kOr: {
      Value left = operand(0);
      return truthy(left) ? left : operand(1);
    }
    case ExpressionKind::kArithmetic: {
      const Value left = operand(0);
      return calculate(expression.arithmetic, left, operand(1), budget_);
    }
    case ExpressionKind::kConcatenate:
      return concatenate(expression);
    case ExpressionKind::kCompare:
      return evaluate_comparison(expression);
    case ExpressionKind::kCondition:
      return evaluate_condition(expression);
  }
  return {};
}

Value Interpreter::evaluate_name(const std::string& name) {
  if (const Value* value = scope_->find(name, budget_)) return *value;
  if (const Value* value = variables_.find(std::string_view(name))) return *value;
  if (auto function = find_function(name)) return made(*function);
  return made(Value::undefined("'" + name + "' is undefined"));
}

std::vector<Value> Interpreter::evaluate_items(const Expression& expression, std::size_t first) {
  budget_.charge_bytes(kListBytes);
  std::vector<Value> values = room_for(expression.items.size(), budget_);
  for (std::size_t i = first; i < expression.items.size(); ++i)
    values.push_back(evaluate(*expression.items[i]));
  return values;
}

Value Interpreter::evaluate_dict(const Expression& expression) {
  const std::vector<Value> values = evaluate_items(expression);
  auto dict = std::make_shared<Dict>();
  for (std::size_t i = 0; i + 1 < values.size(); i += 2) dict->set(values[i], values[i + 1], budget_);
  return std::shared_ptr<const Dict>(std::move(dict));
}

Arguments Interpreter::evaluate_arguments(const Expression& expression) {
  Arguments arguments{evaluate_items(expression, 1), {}};
  for (const auto& [name, value] : expression.keywords)
    arguments.keywords.emplace_back(name, evaluate(*value));
  if (expression.star) {
    const std::vector<Value> more = iterate(evaluate(*expression.star), budget_);
    budget_.charge_bytes((arguments.positional.size() + more.size()) * sizeof(Value));
    arguments.positional.insert(arguments.positional.end(), more.begin(), more.end());
  }
  if (expression.double_star) {
    const Value more = evaluate(*expression.double_star);
    if (!more.is_dict())
      throw TemplateError(std::string("argument after ** must be a mapping, not ") + more.type_name());
    for (const auto& [name, value] : more.as_dict().items) {
      if (!name.is_string()) throw TemplateError("keywords must be strings");
      budget_.charge_bytes(kFunctionBytes + name.as_string().size());
      arguments.keywords.emplace_back(name.as_string(), value);
    }
  }
  return arguments;
}

Value Interpreter::evaluate_call(const Expression& expression) {
  const Value function = evaluate(*expression.items[0]);
  Arguments arguments = evaluate_arguments(expression);
  line_ = expression.line;
  return call(function, arguments);
}

Value Interpreter::evaluate_filter(const Expression& expression, const Value* input) {
  // In a filter block the innermost filter has no operand: it takes the block's text.
  const Expression* operand = expression.items[0].get();
  Value value;
  if (!operand)
    value = *input;
  else if (input)
    value = evaluate_filter(*operand, input);
  else
    value = evaluate(*operand);
  const Arguments arguments = evaluate_arguments(expression);
  line_ = expression.line;
  return apply(find_filter(expression.name), "filter", expression.name, value, arguments);
}

Value Interpreter::evaluate_comparison(const Expression& expression) {
  Value left = evaluate(*expression.items[0]);
  for (std::size_t i = 0; i < expression.names.size(); ++i) {
    Value right = evaluate(*expression.items[i + 1]);
    if (!compare_by(expression.names[i], left, right, budget_)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::evaluate_condition(const Expression& expression) {
  if (truthy(evaluate(*expression.items[1]))) return evaluate(*expression.items[0]);
  if (expression.items.size() > 2) return evaluate(*expression.items[2]);
  return Value::undefined("the inline if-expression evaluated to false and no else section was defined");
}

Value Interpreter::concatenate(const Expression& expression) {
  TextBuilder text(budget_);
  for (const Value& value : evaluate_items(expression)) text += to_text(value, budget_);
  return text.take();
}

Value Interpreter::apply(const Builtin* builtin, const char* kind, const std::string& name,
                         const Value& input, const Arguments& arguments) {
  if (!builtin) throw TemplateError(std::string("no ") + kind + " named '" + name + "'");
  budget_.charge_bytes(kTextBytes);  // of a small result
  budget_.charge(1 + arguments.positional.size() + arguments.keywords.size());
  if (input.is_string()) budget_.charge_reading(input.as_string().size());
  Call call(*builtin, *this, input, arguments);
  return builtin->run(call);
}

}  // namespace ark::text::jinja
