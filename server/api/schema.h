// JSON schemas of requests and answers, as /openapi.json prints them (OpenAPI 3.0.3).
#pragma once

#include <vector>

#include "server/api/field.h"
#include "server/json.h"

namespace ark::api {

Json type(const char* name);                         // {"type": "integer"}
Json text(const char* description);                  // a string
Json one_of(std::initializer_list<const char*> of);  // a string, one of these
Json maybe(Json schema);                             // it, or null
Json list(Json items, const char* description = "");
Json at_least_one(Json list);
Json reference(const char* component);
Json object(Json properties, Json required = Json::array());
Json token_id(int64_t vocabulary = int64_t{INT32_MAX} + 1);

// An object with these fields.
Json object_of(const std::vector<Field>& fields, const Limits& limits);

}  // namespace ark::api
