// A chat request's messages -> the prompt that the model's template makes of them.
#pragma once

#include <string>
#include <vector>

#include "server/api/service.h"

namespace ark::api {

// Reads messages, tools, chat_template_kwargs and add_generation_prompt. Throws HttpError 400.
std::string chat_prompt(const Fields& fields, const Model& model);
// Its tokens; templates write the special tokens themselves.
std::vector<int32_t> chat_tokens(const Fields& fields, const Model& model);

}  // namespace ark::api
