// GET /health, /v2/health/live, /v2/health/ready, /version.
#pragma once

#include "server/api/service.h"
#include "server/http/router.h"

namespace ark::api {

void add_health(http::Router& router, Service& service);

}  // namespace ark::api
