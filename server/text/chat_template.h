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

// What a request renders, however often: it waits for one turn, and all within it share one budget.
class Rendering {
 public:
  // Throws Error(kUnavailable) after 30 s without a turn, or where nobody waits for it any more.
  explicit Rendering(Budget budget = kRenderBudget);
  ~Rendering();
  Rendering(const Rendering&) = delete;
  Rendering& operator=(const Rendering&) = delete;

  Budget& budget() { return budget_; }

 private:
  Budget budget_;
};

// A parsed template; const and safe to share between threads.
class ChatTemplate {
 public:
  // kBadModel with the line if the source is not a template.
  static ChatTemplate parse(std::string_view source);
  const std::string& source() const;
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // kInvalidArgument with the line if the template refuses the input (raise_exception), uses what is not
  // there, or exceeds the budget or the limits on depth and size. `now`: for strftime_now.
  std::string render(const ChatInput& input, Rendering& within,
                     std::optional<std::time_t> now = std::nullopt) const;
  // With exactly these variables, alone.
  std::string render_variables(const Json& variables, std::optional<std::time_t> now = std::nullopt,
                               Budget budget = kRenderBudget) const;

 private:
  struct Tree;
  explicit ChatTemplate(std::unique_ptr<const Tree> tree);
  std::string render_within(const Json& variables, std::optional<std::time_t> now, Budget& budget) const;
  std::unique_ptr<const Tree> tree_;
};

}  // namespace ark::text
