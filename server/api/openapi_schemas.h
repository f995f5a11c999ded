// The schemas of requests and answers in /openapi.json.
#pragma once

#include "server/api/fields.h"

namespace ark::api {

// What the served models take at most.
struct SchemaLimits {
  int64_t length = 0, vocabulary = 0;  // tokens
};

Json openapi_schemas(const SchemaLimits& limits);  // "components.schemas"

}  // namespace ark::api
