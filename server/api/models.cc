// GET /v1/models, /v1/models/{model}.
#include "server/api/endpoints.h"
#include "server/api/schema.h"

namespace ark::api {
namespace {

// `id`: the model's name or an alias, which has the name for its root.
Json describe(const Model& model, const std::string& id) {
  return {{"id", id},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "ark"},
          {"root", model.name()},
          {"parent", nullptr},
          {"max_model_len", model.max_length()}};
}

http::Response list_models(Service& service, http::Request&) {
  Json data = Json::array();
  for (const auto& model : service.models()) {
    data.push_back(describe(*model, model->name()));
    for (const std::string& alias : model->served.aliases) data.push_back(describe(*model, alias));
  }
  return json_response({{"object", "list"}, {"data", std::move(data)}});
}

http::Response one_model(Service& service, http::Request& request) {
  const std::string& id = request.captures.at(0);
  return json_response(describe(service.model(id), id));
}

Json model_schema(const Limits&) {
  return object({{"id", type("string")},
                 {"object", type("string")},
                 {"created", type("integer")},
                 {"owned_by", type("string")},
                 {"root", type("string")},
                 {"parent", maybe(type("string"))},
                 {"max_model_len", type("integer")}},
                {"id", "object", "created", "owned_by"});
}

Json list_schema(const Limits&) {
  return object({{"object", type("string")}, {"data", list(reference("Model"))}}, {"object", "data"});
}

constexpr Schema kModelSchema{"Model", model_schema};

}  // namespace

std::vector<Endpoint> models() {
  return {{"GET",
           "/v1/models",
           "listModels",
           "The served models.",
           list_models,
           {{"ModelList", list_schema}, kModelSchema}},
          {"GET", "/v1/models/{model}", "getModel", "One served model.", one_model, {kModelSchema}}};
}

}  // namespace ark::api
