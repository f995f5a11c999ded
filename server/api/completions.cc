// POST /v1/completions.
#include <algorithm>
#include <numeric>

#include "server/api/completion_choice.h"
#include "server/api/endpoints.h"
#include "server/api/job.h"
#include "server/api/schema.h"

namespace ark::api {
namespace {

using session::Piece;

constexpr int64_t kDefaultMaxTokens = 16;  // OpenAI's

constexpr IntegerField kBestOf{"best_of", 1, 20, "Sequences of which the n most probable are returned."};
constexpr FlagField kEcho{"echo", false, "The text begins with the prompt."};
constexpr IntegerField kLogprobs{"logprobs", 0, 5,
                                 "Log-probabilities of the tokens and of this many alternatives."};
constexpr FlagField kBegun{"add_special_tokens", true,
                           "Tokenize as the model expects a text to begin (extension)."};
const OtherField kSuffix{
    "suffix", [](const Limits&) {
      return maybe({{"type", "string"}, {"maxLength", 0}, {"description", "Not supported."}});
    }};
const OtherField kPrompt{
    "prompt",
    [](const Limits& limits) {
      const Json text = {{"type", "string"}, {"minLength", 1}};
      const Json ids = at_least_one(list(token_id(limits.vocabulary)));
      return Json{{"oneOf", Json::array({text, at_least_one(list(text)), ids, at_least_one(list(ids))})},
                  {"description", "Text, several texts, token ids, or several lists of token ids."}};
    },
    true};

// Sequence i belongs to prompt i / best_of.
class CompletionJob : public Job {
 public:
  CompletionJob(Model& m, Parameters p, const Fields& fields, const std::string& request_id);
  void begin();  // submits all
  int64_t prompt_tokens() const override {
    int64_t sum = 0;
    for (const Prompt& prompt : prompts_) sum += static_cast<int64_t>(prompt.ids.size());
    return sum;
  }

 protected:
  Json head(bool) const override { return {{"object", "text_completion"}}; }
  std::vector<Json> news(std::size_t index, Piece piece) override;
  void add(std::size_t index, Piece piece) override { choices_[index].add(std::move(piece)); }
  Json choices() override;

 private:
  void read_own_fields(const Fields& fields);
  void read_prompts(const Fields& fields);
  Prompt read_prompt(const Fields& fields, const Json& value, bool special) const;
  int64_t max_tokens_behind(int64_t prompt_tokens) const;
  void check_prompt_length(int64_t tokens) const;

  CompletionOptions options_;
  int32_t best_of_ = 1;
  std::vector<Prompt> prompts_;
  std::vector<CompletionChoice> choices_;  // a sequence each
};

CompletionJob::CompletionJob(Model& m, Parameters p, const Fields& fields, const std::string& request_id)
    : Job(m, std::move(p), "cmpl-" + request_id) {
  read_own_fields(fields);
  read_prompts(fields);
}

void refuse_fields_of_chats(const Fields& fields) {
  const auto refuse = [&](const char* name) { fields.refuse(name, kNoNumber, "is only for chats"); };
  const Json *choice = fields.find("tool_choice"), *modalities = fields.find("modalities");
  const std::string chosen = choice && choice->is_string() ? choice->get<std::string>() : "";
  if (chosen != "none") refuse("tools");
  if (chosen != "none" && chosen != "auto") refuse("tool_choice");
  if (modalities && *modalities != Json::array({"text"})) refuse("modalities");
  for (const char* name : {"audio", "chat_template", "messages", "reasoning_effort"}) refuse(name);
  fields.refuse("top_logprobs", 0, "is only for chats; use logprobs");
  const Json *newer = fields.find("max_completion_tokens"), *most = fields.find("max_tokens");
  if (newer && !(most && *newer == *most))  // some clients send both
    fields.fail("max_completion_tokens", "is only for chats; use max_tokens");
}

void CompletionJob::read_own_fields(const Fields& fields) {
  Parameters& p = parameters;
  if (const auto suffix = fields.string(kSuffix.name); suffix && !suffix->empty())
    fields.fail("suffix", "is not supported: the model continues text and does not fill in");
  refuse_fields_of_chats(fields);
  options_.echo = fields.get(kEcho);
  options_.logprobs = static_cast<int32_t>(fields.get(kLogprobs).value_or(-1));
  options_.return_token_ids = p.return_token_ids;
  p.text.goes_on = true;
  best_of_ = static_cast<int32_t>(fields.get(kBestOf).value_or(p.n));
  if (best_of_ < p.n) fields.fail("best_of", "must be at least n, which is " + std::to_string(p.n));
  if (best_of_ > p.n && p.stream)
    fields.fail("best_of", "must equal n in a stream: the best are known at the end");
  p.request.top_logprobs = best_of_ > p.n ? std::max(0, options_.logprobs) : options_.logprobs;
  p.request.prompt_logprobs = options_.echo && options_.logprobs >= 0;
}

std::vector<int32_t> ids_of(const Fields& fields, const Json& list, const Model& model) {
  const Json holder = {{"prompt", list}};
  const std::vector<int32_t> ids = *Fields(holder).ids("prompt", list.size());
  for (const int32_t id : ids)
    if (id >= model.vocabulary())
      fields.fail("prompt", "holds the token id " + std::to_string(id) + ", beyond the vocabulary of " +
                                std::to_string(model.vocabulary()));
  return ids;
}

Prompt CompletionJob::read_prompt(const Fields& fields, const Json& value, bool special) const {
  Prompt prompt;
  if (value.is_string()) {
    prompt.text = value.get<std::string>();
    prompt.ids = encode(model, "prompt", prompt.text, special);
  } else if (value.is_array()) {
    if (const auto count = static_cast<int64_t>(value.size()); count > model.max_length())
      check_prompt_length(count);  // before so many ids are read
    prompt.ids = ids_of(fields, value, model);
    if (const text::Tokenizer* tokenizer = model.tokenizer(); tokenizer && options_.echo)
      prompt.text = tokenizer->decode(prompt.ids, false);
  } else {
    fields.fail("prompt", "must hold strings or arrays of token ids, not " + kind_of(value));
  }
  return prompt;
}

int64_t CompletionJob::max_tokens_behind(int64_t prompt_tokens) const {
  const int64_t room = model.max_length() - prompt_tokens;
  return parameters.max_tokens.value_or(std::clamp<int64_t>(room, 1, kDefaultMaxTokens));
}

void CompletionJob::check_prompt_length(int64_t tokens) const {
  check_length(model, {"prompt", tokens}, max_tokens_behind(tokens), "max_tokens");
}

void CompletionJob::read_prompts(const Fields& fields) {
  const Json* value = fields.get(kPrompt);
  if (!value || !(value->is_string() || value->is_array()))
    fields.wrong_type("prompt",
                      "a string, an array of strings, token ids, or an array of arrays of token ids");
  if (value->is_array() && value->empty()) fields.fail("prompt", "must not be an empty array");
  const bool special = fields.get(kBegun);
  const bool many = value->is_array() && !(*value)[0].is_number();
  const std::size_t count = many ? value->size() : 1, sequences = count * best_of_;
  check_sequences(model, sequences, "prompt");
  for (std::size_t i = 0; i < count; ++i)
    prompts_.push_back(read_prompt(fields, many ? (*value)[i] : *value, special));
  for (const Prompt& prompt : prompts_) check_prompt_length(static_cast<int64_t>(prompt.ids.size()));
}

void CompletionJob::begin() {
  for (const Prompt& prompt : prompts_)
    for (int32_t i = 0; i < best_of_; ++i) {
      submit(prompt.ids, max_tokens_behind(static_cast<int64_t>(prompt.ids.size())), i);
      choices_.emplace_back(model, options_, prompt);
    }
}

std::vector<Json> CompletionJob::news(std::size_t index, Piece piece) {
  CompletionChoice& choice = choices_[index];
  choice.add(std::move(piece));
  if (!choice.has_news(batch.at(index))) return {};
  return {choice.take(index, batch.at(index))};
}

// Of each prompt's best_of sequences, the n most probable ones per token, best first.
Json CompletionJob::choices() {
  Json list = Json::array();
  const std::size_t tries = best_of_, keep = parameters.n;
  for (std::size_t p = 0; p < prompts_.size(); ++p) {
    std::vector<std::size_t> order(tries);
    std::iota(order.begin(), order.end(), p * tries);
    if (tries > keep)
      std::ranges::stable_sort(order, std::greater(),
                               [&](std::size_t i) { return batch.at(i).mean_logprob(); });
    order.resize(keep);
    for (const std::size_t i : order) list.push_back(choices_[i].take(list.size(), batch.at(i)));
  }
  return list;
}

Json completion_request(const Limits& limits) {
  std::vector<Field> fields = generation_fields();
  for (const Field& field : std::initializer_list<Field>{kPrompt, kBestOf, kEcho, kLogprobs, kSuffix, kBegun})
    fields.push_back(field);
  return object_of(fields, limits);
}

Json completion_answer(const Limits&) {
  return answer_schema("text_completion",
                       choice_schema({{"text", type("string")}, {"prompt_token_ids", list(token_id())}}));
}

}  // namespace

std::vector<Endpoint> completions() {
  return {{.method = "POST",
           .path = "/v1/completions",
           .id = "complete",
           .summary = "Continue a text.",
           .handle = run_job<CompletionJob>,
           .answer = {{"CompletionAnswer", completion_answer}, kUsage},
           .request = {{"CompletionRequest", completion_request}},
           .streams = true}};
}

}  // namespace ark::api
