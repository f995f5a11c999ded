#include "server/api/openapi.h"

#include <algorithm>

#include "server/api/openapi_schemas.h"

namespace ark::api {
namespace {

Json content(const char* schema) {
  return {{"application/json", {{"schema", {{"$ref", std::string("#/components/schemas/") + schema}}}}}};
}

Json answers(Json good) {
  Json all = {{"200", std::move(good)}};
  all["default"] = {{"description", "An error, in OpenAI's envelope."}, {"content", content("Error")}};
  return all;
}

Json get(const char* id, const char* summary, const char* schema) {
  return {{"operationId", id},
          {"summary", summary},
          {"responses", answers({{"description", "OK"}, {"content", content(schema)}})}};
}

Json post(const char* id, const char* summary, const char* request, const char* answer, bool streams) {
  Json kinds = content(answer);
  if (streams) kinds["text/event-stream"] = {{"schema", {{"type", "string"}}}};
  return {{"operationId", id},
          {"summary", summary},
          {"requestBody", {{"required", true}, {"content", content(request)}}},
          {"responses", answers({{"description", "OK"}, {"content", std::move(kinds)}})}};
}

Json open(Json operation) {  // needs no key
  operation["security"] = Json::array();
  return operation;
}

Json one_model() {
  Json operation = get("getModel", "One served model.", "Model");
  operation["parameters"] = Json::array(
      {Json{{"name", "model"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}}});
  return operation;
}

Json plain_text(const char* id, const char* summary) {
  return {{"operationId", id},
          {"summary", summary},
          {"responses", answers({{"description", "OK"},
                                 {"content", {{"text/plain", {{"schema", {{"type", "string"}}}}}}}})}};
}

Json document_itself() {
  return {{"operationId", "openapi"},
          {"summary", "This document."},
          {"responses", answers({{"description", "OK"},
                                 {"content", {{"application/json", {{"schema", {{"type", "object"}}}}}}}})}};
}

Json paths() {
  const auto at = [](const char* method, Json operation) { return Json{{method, std::move(operation)}}; };
  return {
      {"/v1/completions",
       at("post", post("complete", "Continue a text.", "CompletionRequest", "CompletionAnswer", true))},
      {"/v1/chat/completions",
       at("post", post("chat", "Answer a conversation.", "ChatRequest", "ChatAnswer", true))},
      {"/v1/models", at("get", get("listModels", "The served models.", "ModelList"))},
      {"/v1/models/{model}", at("get", one_model())},
      {"/tokenize", at("post", post("tokenize", "Text or messages to token ids.", "TokenizeRequest",
                                    "TokenizeAnswer", false))},
      {"/detokenize",
       at("post", post("detokenize", "Token ids to text.", "DetokenizeRequest", "DetokenizeAnswer", false))},
      {"/health", at("get", open(get("health", "Whether requests are taken.", "Health")))},
      {"/v2/health/live", at("get", open(get("live", "Whether the server works.", "Health")))},
      {"/v2/health/ready", at("get", open(get("ready", "Whether requests are taken.", "Health")))},
      {"/version", at("get", get("version", "The server's version.", "Version"))},
      {"/metrics", at("get", plain_text("metrics", "Prometheus metrics."))},
      {"/openapi.json", at("get", document_itself())},
  };
}

}  // namespace

Json openapi_document(const Service& service) {
  SchemaLimits limits;
  for (const auto& model : service.models()) {
    limits.length = std::max<int64_t>(limits.length, model->max_length());
    limits.vocabulary = std::max<int64_t>(limits.vocabulary, model->vocabulary());
  }
  Json document = {
      {"openapi", "3.0.3"},
      {"info",
       {{"title", "ark"}, {"version", kVersion}, {"description", "ONNX models over OpenAI's HTTP API."}}}};
  document["paths"] = paths();
  document["components"] = {{"schemas", openapi_schemas(limits)},
                            {"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}};
  document["security"] = Json::array({Json{{"key", Json::array()}}, Json::object()});
  return document;
}

void add_openapi(http::Router& router, Service& service) {
  router.add({"GET", "/openapi.json", [&service](http::Request&) {
                http::Response response;
                response.body = to_text(openapi_document(service));
                return response;
              }});
}

}  // namespace ark::api
