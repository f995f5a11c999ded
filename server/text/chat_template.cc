#include "server/text/chat_template.h"

#include <condition_variable>
#include <mutex>

#include "base/error.h"
#include "server/text/chat_input.h"
#include "server/text/jinja/from_json.h"
#include "server/text/jinja/interpreter.h"
#include "server/text/unicode.h"

namespace ark::text {

struct ChatTemplate::Tree {
  jinja::Block block;
  std::string source;
};

namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMaxSource = 1 << 20;  // bytes
constexpr auto kLook = 10ms;                 // between two looks whether anybody still waits
constexpr auto kPatience = 30s;

// Who has a turn.
std::mutex mutex;
std::condition_variable changed;
int taken = 0;

}  // namespace

Rendering::Rendering(Budget budget) : budget_(budget) {
  std::unique_lock lock(mutex);
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!changed.wait_for(lock, kLook, [] { return taken < kRendersAtOnce; }))
    if (StopScope::stopped() || std::chrono::steady_clock::now() > end)
      throw Error(Code::kUnavailable, "too many chat templates are being rendered; try again later");
  ++taken;
}

Rendering::~Rendering() {
  {
    std::lock_guard lock(mutex);
    --taken;
  }
  changed.notify_one();
}

ChatTemplate::ChatTemplate(std::unique_ptr<const Tree> tree) : tree_(std::move(tree)) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

ChatTemplate ChatTemplate::parse(std::string_view source) {
  if (source.size() > kMaxSource)
    throw Error(Code::kBadModel, "chat template, line 1: " + std::to_string(source.size()) +
                                     " bytes, the limit is " + std::to_string(kMaxSource));
  if (!is_valid_utf8(source)) throw Error(Code::kBadModel, "chat template: not valid UTF-8");
  return ChatTemplate(std::make_unique<const Tree>(Tree{jinja::parse_template(source), std::string(source)}));
}

const std::string& ChatTemplate::source() const { return tree_->source; }

std::string ChatTemplate::render(const ChatInput& input, Rendering& within,
                                 std::optional<std::time_t> now) const {
  Json variables = Json::object();
  variables["messages"] = input.messages;
  variables["tools"] = input.tools;
  variables["documents"] = input.documents;
  variables["add_generation_prompt"] = input.add_generation_prompt;
  for (const auto& [name, token] : input.tokens) variables[name] = token;
  if (input.extra.is_object())
    for (const auto& [name, value] : input.extra.items()) variables[name] = value;
  return render_within(variables, now, within.budget());
}

std::string ChatTemplate::render_variables(const Json& variables, std::optional<std::time_t> now,
                                           Budget budget) const {
  Rendering alone(budget);
  return render_within(variables, now, alone.budget());
}

std::string ChatTemplate::render_within(const Json& variables, std::optional<std::time_t> now,
                                        Budget& budget) const {
  jinja::Dict dict;
  try {
    for (const auto& [name, value] : variables.items())
      dict.set(jinja::Value(name), jinja::from_json(value, budget), budget);
  } catch (const std::runtime_error& error) {
    throw Error(Code::kInvalidArgument, std::string("messages: ") + error.what());
  }
  jinja::Interpreter interpreter(dict, now.value_or(std::time(nullptr)), budget);
  try {
    return interpreter.run(tree_->block);
  } catch (const std::runtime_error& error) {  // TemplateError, BudgetExceeded
    throw Error(Code::kInvalidArgument, "chat template, line " + std::to_string(interpreter.line()) + ": " +
                                            escaped(error.what(), 1000));
  }
}

}  // namespace ark::text
