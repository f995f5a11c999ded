// Hugging Face chat templates: messages -> prompt.
#pragma once

#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace ark::text {

// What a template sees besides its own variables.
struct ChatInput {
  using Json = nlohmann::ordered_json;  // keeps the order of tool schemas, which templates print
  Json messages;
  Json tools;  // null if there are none
  Json documents;
  bool add_generation_prompt = false;
  std::optional<std::string> bos_token, eos_token, pad_token, unk_token, cls_token, sep_token, mask_token;
  Json extra;  // further variables by name ("enable_thinking" ...); null or an object; they win over those
               // above
};

// A parsed template; const and safe to share between threads.
class ChatTemplate {
 public:
  // kBadModel with the line if the source is not a template.
  static ChatTemplate parse(std::string_view source);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // kInvalidArgument with the line if the template refuses the input (raise_exception), uses what is not
  // there, or exceeds the limits on steps, depth and size. `now`: for strftime_now.
  std::string render(const ChatInput& input, std::optional<std::time_t> now = std::nullopt) const;
  // With exactly these variables.
  std::string render_variables(const ChatInput::Json& variables,
                               std::optional<std::time_t> now = std::nullopt) const;

 private:
  struct Tree;
  explicit ChatTemplate(std::unique_ptr<const Tree> tree);
  std::unique_ptr<const Tree> tree_;
};

}  // namespace ark::text
