#include "server/api/endpoints.h"

#include "base/error.h"
#include "server/http/envelope.h"
#include "server/json.h"
#include "server/text/budget.h"

namespace ark::api {

http::Response json_response(const Json& json) {
  http::Response response;
  response.body = to_text(json);
  return response;
}

std::vector<Endpoint> endpoints() {
  std::vector<Endpoint> all;
  for (Family* family : kFamilies)
    for (Endpoint& endpoint : family()) all.push_back(std::move(endpoint));
  return all;
}

http::Router make_router(Service& service) {
  http::Router router;
  for (const Endpoint& endpoint : endpoints())
    router.add({endpoint.method, endpoint.path,
                [&service, endpoint](http::Request& request) {
                  if (service.is_loading() && !endpoint.is_public)
                    throw http::as_http_error(Error(Code::kUnavailable, service.not_ready()));
                  const text::StopScope stop(request.client_gone);
                  return endpoint.handle(service, request);
                },
                endpoint.is_public, endpoint.is_probe});
  return router;
}

}  // namespace ark::api
