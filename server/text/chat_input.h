// What a chat template is rendered with.
#pragma once

#include <optional>
#include <string>

#include "server/json.h"

namespace ark::text {

// What a template sees besides its own variables.
struct ChatInput {
  Json messages;
  Json tools;  // null if there are none
  Json documents;
  bool add_generation_prompt = false;
  std::optional<std::string> bos_token, eos_token, pad_token, unk_token, cls_token, sep_token, mask_token;
  Json extra;  // further variables ("enable_thinking" ...); null or an object; they win over the others
};

}  // namespace ark::text
