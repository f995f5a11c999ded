// POST /tokenize and /detokenize, in vLLM's shapes.
#pragma once

#include "server/api/service.h"
#include "server/http/router.h"

namespace ark::api {

void add_tokenize(http::Router& router, Service& service);

}  // namespace ark::api
