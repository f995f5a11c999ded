#include "server/text/jinja/interpreter.h"

#include <algorithm>
#include <utility>

#include "server/text/jinja/builtins.h"

namespace ark::text::jinja {
namespace {

constexpr int kMaxRunDepth = 1000;  // of statements, expressions and macro calls inside each other

}  // namespace

// The `loop` of a for statement.
struct Interpreter::Loop : Namespace {
  std::vector<Value> items;
  std::size_t index = 0;

  void set(const std::string&, Value) override { throw TemplateError("loop cannot be assigned to"); }
  Value find(const std::string& name) override;
};

Value Interpreter::Loop::find(const std::string& name) {
  const auto number = [](std::size_t value) { return Value(static_cast<std::int64_t>(value)); };
  if (name == "index") return number(index + 1);
  if (name == "index0") return number(index);
  if (name == "revindex") return number(items.size() - index);
  if (name == "revindex0") return number(items.size() - index - 1);
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == items.size();
  if (name == "length") return number(items.size());
  if (name == "previtem") return index > 0 ? items[index - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem")
    return index + 1 < items.size() ? items[index + 1] : Value::undefined("there is no next item");
  if (name == "cycle") {
    return Value::function("cycle", [at = index](Interpreter&, const Arguments& arguments) {
      if (arguments.positional.empty()) throw TemplateError("no items for cycling given");
      return arguments.positional[at % arguments.positional.size()];
    });
  }
  return Value::undefined("loop has no attribute '" + name + "'");
}

Interpreter::Depth::Depth(Interpreter& interpreter) : interpreter_(interpreter) {
  interpreter_.budget_.charge();
  if (++interpreter_.depth_ > kMaxRunDepth) {
    --interpreter_.depth_;
    throw TemplateError("recursion deeper than " + std::to_string(kMaxRunDepth));
  }
}

const Value* Interpreter::Scope::find(const std::string& name, Budget& budget) const {
  for (const Scope* scope = this; scope; scope = scope->parent.get()) {
    budget.charge(scope->variables.size() / kNamesPerUnit);
    if (const Value* value = scope->variables.find(name)) return value;
  }
  return nullptr;
}

Interpreter::Interpreter(const Dict& variables, std::time_t now, Budget& budget)
    : variables_(variables), now_(now), budget_(budget) {}

std::string Interpreter::run(const Block& block) {
  TextBuilder out(budget_);
  out_ = &out;
  const Enter enter(*this, std::make_shared<Scope>(nullptr));
  run_block(block);
  return out.take();
}

Interpreter::Flow Interpreter::run_block(const Block& block) {
  const Depth depth(*this);
  for (const StatementPtr& statement : block)
    if (const Flow flow = run_statement(*statement); flow != Flow::kNormal) return flow;
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_statement(const Statement& statement) {
  budget_.charge();
  line_ = statement.line;
  switch (statement.kind) {
    case StatementKind::kText:
      write(std::string_view(statement.name));
      break;
    case StatementKind::kOutput:
      write(evaluate(*statement.expression));
      break;
    case StatementKind::kFor:
      return run_for(statement);
    case StatementKind::kIf:
      return run_if(statement);
    case StatementKind::kSet:
      assign(*statement.target, evaluate(*statement.expression));
      break;
    case StatementKind::kSetBlock: {
      Value text = capture(statement.body);
      if (statement.expression) text = evaluate_filter(*statement.expression, &text);
      assign(*statement.target, text);
      break;
    }
    case StatementKind::kMacro:
      scope_->set(statement.name, make_macro(statement, statement.name));
      break;
    case StatementKind::kCall:
      run_call(statement);
      break;
    case StatementKind::kFilter: {
      const Value text = capture(statement.body);
      write(evaluate_filter(*statement.expression, &text));
      break;
    }
    case StatementKind::kWith:
      run_with(statement);
      break;
    case StatementKind::kScope:
      write(std::string_view(capture(statement.body)));
      break;
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_if(const Statement& statement) {
  for (std::size_t i = 0; i < statement.values.size(); ++i)
    if (truthy(evaluate(*statement.values[i]))) return run_block(statement.branches[i]);
  return run_block(statement.orelse);
}

// The items of a for statement that pass its test.
std::shared_ptr<Interpreter::Loop> Interpreter::loop_over(const Statement& statement) {
  const auto loop = std::make_shared<Loop>();
  loop->items = iterate(evaluate(*statement.expression), budget_);
  budget_.charge(loop->items.size());
  if (!statement.test) return loop;
  std::erase_if(loop->items, [&](const Value& item) {
    const Enter enter(*this, std::make_shared<Scope>(scope_));
    assign(*statement.target, item);
    return !truthy(evaluate(*statement.test));
  });
  return loop;
}

Interpreter::Flow Interpreter::run_for(const Statement& statement) {
  const Depth depth(*this);
  const ScopePtr outer = scope_;
  const auto loop = loop_over(statement);
  bool completed = false;  // some iteration went through to its end: then there is no else
  for (; loop->index < loop->items.size(); ++loop->index) {
    const Enter enter(*this, std::make_shared<Scope>(outer));
    scope_->set("loop", std::static_pointer_cast<Namespace>(loop));
    assign(*statement.target, loop->items[loop->index]);
    const Flow flow = run_block(statement.body);
    completed |= flow == Flow::kNormal;
    if (flow == Flow::kBreak) break;
  }
  if (completed) return Flow::kNormal;
  const Enter enter(*this, std::make_shared<Scope>(outer));
  run_block(statement.orelse);
  return Flow::kNormal;
}

void Interpreter::run_with(const Statement& statement) {
  std::vector<Value> values;
  for (const ExpressionPtr& value : statement.values) values.push_back(evaluate(*value));
  const Enter enter(*this, std::make_shared<Scope>(scope_));
  for (std::size_t i = 0; i < values.size(); ++i) assign(*statement.targets[i], values[i]);
  run_block(statement.body);
}

void Interpreter::run_call(const Statement& statement) {
  const Value function = evaluate(*statement.expression->items[0]);
  Arguments arguments = evaluate_arguments(*statement.expression);
  arguments.keywords.emplace_back("caller", make_macro(statement, "caller"));
  write(call(function, arguments));
}

std::string Interpreter::capture(const ScopePtr& outer, const std::function<void()>& run) {
  TextBuilder text(budget_);
  TextBuilder* saved = std::exchange(out_, &text);
  {
    const Enter enter(*this, std::make_shared<Scope>(outer));
    run();
  }
  out_ = saved;
  return text.take();
}

std::string Interpreter::capture(const Block& block) {
  return capture(scope_, [&] { run_block(block); });
}

void Interpreter::assign(const Expression& target, const Value& value) {
  if (target.kind == ExpressionKind::kName) return scope_->set(target.name, value);
  if (target.kind == ExpressionKind::kAttribute) {
    const Value object = evaluate(*target.items[0]);
    if (!object.is_namespace()) throw TemplateError("cannot assign attribute on non-namespace object");
    return object.as_namespace().set(target.name, value);
  }
  const std::vector<Value> values = iterate(value, budget_);
  if (values.size() != target.items.size())
    throw TemplateError("cannot unpack " + std::to_string(values.size()) + " values into " +
                        std::to_string(target.items.size()));
  for (std::size_t i = 0; i < values.size(); ++i) assign(*target.items[i], values[i]);
}

void Interpreter::write(const Value& value) {
  if (value.is_string()) return write(std::string_view(value.as_string()));
  write(std::string_view(to_text(value, budget_)));
}

void Interpreter::write(std::string_view text) {
  budget_.charge_reading(text.size());
  if (out_->size() + text.size() > kMaxOutput)
    throw TemplateError("the output exceeds " + std::to_string(kMaxOutput >> 20) + " MiB");
  *out_ += text;
}

Value Interpreter::make_macro(const Statement& statement, const std::string& name) {
  return Value::function("<Macro '" + name + "'>",
                         [&statement, scope = scope_](Interpreter& self, const Arguments& arguments) {
                           return Value(self.run_macro(statement, scope, arguments));
                         });
}

std::string Interpreter::run_macro(const Statement& statement, const ScopePtr& scope,
                                   const Arguments& arguments) {
  const Depth depth(*this);
  return capture(scope, [&] {
    bind_parameters(statement, arguments);
    run_block(statement.body);
  });
}

void Interpreter::bind_parameters(const Statement& statement, const Arguments& arguments) {
  budget_.charge(arguments.keywords.size() * statement.parameters.size() / kNamesPerUnit);
  const std::size_t count = statement.parameters.size(), required = count - statement.defaults.size();
  std::vector<Value> rest = room_for(arguments.positional.size(), budget_);
  auto kwargs = std::make_shared<Dict>();
  std::vector<bool> bound(count);
  const auto bind = [&](std::size_t i, const Value& value) {
    if (bound[i])
      throw TemplateError("macro got multiple values for argument '" + statement.parameters[i] + "'");
    bound[i] = true;
    scope_->set(statement.parameters[i], value);
  };
  for (std::size_t i = 0; i < arguments.positional.size(); ++i)
    if (i < count)
      bind(i, arguments.positional[i]);
    else
      rest.push_back(arguments.positional[i]);
  for (const auto& [name, value] : arguments.keywords) {
    const auto found = std::ranges::find(statement.parameters, name);
    if (found != statement.parameters.end())
      bind(static_cast<std::size_t>(found - statement.parameters.begin()), value);
    else if (name == "caller")
      scope_->set("caller", value);
    else
      kwargs->set(Value(name), value, budget_);
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (bound[i]) continue;
    scope_->set(statement.parameters[i],
                i < required
                    ? Value::undefined("parameter '" + statement.parameters[i] + "' was not provided")
                    : evaluate(*statement.defaults[i - required]));
  }
  scope_->set("varargs", Value::tuple(std::move(rest)));
  scope_->set("kwargs", std::shared_ptr<const Dict>(std::move(kwargs)));
}

Value Interpreter::call(const Value& function, const Arguments& arguments) {
  if (function.is_undefined()) use_of_undefined(function);
  if (!function.is_callable())
    throw TemplateError(std::string("'") + function.type_name() + "' object is not callable");
  return function.as_callable().call(*this, arguments);
}

}  // namespace ark::text::jinja
