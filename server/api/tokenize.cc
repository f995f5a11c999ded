#include "server/api/tokenize.h"

#include "base/error.h"
#include "server/api/chat_messages.h"

namespace ark::api {
namespace {

http::Response tokenize(Service& service, http::Request& request) {
  const Json body = parse_body(request.body);
  const Fields fields(body);
  const Model& model = service.model_of(fields);
  const bool special = fields.boolean("add_special_tokens").value_or(true);
  std::vector<int32_t> tokens;
  if (fields.find("messages")) {
    tokens = chat_tokens(fields, model);
  } else {
    const auto prompt = fields.string("prompt");
    if (!prompt) fields.wrong_type("prompt", "a string (or send messages)");
    tokens = model.encode("prompt", *prompt, special);
  }
  Json spelled;
  if (fields.boolean("return_token_strs").value_or(false)) {
    spelled = Json::array();
    for (const int32_t id : tokens)
      spelled.push_back(std::string(model.tokenizer("prompt").token(id).value_or("")));
  }
  http::Response response;
  response.body = to_text({{"count", tokens.size()},
                           {"max_model_len", model.max_length()},
                           {"tokens", std::move(tokens)},
                           {"token_strs", std::move(spelled)}});
  return response;
}

http::Response detokenize(Service& service, http::Request& request) {
  const Json body = parse_body(request.body);
  const Fields fields(body);
  const Model& model = service.model_of(fields);
  const auto tokens = fields.ids("tokens", 1 << 20);
  if (!tokens) fields.wrong_type("tokens", "an array of token ids");
  const text::Tokenizer& tokenizer = model.tokenizer("tokens");
  for (const int32_t id : *tokens)
    if (id >= tokenizer.vocab_size() && id >= model.vocabulary())
      fields.fail("tokens", "holds the token id " + std::to_string(id) + ", beyond the vocabulary of " +
                                std::to_string(model.vocabulary()));
  http::Response response;
  response.body = to_text({{"prompt", tokenizer.decode(*tokens, false)}});
  return response;
}

}  // namespace

void add_tokenize(http::Router& router, Service& service) {
  router.add(
      {"POST", "/tokenize", [&service](http::Request& request) { return tokenize(service, request); }});
  router.add(
      {"POST", "/detokenize", [&service](http::Request& request) { return detokenize(service, request); }});
}

}  // namespace ark::api
