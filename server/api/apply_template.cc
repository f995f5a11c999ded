// POST /apply-template: the prompt that the model's chat template makes of messages, as llama.cpp's server has it.
#include "server/api/chat_messages.h"
#include "server/api/endpoints.h"
#include "server/api/schema.h"

namespace ark::api {
namespace {

http::Response render(Service& service, http::Request& request) {
  const Json body = parse_body(request.body);
  const Fields fields(body);
  return json_response({{"prompt", chat_prompt(fields, service.model_of(fields))}});
}

Json render_request(const Limits& limits) {
  std::vector<Field> fields = template_fields();
  fields.push_back(kModelName);
  return object_of(fields, limits);
}

Json render_answer(const Limits&) { return object({{"prompt", type("string")}}, {"prompt"}); }

}  // namespace

std::vector<Endpoint> apply_template() {
  return {{"POST",
           "/apply-template",
           "applyTemplate",
           "Messages to the prompt that the model's template makes of them.",
           render,
           {{"RenderAnswer", render_answer}},
           {{"RenderRequest", render_request}, kChatMessage}}};
}

}  // namespace ark::api
