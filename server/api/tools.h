// The functions that a chat offers to its model, and which of them an answer may or must call.
#pragma once

#include <vector>

#include "server/api/field.h"
#include "server/api/fields.h"
#include "server/json.h"

namespace ark::api {

const std::vector<Field>& tool_fields();

struct Tools {
  Json shown;                             // by the chat template; null: none
  Json may_call = Json::array();          // of these
  bool must_call = false, names = false;  // one of them at least; exactly that one
  bool only = false;                      // calls of others are none
};

// Throws HttpError 400.
Tools read_tools(const Fields& fields);

}  // namespace ark::api
