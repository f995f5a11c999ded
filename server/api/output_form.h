// The form that a request asks its text to have: response_format and the names that other servers have for it.
#pragma once

#include <string>
#include <vector>

#include "server/api/field.h"
#include "server/api/fields.h"
#include "server/schedule/constraint.h"
#include "server/session/model.h"

namespace ark::api {

const std::vector<Field>& output_form_fields();

// Nothing where the text may be any. Throws HttpError 400, also for two forms in one request.
schedule::StartConstraint read_output_form(const Fields& fields, const session::Model& model);

// Calls of these functions, between these marks: one, or `many`. `tools` as in requests, read and checked.
schedule::StartConstraint form_of_calls(const Json& tools, std::string_view begin, std::string_view end,
                                        bool many, const session::Model& model);

}  // namespace ark::api
