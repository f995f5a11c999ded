// A chat request's messages -> the prompt that the model's template makes of them.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "server/api/endpoint.h"

namespace ark::api {

// What a prompt is rendered from.
const std::vector<Field>& template_fields();
Json chat_message_schema(const Limits&);
inline constexpr Schema kChatMessage{"ChatMessage", chat_message_schema};

// A member of that name: a string, or parts that are text, of one of these types, or a refusal. Throws HttpError 400.
Json content_schema(std::initializer_list<const char*> types = {"text"});
std::string read_content(const Fields& fields, const Json& content);

// Reads these fields. Throws HttpError 400.
std::string chat_prompt(const Fields& fields, const Model& model);
// Whether the answer goes on with the last message, once they are read.
bool is_continued(const Fields& fields);
// Its tokens; templates write the special tokens themselves.
std::vector<int32_t> chat_tokens(const Fields& fields, const Model& model);

}  // namespace ark::api
