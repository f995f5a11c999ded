// A request to /v1/responses as the chat request that asks for the same.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "server/api/field.h"
#include "server/api/fields.h"
#include "server/http/message.h"
#include "server/json.h"

namespace ark::api {

const std::vector<Field>& responses_fields();
Json response_item_schema(const Limits&);

class ResponsesInput {
 public:
  // Throws HttpError 400.
  explicit ResponsesInput(const Fields& fields);

  Json chat;   // of /v1/chat/completions
  Json shown;  // what answers repeat of the request

  // A refusal of the chat request, with the names that this one has.
  http::HttpError in_own_words(http::HttpError error) const;

 private:
  void read_items(const Fields& fields);
  void read_item(const Json& given, const std::string& place);
  void read_message(const Fields& item);
  void read_call(const Fields& item);
  void read_call_output(const Fields& item);
  void read_tools(const Fields& fields);
  void read_form(const Fields& fields);
  void read_rest(const Fields& fields);
  void add(Json message, const std::string& place);
  std::string own_words(const std::string& text) const;

  std::vector<std::string> places_;  // in the request, of each message
};

}  // namespace ark::api
