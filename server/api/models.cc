#include "server/api/models.h"

namespace ark::api {
namespace {

Json describe_model(const Model& model) {
  return {{"id", model.served.name},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "ark"},
          {"root", model.served.name},
          {"parent", nullptr},
          {"max_model_len", model.max_length()}};
}

http::Response list_models(Service& service) {
  Json data = Json::array();
  for (const auto& model : service.models()) data.push_back(describe_model(*model));
  http::Response response;
  response.body = to_text({{"object", "list"}, {"data", std::move(data)}});
  return response;
}

http::Response one_model(Service& service, const http::Request& request) {
  http::Response response;
  response.body = to_text(describe_model(service.model(request.captures.at(0))));
  return response;
}

}  // namespace

void add_models(http::Router& router, Service& service) {
  router.add({"GET", "/v1/models", [&service](http::Request&) { return list_models(service); }});
  router.add({"GET", "/v1/models/{model}",
              [&service](http::Request& request) { return one_model(service, request); }});
}

}  // namespace ark::api
