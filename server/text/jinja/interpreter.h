// Runs a template's tree.
#pragma once

#include <ctime>
#include <functional>
#include <string>

#include "server/text/jinja/ast.h"
#include "server/text/jinja/value.h"

namespace ark::text::jinja {

inline constexpr std::size_t kMaxOutput = std::size_t{16} << 20;  // bytes
inline constexpr std::size_t kNamesPerUnit = 16;  // variables and attributes that a unit of work looks at

struct Builtin;

// One render. Throws TemplateError; line() then says where.
class Interpreter {
 public:
  // `now`: what strftime_now formats (local time). `budget`: what the render may cost.
  Interpreter(const Dict& variables, std::time_t now, Budget& budget);

  std::string run(const Block& block);
  int line() const { return line_; }

  Budget& budget() { return budget_; }
  std::time_t now() const { return now_; }
  Value call(const Value& function, const Arguments& arguments);
  // TemplateError if there is none: "no filter named 'x'".
  Value apply(const Builtin* builtin, const char* kind, const std::string& name, const Value& input,
              const Arguments& arguments);
  // object.name, as templates see it; undefined if there is none.
  Value attribute(const Value& object, const std::string& name);
  // object[key]
  Value item(const Value& object, const Value& key);

 private:
  enum class Flow { kNormal, kBreak, kContinue };

  struct Scope {
    explicit Scope(std::shared_ptr<Scope> outer) : parent(std::move(outer)) {}
    void set(const std::string& name, Value value) { variables.set(name, std::move(value)); }
    const Value* find(const std::string& name, Budget& budget) const;
    std::shared_ptr<Scope> parent;
    Names variables;
  };
  using ScopePtr = std::shared_ptr<Scope>;

  // Makes a scope the current one. At the end its variables go: a macro among them refers to the scope.
  class Enter {
   public:
    Enter(Interpreter& interpreter, ScopePtr scope) : interpreter_(interpreter), saved_(interpreter.scope_) {
      interpreter_.scope_ = std::move(scope);
    }
    ~Enter() {
      interpreter_.scope_->variables.clear();
      interpreter_.scope_ = saved_;
    }

   private:
    Interpreter& interpreter_;
    ScopePtr saved_;
  };

  class Depth {
   public:
    explicit Depth(Interpreter& interpreter);
    ~Depth() { --interpreter_.depth_; }

   private:
    Interpreter& interpreter_;
  };

  struct Loop;

  // interpreter.cc: statements
  Flow run_block(const Block& block);
  Flow run_statement(const Statement& statement);
  Flow run_if(const Statement& statement);
  Flow run_for(const Statement& statement);
  std::shared_ptr<Loop> loop_over(const Statement& statement);
  void run_with(const Statement& statement);
  void run_call(const Statement& statement);
  // What is written meanwhile, in a scope of its own.
  std::string capture(const ScopePtr& outer, const std::function<void()>& run);
  std::string capture(const Block& block);
  void assign(const Expression& target, const Value& value);
  void write(const Value& value);
  void write(std::string_view text);
  Value make_macro(const Statement& statement, const std::string& name);
  std::string run_macro(const Statement& statement, const ScopePtr& scope, const Arguments& arguments);
  void bind_parameters(const Statement& statement, const Arguments& arguments);

  // evaluate.cc: expressions
  Value evaluate(const Expression& expression);
  Value made(Value value);
  Value evaluate_name(const std::string& name);
  Value evaluate_dict(const Expression& expression);
  Value evaluate_call(const Expression& expression);
  Value evaluate_filter(const Expression& expression, const Value* input);
  Value evaluate_comparison(const Expression& expression);
  Value evaluate_condition(const Expression& expression);
  Value concatenate(const Expression& expression);
  std::vector<Value> evaluate_items(const Expression& expression, std::size_t first = 0);
  Arguments evaluate_arguments(const Expression& expression);

  const Dict& variables_;
  std::time_t now_;
  ScopePtr scope_;
  TextBuilder* out_ = nullptr;
  Budget& budget_;
  int depth_ = 0;
  int line_ = 1;
};

}  // namespace ark::text::jinja
