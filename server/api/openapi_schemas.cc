#include "server/api/openapi_schemas.h"

#include "engine/run/step.h"
#include "server/api/parameters.h"

namespace ark::api {
namespace {

Json type(const char* name) { return {{"type", name}}; }
Json text(const char* description) { return {{"type", "string"}, {"description", description}}; }
Json maybe(Json schema) {
  schema["nullable"] = true;
  return schema;
}
Json flag(bool standard, const char* description) {
  return maybe({{"type", "boolean"}, {"default", standard}, {"description", description}});
}
Json integer(int64_t low, int64_t high, const char* description) {
  return maybe({{"type", "integer"}, {"minimum", low}, {"maximum", high}, {"description", description}});
}
Json number(double low, double high, double standard, const char* description) {
  return maybe({{"type", "number"},
                {"minimum", low},
                {"maximum", high},
                {"default", standard},
                {"description", description}});
}
Json list(Json items, const char* description = "") {
  Json schema = {{"type", "array"}, {"items", std::move(items)}};
  if (*description) schema["description"] = description;
  return schema;
}
Json reference(const char* name) { return {{"$ref", std::string("#/components/schemas/") + name}}; }
Json object(Json properties, Json required = Json::array()) {
  Json schema = {{"type", "object"}, {"properties", std::move(properties)}};
  if (!required.empty()) schema["required"] = std::move(required);
  return schema;
}
Json token_id(int64_t vocabulary = int64_t{INT32_MAX} + 1) {
  return {{"type", "integer"}, {"minimum", 0}, {"maximum", vocabulary - 1}};
}
Json at_least_one(Json list) {
  list["minItems"] = 1;
  return list;
}

// What completions and chat share.
Json generation_fields(const SchemaLimits& limits) {
  const Json one_stop = {{"type", "string"},
                         {"maxLength", kMostStopBytes / 4}};  // characters of 4 bytes at most
  Json stops = list(one_stop);
  stops["maxItems"] = kMostStops;
  Json stop = maybe({{"oneOf", Json::array({one_stop, std::move(stops)})},
                     {"description", "Strings that end the text; they are left out of it."}});
  Json bias = maybe({{"type", "object"},
                     {"maxProperties", kMaxBias},
                     {"additionalProperties", {{"type", "number"}, {"minimum", -100}, {"maximum", 100}}},
                     {"description", "Token id -> added to its logit."}});
  return {
      {"model", maybe(text("Name of a served model; the only one if left out."))},
      {"max_tokens", integer(0, limits.length, "Tokens to generate at most.")},
      {"min_tokens", integer(0, INT32_MAX, "Tokens before which nothing ends the text.")},
      {"temperature", number(0, 2, 1, "0 takes the most probable token.")},
      {"top_p",
       number(0, 1, 1, "Sampled from the most probable tokens that together have this probability.")},
      {"top_k", integer(-1, INT32_MAX, "Sampled from this many of the most probable tokens; 0 or -1: all.")},
      {"min_p", number(0, 1, 0, "Sampled from tokens at least this probable relative to the best.")},
      {"seed", integer(INT64_MIN, INT64_MAX, "Equal seeds give equal tokens.")},
      {"presence_penalty", number(-2, 2, 0, "Taken off the logits of tokens generated before.")},
      {"frequency_penalty", number(-2, 2, 0, "Taken off once per earlier occurrence.")},
      {"repetition_penalty", number(kSmallestPenalty, 100, 1, "Divides the logits of tokens seen before.")},
      {"logit_bias", std::move(bias)},
      {"n", integer(1, kMostSequences, "Choices per prompt.")},
      {"stop", std::move(stop)},
      {"stop_token_ids", maybe(list(token_id(), "Tokens that end the text (extension)."))},
      {"ignore_eos", flag(false, "Go on after the end-of-text token (extension).")},
      {"include_stop_str_in_output", flag(false, "Leave stop strings in the text (extension).")},
      {"skip_special_tokens", flag(true, "Leave special tokens out of the text (extension).")},
      {"return_token_ids", flag(false, "Add token_ids and prompt_token_ids (extension).")},
      {"stream", flag(false, "Answer with server-sent events.")},
      {"stream_options", maybe(object({{"include_usage", flag(false, "A last chunk with the usage.")}}))},
      {"user", maybe(text("Not used."))}};
}

Json completion_request(const SchemaLimits& limits) {
  Json fields = generation_fields(limits);
  const Json text = {{"type", "string"}, {"minLength", 1}};
  const Json ids = at_least_one(list(token_id(limits.vocabulary)));
  fields["prompt"] = {{"oneOf", Json::array({text, at_least_one(list(text)), ids, at_least_one(list(ids))})},
                      {"description", "Text, several texts, token ids, or several lists of token ids."}};
  fields["best_of"] = integer(1, kMostSequences, "Sequences of which the n most probable are returned.");
  fields["echo"] = flag(false, "The text begins with the prompt.");
  fields["logprobs"] = integer(0, kMaxTop, "Log-probabilities of the tokens and of this many alternatives.");
  fields["suffix"] = maybe({{"type", "string"}, {"maxLength", 0}, {"description", "Not supported."}});
  fields["add_special_tokens"] = flag(true, "Tokenize as the model expects a text to begin (extension).");
  return object(std::move(fields), {"prompt"});
}

Json chat_request(const SchemaLimits& limits) {
  Json fields = generation_fields(limits);
  fields["messages"] = at_least_one(list(reference("ChatMessage")));
  fields["max_completion_tokens"] =
      integer(0, limits.length, "Tokens to generate at most; wins over max_tokens.");
  fields["logprobs"] = flag(false, "Log-probabilities of the tokens.");
  fields["top_logprobs"] = integer(0, kMaxTop, "Alternatives per token; needs logprobs.");
  fields["tools"] = maybe(list(type("object"), "Given to the model's chat template."));
  fields["tool_choice"] = maybe({{"type", "string"}, {"enum", {"auto", "none"}}});
  fields["response_format"] = maybe(object({{"type", {{"type", "string"}, {"enum", {"text"}}}}}, {"type"}));
  fields["modalities"] = maybe(list({{"type", "string"}, {"enum", {"text"}}}));
  fields["add_generation_prompt"] = flag(true, "End the prompt where the assistant begins (extension).");
  fields["continue_final_message"] =
      flag(false, "Go on with the last message instead of answering it (extension).");
  fields["chat_template_kwargs"] =
      maybe({{"type", "object"}, {"description", "Further variables for the template (extension)."}});
  return object(std::move(fields), {"messages"});
}

Json message() {
  Json part = object({{"type", {{"type", "string"}, {"enum", {"text"}}}}, {"text", type("string")}},
                     {"type", "text"});
  Json call = object({{"function", object({{"name", type("string")}}, {"name"})}}, {"function"});
  const Json content = {{"oneOf", Json::array({type("string"), list(std::move(part))})}};
  const Json calls = list(std::move(call));
  Json all =
      object({{"role", text("system, user, assistant, tool, developer: what the model's template knows")},
              {"content", maybe(content)},
              {"name", maybe(type("string"))},
              {"tool_calls", maybe(calls)},
              {"tool_call_id", maybe(type("string"))}},
             {"role"});
  // Only assistants may say nothing.
  all["anyOf"] = Json::array({object({{"content", content}}, {"content"}),
                              object({{"tool_calls", calls}}, {"tool_calls"}),
                              object({{"role", {{"type", "string"}, {"enum", {"assistant"}}}}}, {"role"})});
  return all;
}

Json usage_schema() {
  return object({{"prompt_tokens", type("integer")},
                 {"completion_tokens", type("integer")},
                 {"total_tokens", type("integer")}});
}

Json finish_reason() { return maybe({{"type", "string"}, {"enum", {"stop", "length"}}}); }
Json stop_reason() {
  return maybe({{"oneOf", Json::array({type("string"), token_id()})},
                {"description", "The stop string or the stop token that ended it (extension)."}});
}

Json answer(const char* object_name, Json choice) {
  return object({{"id", type("string")},
                 {"object", {{"type", "string"}, {"enum", {object_name}}}},
                 {"created", type("integer")},
                 {"model", type("string")},
                 {"choices", list(std::move(choice))},
                 {"usage", reference("Usage")}},
                {"id", "object", "created", "model", "choices", "usage"});
}

Json completion_answer() {
  return answer("text_completion", object({{"index", type("integer")},
                                           {"text", type("string")},
                                           {"logprobs", maybe(type("object"))},
                                           {"finish_reason", finish_reason()},
                                           {"stop_reason", stop_reason()},
                                           {"token_ids", list(token_id())},
                                           {"prompt_token_ids", list(token_id())}}));
}

Json chat_answer() {
  Json message =
      object({{"role", type("string")}, {"content", type("string")}, {"refusal", maybe(type("string"))}});
  Json whole = answer("chat.completion", object({{"index", type("integer")},
                                                 {"message", std::move(message)},
                                                 {"logprobs", maybe(type("object"))},
                                                 {"finish_reason", finish_reason()},
                                                 {"stop_reason", stop_reason()},
                                                 {"token_ids", list(token_id())}}));
  whole["properties"]["prompt_token_ids"] = list(token_id());
  return whole;
}

Json error_schema() {
  Json inner = object({{"message", type("string")},
                       {"type", type("string")},
                       {"param", maybe(type("string"))},
                       {"code", maybe(type("string"))}},
                      {"message", "type", "param", "code"});
  return object({{"error", std::move(inner)}}, {"error"});
}

Json model_schema() {
  return object({{"id", type("string")},
                 {"object", type("string")},
                 {"created", type("integer")},
                 {"owned_by", type("string")},
                 {"root", type("string")},
                 {"parent", maybe(type("string"))},
                 {"max_model_len", type("integer")}},
                {"id", "object", "created", "owned_by"});
}

Json tokenize_request() {
  const Json messages = at_least_one(list(reference("ChatMessage")));
  Json all = object({{"model", maybe(type("string"))},
                     {"prompt", maybe(text("This or messages."))},
                     {"messages", maybe(messages)},
                     {"add_special_tokens", flag(true, "As the model expects a text to begin.")},
                     {"add_generation_prompt", flag(true, "Of messages.")},
                     {"continue_final_message", flag(false, "Of messages.")},
                     {"return_token_strs", flag(false, "Add the tokens as the vocabulary spells them.")}});
  all["anyOf"] = Json::array(
      {object({{"prompt", type("string")}}, {"prompt"}), object({{"messages", messages}}, {"messages"})});
  return all;
}

Json tokenize_answer() {
  return object({{"count", type("integer")},
                 {"max_model_len", type("integer")},
                 {"tokens", list(token_id())},
                 {"token_strs", maybe(list(type("string")))}},
                {"count", "max_model_len", "tokens"});
}

}  // namespace

Json openapi_schemas(const SchemaLimits& limits) {
  return {
      {"CompletionRequest", completion_request(limits)},
      {"CompletionAnswer", completion_answer()},
      {"ChatRequest", chat_request(limits)},
      {"ChatMessage", message()},
      {"ChatAnswer", chat_answer()},
      {"Usage", usage_schema()},
      {"Model", model_schema()},
      {"ModelList",
       object({{"object", type("string")}, {"data", list(reference("Model"))}}, {"object", "data"})},
      {"TokenizeRequest", tokenize_request()},
      {"TokenizeAnswer", tokenize_answer()},
      {"DetokenizeRequest",
       object({{"model", maybe(type("string"))}, {"tokens", list(token_id(limits.vocabulary))}}, {"tokens"})},
      {"DetokenizeAnswer", object({{"prompt", type("string")}}, {"prompt"})},
      {"Health", object({{"status", type("string")}}, {"status"})},
      {"Version", object({{"version", type("string")}}, {"version"})},
      {"Error", error_schema()}};
}

}  // namespace ark::api
