// Everything about text that lies beside a model's ONNX file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/text/call_form.h"
#include "server/text/chat_template.h"
#include "server/text/tokenizer.h"

namespace ark::text {

struct ModelText {
  std::optional<Tokenizer> tokenizer;         // without one the server takes and gives token ids
  std::optional<ChatTemplate> chat_template;  // without one there are no chat completions
  std::optional<ChatTemplate> tool_template;  // of chats with tools, where the file lists one for them
  std::string chat_template_error;            // why a template that is there cannot be used
  std::optional<CallForm> call_form;  // of chats with tools; none where the template has none that is read
  std::map<std::string, std::string> tokens;  // "bos_token": "<s>" ..., for ChatInput
  std::optional<std::int32_t> bos_id;
  std::vector<std::int32_t> eos_ids;       // each ends a generation; sorted, may be empty
  bool add_bos = false;                    // tokenizer_config.json: add_bos_token
  std::optional<std::int64_t> max_length;  // positions the model was made for

  // Prompt ids of plain text: with the post-processor's special tokens, and bos in front if add_bos asks for
  // it.
  std::vector<std::int32_t> encode_prompt(std::string_view text) const;
  // The template for this input; there must be a chat template.
  const ChatTemplate& template_for(const ChatInput& input) const;
};

// Reads tokenizer.json, tokenizer_config.json, special_tokens_map.json, chat_template.jinja,
// additional_chat_templates/tool_use.jinja, generation_config.json, config.json and genai_config.json as far as they
// are there. kBadModel or kUnsupported, with the file, if one is broken; a chat template that does not parse only
// disables chat. They must lie in the directory, or where the links of `model`, the ONNX file, lead (base/files.h).
ModelText load_model_text(const std::filesystem::path& directory, const std::filesystem::path& model = {});
// ModelText::max_length alone, for who wants no text.
std::optional<std::int64_t> configured_length(const std::filesystem::path& directory,
                                              const std::filesystem::path& model);

}  // namespace ark::text
