// POST /tokenize, /detokenize; GET /tokenizer_info, by which clients (lm-eval) do without the tokenizer's files.
#include "server/api/chat_messages.h"
#include "server/api/endpoints.h"
#include "server/api/schema.h"
#include "server/text/model_text.h"

namespace ark::api {
namespace {

constexpr FlagField kAddSpecial{"add_special_tokens", true, "As the model expects a text to begin."};
constexpr FlagField kReturnStrings{"return_token_strs", false,
                                   "Add the tokens as the vocabulary spells them."};
constexpr TextField kText{"prompt", "This or messages."};

const OtherField kTokens{"tokens", [](const Limits& limits) { return list(token_id(limits.vocabulary)); },
                         true};

http::Response to_tokens(Service& service, http::Request& request) {
  const Json body = parse_body(request.body);
  const Fields fields(body);
  const Model& model = service.model_of(fields);
  const bool special = fields.get(kAddSpecial);
  std::vector<int32_t> tokens;
  if (fields.find("messages")) {
    tokens = chat_tokens(fields, model);
  } else {
    const auto prompt = fields.get(kText);
    if (!prompt) fields.wrong_type("prompt", "a string (or send messages)");
    tokens = encode(model, "prompt", *prompt, special);
  }
  Json spelled;
  if (fields.get(kReturnStrings)) {
    spelled = Json::array();
    for (const int32_t id : tokens)
      spelled.push_back(std::string(tokenizer_for(model, "prompt").token(id).value_or("")));
  }
  return json_response({{"count", tokens.size()},
                        {"max_model_len", model.max_length()},
                        {"tokens", std::move(tokens)},
                        {"token_strs", std::move(spelled)}});
}

http::Response to_prompt(Service& service, http::Request& request) {
  const Json body = parse_body(request.body);
  const Fields fields(body);
  const Model& model = service.model_of(fields);
  const auto tokens = fields.ids(kTokens.name, 1 << 20);
  if (!tokens) fields.wrong_type("tokens", "an array of token ids");
  const text::Tokenizer& tokenizer = tokenizer_for(model, "tokens");
  for (const int32_t id : *tokens)
    if (id >= tokenizer.vocab_size() && id >= model.vocabulary())
      fields.fail("tokens", "holds the token id " + std::to_string(id) + ", beyond the vocabulary of " +
                                std::to_string(model.vocabulary()));
  return json_response({{"prompt", tokenizer.decode(*tokens, false)}});
}

const std::vector<Field>& info_query() {
  static const std::vector<Field> all = {kModelName};
  return all;
}

http::Response info(Service& service, http::Request& request) {
  const Json query = parse_query(request.query, info_query());
  const Model& model = service.model_of(Fields(query));
  tokenizer_for(model, "tokenizer_info");
  const text::ModelText& text = *model.served.text;
  Json all = {{"bos_token", nullptr}, {"eos_token", nullptr}, {"pad_token", nullptr}};
  for (const auto& [name, token] : text.tokens) all[name] = token;
  all["add_bos_token"] = text.add_bos;
  all["model_max_length"] = model.max_length();
  all["chat_template"] = text.chat_template ? Json(text.chat_template->source()) : Json();
  return json_response(all);
}

Json info_answer(const Limits&) {
  const Json token = maybe(type("string"));
  return object({{"bos_token", token},
                 {"eos_token", token},
                 {"pad_token", token},
                 {"add_bos_token", type("boolean")},
                 {"model_max_length", type("integer")},
                 {"chat_template", token}},
                {"bos_token", "eos_token", "chat_template"});
}

Json tokenize_request(const Limits& limits) {
  std::vector<Field> fields = {kModelName, kText, kAddSpecial, kReturnStrings};
  fields.insert(fields.end(), template_fields().begin(), template_fields().end());
  Json all = object_of(fields, limits);
  all.erase("required");  // messages: one of the two is needed
  all["anyOf"] = Json::array({object({{"prompt", type("string")}}, {"prompt"}),
                              object({{"messages", all["properties"]["messages"]}}, {"messages"})});
  all["properties"]["messages"]["nullable"] = true;
  return all;
}

Json tokenize_answer(const Limits&) {
  return object({{"count", type("integer")},
                 {"max_model_len", type("integer")},
                 {"tokens", list(token_id())},
                 {"token_strs", maybe(list(type("string")))}},
                {"count", "max_model_len", "tokens"});
}

Json detokenize_request(const Limits& limits) { return object_of({kModelName, kTokens}, limits); }
Json detokenize_answer(const Limits&) { return object({{"prompt", type("string")}}, {"prompt"}); }

}  // namespace

std::vector<Endpoint> tokenize() {
  return {{"POST",
           "/tokenize",
           "tokenize",
           "Text or messages to token ids.",
           to_tokens,
           {{"TokenizeAnswer", tokenize_answer}},
           {{"TokenizeRequest", tokenize_request}, kChatMessage}},
          {"POST",
           "/detokenize",
           "detokenize",
           "Token ids to text.",
           to_prompt,
           {{"DetokenizeAnswer", detokenize_answer}},
           {{"DetokenizeRequest", detokenize_request}}},
          {.method = "GET",
           .path = "/tokenizer_info",
           .id = "tokenizerInfo",
           .summary = "What text is told by beside its tokens: special ones, the chat template.",
           .handle = info,
           .answer = {{"TokenizerInfo", info_answer}},
           .query = info_query()}};
}

}  // namespace ark::api
