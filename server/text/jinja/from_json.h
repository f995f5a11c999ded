// JSON -> values of templates.
#pragma once

#include "server/json_fwd.h"
#include "server/text/jinja/value.h"

namespace ark::text::jinja {

// TemplateError if it is nested too deeply or a string is not UTF-8.
Value from_json(const Json& json, Budget& budget, int depth = 0);

}  // namespace ark::text::jinja
