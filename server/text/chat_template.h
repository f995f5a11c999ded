// Hugging Face chat templates: messages -> prompt.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/json_fwd.h"
#include "server/text/budget.h"

namespace ark::text {

struct ChatInput;

// What rendering a prompt may cost: some 2 s.
inline constexpr Budget kRenderBudget{20'000'000, std::size_t{256} << 20};
// In all threads. Together they hold no more than so many budgets' bytes; more would not be done sooner.
inline constexpr int kRendersAtOnce = 4;

// A parsed template; const and safe to share between threads.
class ChatTemplate {
 public:
  // kBadModel with the line if the source is not a template.
  static ChatTemplate parse(std::string_view source);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // kInvalidArgument with the line if the template refuses the input (raise_exception), uses what is not
  // there, or exceeds its budget or the limits on depth and size; kUnavailable after 30 s without a turn, or where
  // nobody waits for it any more. `now`: for strftime_now.
  std::string render(const ChatInput& input, std::optional<std::time_t> now = std::nullopt,
                     Budget budget = kRenderBudget) const;
  // With exactly these variables.
  std::string render_variables(const Json& variables, std::optional<std::time_t> now = std::nullopt,
                               Budget budget = kRenderBudget) const;

 private:
  struct Tree;
  explicit ChatTemplate(std::unique_ptr<const Tree> tree);
  std::unique_ptr<const Tree> tree_;
};

}  // namespace ark::text
