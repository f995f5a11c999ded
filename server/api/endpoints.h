// All endpoints of the server. A family of them is one file, x.cc, and its two mentions here.
#pragma once

#include <vector>

#include "server/api/endpoint.h"

namespace ark::api {

using Family = std::vector<Endpoint>();
Family completions, chat, responses, apply_template, models, tokenize, health, metrics, debug, openapi;
inline constexpr Family* kFamilies[] = {completions, chat,   responses, apply_template, models,
                                        tokenize,    health, metrics,   debug,          openapi};

std::vector<Endpoint> endpoints();
// `service` outlives the router.
http::Router make_router(Service& service);

}  // namespace ark::api
