// The members of JSON objects, in the order in which a schema names them.
#pragma once

#include <string>
#include <vector>

#include "server/text/budget.h"
#include "server/text/grammar/json_text.h"

namespace ark::text::grammar {

struct ObjectForm {
  struct Member {
    std::string name;
    ExpressionPtr value;  // null: it may not be there
    bool is_required;
  };
  std::vector<Member> members;
  ExpressionPtr additional;  // values of other members; null: there are none
  // Of all members; max: kUnbounded where it does not matter. Equal names count twice.
  std::uint32_t min_count = 0, max_count = kUnbounded;
};

ExpressionPtr object_of(const ObjectForm& form, JsonText& json, Rules& rules, Budget& budget);

}  // namespace ark::text::grammar
