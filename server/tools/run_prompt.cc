#include "server/tools/run_prompt.h"

#include <chrono>
#include <cstdio>

#include "base/error.h"
#include "server/json.h"
#include "server/load/load.h"
#include "server/session/batch.h"
#include "server/text/chat_input.h"
#include "server/text/model_text.h"
#include "server/tools/main_guard.h"

namespace ark::tools {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string chat_text(const text::ModelText& text, const std::string& message) {
  if (!text.chat_template)
    throw Error(Code::kUnsupported,
                "--chat: " + (text.chat_template_error.empty() ? "no chat template lies beside the model"
                                                               : text.chat_template_error));
  text::ChatInput input;
  input.messages = {{{"role", "user"}, {"content", message}}};
  input.add_generation_prompt = true;
  input.tokens = text.tokens;
  text::Rendering within;
  return text.chat_template->render(input, within);
}

std::vector<int32_t> prompt_of(const PromptOptions& options, const text::ModelText& text) {
  if (!options.prompt_ids.empty()) return numbers_of(options.prompt_ids, 0, "token id of --prompt-ids");
  if (!text.tokenizer)
    throw Error(Code::kUnsupported,
                "no tokenizer.json lies beside the model; give token ids by --prompt-ids");
  // A template writes the special tokens itself.
  return options.chat ? text.tokenizer->encode(chat_text(text, options.prompt), false)
                      : text.encode_prompt(options.prompt);
}

void say_now(const std::string& text) {
  print(text);
  std::fflush(stdout);
}

}  // namespace

int run_prompt(const PromptOptions& options) {
  const Clock::time_point start = Clock::now();
  StageLog quiet([](const std::string&) {});
  session::Model model(load_model(options.load, quiet), {});
  const double load_seconds = seconds_since(start);
  schedule::GenerateRequest request;
  request.prompt = prompt_of(options, *model.served.text);
  request.max_tokens = options.max_tokens;
  request.sampling = options.sampling;
  if (!options.ignore_eos) request.end_ids = model.served.end_ids;
  const std::vector<int32_t> prompt = request.prompt;
  const Clock::time_point submitted = Clock::now();
  std::vector<int32_t> ids;
  std::string text;
  double first_token = 0;
  session::Batch batch(model);
  batch.submit(std::move(request), {.goes_on = !options.chat});
  batch.run([] { return false; },
            [&](std::size_t, const session::Piece& piece) {
              if (ids.empty()) first_token = seconds_since(submitted);
              ids.insert(ids.end(), piece.ids.begin(), piece.ids.end());
              text += piece.text;
              if (!options.json) say_now(piece.text);
            });
  if (options.json) {
    const std::size_t generated = ids.size();
    const Json answer = {
        {"model", model.name()},
        {"prompt_token_ids", prompt},
        {"token_ids", ids},
        {"text", text},
        {"finish_reason", batch.at(0).finish_reason()},
        {"usage",
         {{"prompt_tokens", prompt.size()},
          {"completion_tokens", generated},
          {"total_tokens", prompt.size() + generated}}},
        {"seconds",
         {{"load", load_seconds}, {"first_token", first_token}, {"total", seconds_since(submitted)}}}};
    print(to_text(answer) + "\n");
  } else if (model.tokenizer()) {
    print("\n");
  } else {
    std::string list;
    for (const int32_t id : ids) list += (list.empty() ? "" : ",") + std::to_string(id);
    print(list + "\n");
  }
  return 0;
}

}  // namespace ark::tools
