// What a chat template is rendered with.
#pragma once

#include <map>
#include <string>

#include "server/json.h"

namespace ark::text {

// What a template sees besides its own variables.
struct ChatInput {
  Json messages;
  Json tools;  // null if there are none
  Json documents;
  bool add_generation_prompt = false;
  std::map<std::string, std::string> tokens;  // "bos_token": "<s>" ...
  Json extra;  // further variables ("enable_thinking" ...); null or an object; they win over the others
};

}  // namespace ark::text
