// ark-run --prompt: generates a text without HTTP, through the same scheduler and runner as the server.
#pragma once

#include <cstdint>
#include <string>

#include "engine/run/step.h"
#include "server/config.h"

namespace ark::tools {

struct PromptOptions {
  ServeOptions load;
  std::string prompt;
  std::string prompt_ids;  // "1,2,3" instead of a text, for models without a tokenizer
  int32_t max_tokens = 48;
  SamplingParams sampling{.temperature = 0};
  bool chat = false;        // the prompt is a user's message, put through the chat template
  bool ignore_eos = false;  // goes on to max_tokens
  bool json = false;
};

// Prints the generated text, or one line of JSON: model, prompt_token_ids, token_ids, text, finish_reason
// ("stop" or "length"), usage, seconds. token_ids holds the end token too, text does not. Returns the exit
// code.
int run_prompt(const PromptOptions& options);

}  // namespace ark::tools
