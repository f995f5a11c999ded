// GET /v1/models and /v1/models/{id}.
#pragma once

#include "server/api/service.h"
#include "server/http/router.h"

namespace ark::api {

void add_models(http::Router& router, Service& service);

}  // namespace ark::api
