// The syntax tree of a template. Depth is limited while it is built, so walking and freeing it cannot exhaust
// the stack.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/text/jinja/operations.h"
#include "server/text/jinja/value.h"

namespace ark::text::jinja {

enum class ExpressionKind {
  kConstant,   // constant
  kName,       // name
  kList,       // items
  kTuple,      // items
  kDict,       // items: key, value, key, value ...
  kAttribute,  // items[0] . name
  kSubscript,  // items[0] [ items[1] ]
  kSlice,      // items[0] [ items[1] : items[2] : items[3] ], absent ones are constants None
  kCall,       // items[0] ( items[1...], keywords )
  kFilter,     // items[0] | name ( items[1...], keywords ); items[0] null: the body of a filter block
  kTest,       // items[0] is name ( items[1...], keywords )
  kNegate,     // - items[0]
  kNot,        // not items[0]
  kAnd,
  kOr,
  kArithmetic,   // items[0] arithmetic items[1]
  kConcatenate,  // items joined by ~
  kCompare,      // items[0] names[0] items[1] names[1] items[2] ...
  kCondition,    // items[0] if items[1] else items[2] (may be null)
};

struct Expression {
  ExpressionKind kind;
  int line;
  int depth = 1;
  std::string name;
  Value constant;
  Arithmetic arithmetic = Arithmetic::kAdd;
  std::vector<std::unique_ptr<Expression>> items;
  std::vector<std::pair<std::string, std::unique_ptr<Expression>>> keywords;
  std::unique_ptr<Expression> star, double_star;  // of calls: *x, **x
  std::vector<std::string> names;                 // of comparisons: "==", "in", "not in" ...
};
using ExpressionPtr = std::unique_ptr<Expression>;

enum class StatementKind {
  kText,      // name
  kOutput,    // expression
  kFor,       // target in expression [if test] body else orelse
  kIf,        // values[i]: branches[i], else orelse
  kSet,       // target = expression
  kSetBlock,  // target = body, through expression (a filter) unless null
  kMacro,     // name(parameters, defaults) body
  kCall,      // call(parameters, defaults) expression: a call; body is what caller() gives
  kFilter,    // body through expression
  kWith,      // targets = values, body
  kScope,     // body by itself (generation blocks)
  kBreak,
  kContinue,
};

struct Statement;
using StatementPtr = std::unique_ptr<Statement>;
using Block = std::vector<StatementPtr>;

struct Statement {
  StatementKind kind;
  int line;
  std::string name;
  ExpressionPtr target, expression, test;
  std::vector<ExpressionPtr> targets, values;  // of with; the tests of if
  std::vector<Block> branches;                 // of if
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  Block body, orelse;
};

inline constexpr int kMaxDepth = 200;

// kBadModel with the line if the source is not a template.
Block parse_template(std::string_view source);

}  // namespace ark::text::jinja
