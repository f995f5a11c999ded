// GET /openapi.json: every route and field, for people and for tools that make requests out of it.
#pragma once

#include "server/api/service.h"
#include "server/http/router.h"

namespace ark::api {

Json openapi_document(const Service& service);
void add_openapi(http::Router& router, Service& service);

}  // namespace ark::api
