// POST /v1/chat/completions.
#pragma once

#include "server/api/service.h"
#include "server/http/router.h"

namespace ark::api {

void add_chat(http::Router& router, Service& service);

}  // namespace ark::api
