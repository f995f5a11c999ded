// GET /openapi.json: the document that describes all endpoints, made from them.
#include <algorithm>

#include "server/api/endpoints.h"
#include "server/api/schema.h"
#include "server/version.h"

namespace ark::api {
namespace {

Json error_schema(const Limits&) {
  Json inner = object({{"message", type("string")},
                       {"type", type("string")},
                       {"param", maybe(type("string"))},
                       {"code", maybe(type("string"))}},
                      {"message", "type", "param", "code"});
  return object({{"error", std::move(inner)}}, {"error"});
}

constexpr Schema kError{"Error", error_schema};

Json content(const std::vector<Schema>& schemas) {
  if (schemas.empty()) return {{"text/plain", {{"schema", type("string")}}}};
  return {{"application/json", {{"schema", reference(schemas[0].name)}}}};
}

Json operation_of(const Endpoint& endpoint, const Limits& limits) {
  Json good = content(endpoint.answer);
  if (endpoint.streams) good["text/event-stream"] = {{"schema", type("string")}};
  Json operation = {{"operationId", endpoint.id}, {"summary", endpoint.summary}};
  operation["parameters"] = Json::array();
  const Json fields = object_of(endpoint.query, limits);
  for (const auto& [name, schema] : fields.at("properties").items())
    operation["parameters"].push_back(
        {{"name", name}, {"in", "query"}, {"required", false}, {"schema", schema}});
  const std::string_view path = endpoint.path;
  if (const std::size_t hole = path.find('{'); hole != path.npos) {
    const std::string name(path.substr(hole + 1, path.find('}') - hole - 1));
    operation["parameters"].push_back(
        {{"name", name}, {"in", "path"}, {"required", true}, {"schema", type("string")}});
  }
  if (!endpoint.request.empty())
    operation["requestBody"] = {{"required", true}, {"content", content(endpoint.request)}};
  operation["responses"] = {
      {"200", {{"description", "OK"}, {"content", std::move(good)}}},
      {"default", {{"description", "An error, in OpenAI's envelope."}, {"content", content({kError})}}}};
  if (endpoint.is_public) operation["security"] = Json::array();
  return operation;
}

http::Response document(Service& service, http::Request&) {
  Json paths = Json::object(), schemas = Json::object();
  const Limits limits = service.limits();
  const auto add = [&](const std::vector<Schema>& some) {
    for (const Schema& schema : some)
      if (!schemas.contains(schema.name)) schemas[schema.name] = schema.make(limits);
  };
  for (const Endpoint& endpoint : endpoints()) {
    std::string method = endpoint.method;
    std::ranges::transform(method, method.begin(), [](unsigned char c) { return std::tolower(c); });
    paths[endpoint.path][method] = operation_of(endpoint, limits);
    add(endpoint.request);
    add(endpoint.answer);
  }
  add({kError});
  return json_response(
      {{"openapi", "3.0.3"},
       {"info",
        {{"title", "ark"}, {"version", kVersion}, {"description", "ONNX models over OpenAI's HTTP API."}}},
       {"paths", std::move(paths)},
       {"components",
        {{"schemas", std::move(schemas)},
         {"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}}},
       {"security", Json::array({Json{{"key", Json::array()}}, Json::object()})}});
}

Json document_schema(const Limits&) { return type("object"); }

}  // namespace

std::vector<Endpoint> openapi() {
  return {{"GET", "/openapi.json", "openapi", "This document.", document, {{"Document", document_schema}}}};
}

}  // namespace ark::api
