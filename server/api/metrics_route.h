// GET /metrics.
#pragma once

#include <functional>

#include "server/api/service.h"
#include "server/http/router.h"

namespace ark::api {

// `open_connections` is asked at each scrape.
void add_metrics(http::Router& router, Service& service, std::function<std::size_t()> open_connections);

}  // namespace ark::api
