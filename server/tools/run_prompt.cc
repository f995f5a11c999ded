#include "server/tools/run_prompt.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <sstream>

#include "base/error.h"
#include "server/json.h"
#include "server/load/load.h"
#include "server/schedule/scheduler.h"
#include "server/text/chat_input.h"
#include "server/text/detokenizer.h"
#include "server/text/model_text.h"
#include "server/tools/main_guard.h"

namespace ark::tools {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<int32_t> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) {
    const bool digits =
        !word.empty() && word.size() < 10 && word.find_first_not_of("0123456789") == word.npos;
    if (!digits) throw Error(Code::kUsage, "--prompt-ids: '" + escaped(word) + "' is no token id");
    ids.push_back(std::stoi(word));
  }
  return ids;
}

std::string chat_text(const text::ModelText& text, const std::string& message) {
  if (!text.chat_template)
    throw Error(Code::kUnsupported,
                "--chat: " + (text.chat_template_error.empty() ? "no chat template lies beside the model"
                                                               : text.chat_template_error));
  text::ChatInput input;
  input.messages = {{{"role", "user"}, {"content", message}}};
  input.add_generation_prompt = true;
  text.fill(input);
  return text.chat_template->render(input);
}

std::vector<int32_t> prompt_of(const PromptOptions& options, const text::ModelText& text) {
  if (!options.prompt_ids.empty()) return parse_ids(options.prompt_ids);
  if (!text.tokenizer)
    throw Error(Code::kUnsupported,
                "no tokenizer.json lies beside the model; give token ids by --prompt-ids");
  // A template writes the special tokens itself.
  return options.chat ? text.tokenizer->encode(chat_text(text, options.prompt), false)
                      : text.encode_prompt(options.prompt);
}

// What one generation has given so far.
struct Answer {
  std::vector<int32_t> ids;
  std::string text;
  double first_token = 0;  // seconds
  schedule::Finish finish = schedule::Finish::kRunning;
};

// Tokens until the end; `say` gets every piece of text that is certain.
Answer collect(schedule::Ticket& ticket, const ServedModel& model, const std::vector<int32_t>& end_ids,
               const std::function<void(const std::string&)>& say) {
  Answer answer;
  const Clock::time_point start = Clock::now();
  std::optional<text::Detokenizer> detokenizer;
  if (model.text->tokenizer) detokenizer.emplace(*model.text->tokenizer, true);
  const auto add = [&](const std::string& piece) {
    answer.text += piece;
    say(piece);
  };
  while (answer.finish == schedule::Finish::kRunning) {
    std::vector<schedule::TokenEvent> events;
    answer.finish = ticket.wait(events, std::chrono::milliseconds(200));
    for (const schedule::TokenEvent& event : events) {
      if (answer.ids.empty()) answer.first_token = seconds_since(start);
      answer.ids.push_back(event.token);
      const bool ends = std::find(end_ids.begin(), end_ids.end(), event.token) != end_ids.end();
      if (detokenizer && !ends) add(detokenizer->push(event.token));
    }
  }
  if (detokenizer) add(detokenizer->flush());
  if (answer.finish == schedule::Finish::kFailed)
    throw Error(Code::kUnavailable, "the generation failed: " + ticket.error());
  return answer;
}

Json json_of(const ServedModel& model, const std::vector<int32_t>& prompt, const Answer& answer,
             double load_seconds, double total_seconds) {
  const std::size_t total = prompt.size() + answer.ids.size();
  return {
      {"model", model.name},
      {"prompt_token_ids", prompt},
      {"token_ids", answer.ids},
      {"text", answer.text},
      {"finish_reason", answer.finish == schedule::Finish::kStop ? "stop" : "length"},
      {"usage",
       {{"prompt_tokens", prompt.size()}, {"completion_tokens", answer.ids.size()}, {"total_tokens", total}}},
      {"seconds", {{"load", load_seconds}, {"first_token", answer.first_token}, {"total", total_seconds}}}};
}

void say_now(const std::string& text) {
  print(text);
  std::fflush(stdout);
}

}  // namespace

int run_prompt(const PromptOptions& options) {
  const Clock::time_point start = Clock::now();
  StageLog quiet([](const std::string&) {});
  const ServedModel model = load_model(options.load, quiet);
  const double load_seconds = seconds_since(start);
  schedule::GenerateRequest request;
  request.prompt = prompt_of(options, *model.text);
  request.max_tokens = options.max_tokens;
  request.sampling = options.sampling;
  if (!options.ignore_eos) request.end_ids = model.end_ids;
  const std::vector<int32_t> prompt = request.prompt, end_ids = request.end_ids;
  schedule::Scheduler scheduler(*model.runner, {});
  const Clock::time_point submitted = Clock::now();
  const Answer answer =
      collect(*scheduler.submit(std::move(request)), model, end_ids, [&](const std::string& piece) {
        if (!options.json) say_now(piece);
      });
  if (options.json) {
    print(to_text(json_of(model, prompt, answer, load_seconds, seconds_since(submitted))) + "\n");
  } else if (model.text->tokenizer) {
    print("\n");
  } else {
    std::string ids;
    for (const int32_t id : answer.ids) ids += (ids.empty() ? "" : ",") + std::to_string(id);
    print(ids + "\n");
  }
  return 0;
}

}  // namespace ark::tools
