// Text -> token ids.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "server/session/model.h"

namespace ark::session {

// `special`: begun as the model expects a text to begin (bos ...). Throws Error: kUnsupported without a tokenizer,
// kInvalidArgument for what is no text.
std::vector<int32_t> encode(const Model& model, std::string_view text, bool special);

}  // namespace ark::session
