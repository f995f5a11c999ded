// JSON Schemas -> rules for the values that they accept.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "server/json_fwd.h"
#include "server/text/budget.h"
#include "server/text/grammar/json_text.h"
#include "server/text/grammar/schema_constraints.h"

namespace ark::text::grammar {

// Of one document, which must outlive it. Throws kInvalidArgument: `what` and the keyword's JSON pointer.
class SchemaCompiler {
 public:
  SchemaCompiler(const Json& document, const std::string& what, Rules& rules, JsonText& json, Budget& budget);

  // A value that the document accepts.
  ExpressionPtr value();

 private:
  struct Task {
    RuleId rule;
    AllOf schemas;
  };

  ExpressionPtr rule_for(const AllOf& schemas);
  ExpressionPtr write(const Constraints& constraints, int depth = 0);
  ExpressionPtr write_any_of(const Constraints& constraints, int depth);
  ExpressionPtr write_values(const Constraints& constraints);
  bool fits(const Json& value, const Constraints& constraints) const;
  ExpressionPtr write_type(JsonType type, const Constraints& constraints);
  ExpressionPtr write_number(bool integers_only, const Constraints& constraints);
  ExpressionPtr write_string(const Constraints& constraints);
  ExpressionPtr write_array(const Constraints& constraints);
  ExpressionPtr write_object(const Constraints& constraints);
  ExpressionPtr impossible(const std::string& pointer, const std::string& why);

  const Json& document_;
  SchemaReader reader_;
  Rules& rules_;
  JsonText& json_;
  Budget& budget_;
  std::map<std::vector<const Json*>, RuleId> known_;
  std::vector<Task> todo_;
};

}  // namespace ark::text::grammar
