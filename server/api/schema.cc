#include "server/api/schema.h"

#include <algorithm>

namespace ark::api {
namespace {

Json described(Json schema, const char* about) {
  schema["description"] = about;
  return schema;
}

Json schema_of(const IntegerField& f, const Limits& limits) {
  const int64_t high = f.within_context ? std::min(f.high, limits.length) : f.high;
  return maybe(described({{"type", "integer"}, {"minimum", f.low}, {"maximum", high}}, f.about));
}
Json schema_of(const NumberField& f, const Limits&) {
  return maybe(described(
      {{"type", "number"}, {"minimum", f.low}, {"maximum", f.high}, {"default", f.standard}}, f.about));
}
Json schema_of(const FlagField& f, const Limits&) {
  return maybe(described({{"type", "boolean"}, {"default", f.standard}}, f.about));
}
Json schema_of(const TextField& f, const Limits&) {
  return f.may_be_null ? maybe(text(f.about)) : text(f.about);
}
Json schema_of(const TextsField& f, const Limits&) {
  const Json one = {{"type", "string"}, {"maxLength", f.most_bytes / 4}};  // characters of 4 bytes at most
  Json several = list(one);
  several["maxItems"] = f.most;
  return maybe(described({{"oneOf", Json::array({one, std::move(several)})}}, f.about));
}
Json schema_of(const IdsField& f, const Limits&) {
  Json ids = list(token_id(), f.about);
  ids["maxItems"] = f.most;
  return maybe(std::move(ids));
}
Json schema_of(const OtherField& f, const Limits& limits) { return f.schema(limits); }

}  // namespace

Json type(const char* name) { return {{"type", name}}; }
Json text(const char* description) { return described(type("string"), description); }
Json one_of(std::initializer_list<const char*> of) { return {{"type", "string"}, {"enum", Json(of)}}; }
Json maybe(Json schema) {
  schema["nullable"] = true;
  return schema;
}
Json list(Json items, const char* description) {
  Json schema = {{"type", "array"}, {"items", std::move(items)}};
  return *description ? described(std::move(schema), description) : schema;
}
Json at_least_one(Json list) {
  list["minItems"] = 1;
  return list;
}
Json reference(const char* component) { return {{"$ref", std::string("#/components/schemas/") + component}}; }
Json object(Json properties, Json required) {
  Json schema = {{"type", "object"}, {"properties", std::move(properties)}};
  if (!required.empty()) schema["required"] = std::move(required);
  return schema;
}
Json token_id(int64_t vocabulary) {
  return {{"type", "integer"}, {"minimum", 0}, {"maximum", vocabulary - 1}};
}

Json object_of(const std::vector<Field>& fields, const Limits& limits) {
  Json properties = Json::object(), required = Json::array();
  for (const Field& field : fields)
    std::visit([&](const auto& f) { properties[f.name] = schema_of(f, limits); }, field);
  for (const Field& field : fields)
    if (const auto* other = std::get_if<OtherField>(&field); other && other->required)
      required.push_back(other->name);
  return object(std::move(properties), std::move(required));
}

}  // namespace ark::api
