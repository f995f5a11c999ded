// POST /v1/completions.
#pragma once

#include "server/api/service.h"
#include "server/http/router.h"

namespace ark::api {

void add_completions(http::Router& router, Service& service);

}  // namespace ark::api
