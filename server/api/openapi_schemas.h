// The schemas of requests and answers in /openapi.json.
#pragma once

#include "server/api/fields.h"

namespace ark::api {

Json openapi_schemas();  // "components.schemas"

}  // namespace ark::api
