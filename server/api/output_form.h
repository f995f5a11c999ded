// The form that a request asks its text to have: response_format and the names that other servers have for it.
#pragma once

#include <string_view>
#include <vector>

#include "server/api/field.h"
#include "server/api/fields.h"
#include "server/json.h"
#include "server/schedule/constraint.h"
#include "server/session/model.h"

namespace ark::api {

const std::vector<Field>& output_form_fields();

struct OutputForm {
  schedule::StartConstraint start;  // nothing where the text may be any
  Json schema;                      // where it is a value of one; else null
};
// Throws HttpError 400, also for two forms in one request.
OutputForm read_output_form(const Fields& fields, const session::Model& model);

// Calls of functions, between marks.
struct CallGrammar {
  const Json& tools;  // as in requests
  std::string_view begin, end;
  bool many;
  const Json& otherwise;  // a value of this schema may come instead; null: it may not
};
// Throws HttpError 400.
schedule::StartConstraint start_calls(const CallGrammar& form, const session::Model& model);

}  // namespace ark::api
