#include "server/api/completion_choice.h"

#include <algorithm>
#include <utility>

#include "server/text/unicode.h"

namespace ark::api {
namespace {

// Where each token's text begins in the prompt's text, in characters.
std::vector<int64_t> offsets_of(const Model& model, const Prompt& prompt) {
  std::vector<int64_t> offsets(prompt.ids.size(), 0);
  const text::Tokenizer* tokenizer = model.tokenizer();
  if (!tokenizer) return offsets;
  // Special tokens that the tokenizer added are not in the text; those that the client wrote are.
  text::Detokenizer detokenizer(*tokenizer, tokenizer->decode(prompt.ids, false) != prompt.text);
  int64_t characters = 0;
  for (std::size_t i = 0; i < prompt.ids.size(); ++i) {
    const std::string text = detokenizer.push(prompt.ids[i]);
    const std::string_view own = std::string_view(text).substr(detokenizer.own_begin());
    characters += static_cast<int64_t>(text::count_chars(text));
    offsets[i] = characters - static_cast<int64_t>(text::count_chars(own));
  }
  return offsets;
}

}  // namespace

CompletionChoice::CompletionChoice(const Model& model, const CompletionOptions& options, const Prompt& prompt)
    : options_(options), prompt_(prompt), logprobs_(model, options.logprobs) {
  if (!options.echo) return;
  prompt_characters_ = static_cast<int64_t>(text::count_chars(prompt.text));
  if (options.logprobs < 0) return;
  prompt_offsets_ = offsets_of(model, prompt);
  add_prompt_token(0, nullptr, {});
}

void CompletionChoice::add_prompt_token(std::size_t position, const float* logprob,
                                        const std::vector<std::pair<int32_t, float>>& top) {
  logprobs_.add(prompt_.ids[position], logprob, top, prompt_offsets_[position]);
  prompt_tokens_seen_ = position + 1;
  scored_ = true;
}

int64_t CompletionChoice::characters_before(std::size_t byte) {
  byte = std::min(byte, generated_.size());
  if (byte < counted_bytes_) return counted_characters_;
  counted_characters_ += static_cast<int64_t>(
      text::count_chars(std::string_view(generated_).substr(counted_bytes_, byte - counted_bytes_)));
  counted_bytes_ = byte;
  return counted_characters_;
}

void CompletionChoice::add(session::Piece piece) {
  generated_ += piece.text;
  ids_.insert(ids_.end(), piece.ids.begin(), piece.ids.end());
  if (options_.logprobs < 0) return;
  for (const schedule::TokenEvent& event : piece.prompt)
    add_prompt_token(prompt_tokens_seen_, &event.logprob, event.top);
  for (const session::TokenScore& score : piece.scores) {
    logprobs_.add(score.id, &score.logprob, score.top, prompt_characters_ + characters_before(score.begin));
    scored_ = true;
  }
}

bool CompletionChoice::has_news(const session::Generation& generation) const {
  const bool waits_for_prompt = !prompt_offsets_.empty() && prompt_tokens_seen_ < prompt_offsets_.size();
  if (generation.done()) return true;
  return !waits_for_prompt && (taken_ < generated_.size() || scored_ ||
                               (options_.return_token_ids && !ids_.empty()) || (first_ && options_.echo));
}

Json CompletionChoice::take(std::size_t index, const session::Generation& generation) {
  std::string text = first_ && options_.echo ? prompt_.text : std::string();
  text += generated_.substr(taken_);
  taken_ = generated_.size();
  Json choice = {
      {"index", index}, {"text", std::move(text)}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  if (options_.logprobs >= 0) choice["logprobs"] = logprobs_.take();
  set_finish(choice, generation);
  if (options_.return_token_ids) {
    choice["token_ids"] = std::exchange(ids_, {});
    if (first_) choice["prompt_token_ids"] = prompt_.ids;
  }
  first_ = scored_ = false;
  return choice;
}

}  // namespace ark::api
