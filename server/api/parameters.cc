#include "server/api/parameters.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/error.h"
#include "server/api/chat_messages.h"
#include "server/api/output_form.h"
#include "server/api/schema.h"

namespace ark::api {
namespace {

constexpr float kSmallestTopP = 1e-6f;  // top_p 0 means: only the best token
constexpr int64_t kMostInt = std::numeric_limits<int32_t>::max();

constexpr IntegerField kMaxTokens{"max_tokens", 0, kMostInt, "Tokens to generate at most.", true};
constexpr IntegerField kMinTokens{"min_tokens", 0, kMostInt, "Tokens before which nothing ends the text."};
constexpr NumberField kTemperature{"temperature", 0, 2, 1, "0 takes the most probable token."};
constexpr NumberField kTopP{"top_p", 0, 1, 1,
                            "Sampled from the most probable tokens that together have this probability."};
constexpr IntegerField kTopK{"top_k", -1, kMostInt,
                             "Sampled from this many of the most probable tokens; 0 or -1: all."};
constexpr NumberField kMinP{"min_p", 0, 1, 0,
                            "Sampled from tokens at least this probable relative to the best."};
constexpr IntegerField kSeed{"seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(),
                             "Equal seeds give equal tokens."};
constexpr NumberField kPresence{"presence_penalty", -2, 2, 0,
                                "Taken off the logits of tokens generated before."};
constexpr NumberField kFrequency{"frequency_penalty", -2, 2, 0, "Taken off once per earlier occurrence."};
constexpr NumberField kRepetition{"repetition_penalty", 1e-6, 100, 1,
                                  "Divides the logits of tokens seen before."};
constexpr NumberField kBias{"", -100, 100, 0, ""};  // of one token
constexpr IntegerField kN{"n", 1, 128, "Choices per prompt."};
constexpr TextsField kStop{"stop", 4, 4096, "Strings that end the text; they are left out of it."};
constexpr IdsField kStopIds{"stop_token_ids", 1024, "Tokens that end the text (extension)."};
constexpr FlagField kIgnoreEos{"ignore_eos", false, "Go on after the end-of-text token (extension)."};
constexpr FlagField kIncludeStop{"include_stop_str_in_output", false,
                                 "Leave stop strings in the text (extension)."};
constexpr FlagField kSkipSpecial{"skip_special_tokens", true,
                                 "Leave special tokens out of the text (extension)."};
constexpr FlagField kReturnIds{"return_token_ids", false, "Add token_ids and prompt_token_ids (extension)."};
constexpr FlagField kStream{"stream", false, "Answer with server-sent events."};
constexpr FlagField kIncludeUsage{"include_usage", false, "A last chunk with the usage."};
constexpr FlagField kContinuousUsage{"continuous_usage_stats", false,
                                     "With include_usage: each chunk has the usage so far (extension)."};
constexpr TextField kUser{"user", "Not used."};
constexpr TextField kCacheSalt{
    "cache_salt", "Only requests with the same salt, by the same API key, share cached prompts (extension)."};

constexpr IntegerField kMaxDrafts{"speculative.n_max", 0, schedule::kMostDrafts,
                                  "Guessed tokens that a step may check at once; 0: none. The answer stays "
                                  "the same (extension)."};

const OtherField kPrediction{
    "prediction", [](const Limits&) {
      return maybe(
          object({{"type", one_of({"content"})}, {"content", content_schema()}}, {"type", "content"}));
    }};
const OtherField kLogitBias{
    "logit_bias", [](const Limits&) {
      return maybe(
          {{"type", "object"},
           {"maxProperties", kMaxBias},
           {"additionalProperties", {{"type", "number"}, {"minimum", kBias.low}, {"maximum", kBias.high}}},
           {"description", "Token id -> added to its logit."}});
    }};
const OtherField kStreamOptions{"stream_options", [](const Limits& limits) {
                                  return maybe(object_of({kIncludeUsage, kContinuousUsage}, limits));
                                }};

void read_sampling(const Fields& fields, SamplingParams& sampling) {
  const auto number = [&](const NumberField& field, float& into) {
    if (const auto value = fields.get(field)) into = static_cast<float>(*value);
  };
  number(kTemperature, sampling.temperature);
  number(kTopP, sampling.top_p);
  sampling.top_p = std::max(sampling.top_p, kSmallestTopP);
  number(kMinP, sampling.min_p);
  number(kPresence, sampling.presence_penalty);
  number(kFrequency, sampling.frequency_penalty);
  number(kRepetition, sampling.repetition_penalty);
  if (const auto top_k = fields.get(kTopK))
    sampling.top_k = static_cast<int32_t>(std::max<int64_t>(0, *top_k));
}

void read_bias(const Fields& fields, const Model& model, schedule::GenerateRequest& request) {
  const Json* bias = fields.get(kLogitBias);
  if (!bias) return;
  if (!bias->is_object()) fields.wrong_type("logit_bias", "an object of token ids and numbers");
  if (bias->size() > kMaxBias)
    fields.fail("logit_bias", "has more than " + std::to_string(kMaxBias) + " entries");
  const Fields entries(*bias, fields.path("logit_bias."));
  for (const auto& item : bias->items()) {
    int32_t id = -1;
    const std::string& key = item.key();
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= model.vocabulary())
      fields.fail("logit_bias", "has the key " + escaped(key, 40) + ", which is no token id below " +
                                    std::to_string(model.vocabulary()));
    if (const auto value = entries.number(key, kBias.low, kBias.high))
      request.bias.emplace_back(id, static_cast<float>(*value));
  }
}

void read_stops(const Fields& fields, const Model& model, Parameters& parameters) {
  if (auto stop = fields.get(kStop)) parameters.text.stop = std::move(*stop);
  std::erase(parameters.text.stop, "");
  if (!parameters.text.stop.empty()) tokenizer_for(model, fields.path("stop"));
  if (!fields.get(kIgnoreEos)) parameters.request.end_ids = model.served.end_ids;
  if (const auto ids = fields.get(kStopIds))
    parameters.request.end_ids.insert(parameters.request.end_ids.end(), ids->begin(), ids->end());
  parameters.text.include_stop = fields.get(kIncludeStop);
  parameters.text.skip_special = fields.get(kSkipSpecial);
}

void read_stream(const Fields& fields, Parameters& parameters) {
  parameters.stream = fields.get(kStream);
  const Json* options = fields.get(kStreamOptions);
  if (!options) return;
  if (!options->is_object()) fields.wrong_type("stream_options", "an object");
  if (!parameters.stream) fields.fail("stream_options", "is only for requests with stream: true");
  const Fields own(*options, fields.path("stream_options."));
  parameters.include_usage = own.get(kIncludeUsage);
  parameters.continuous_usage = own.get(kContinuousUsage) && parameters.include_usage;
}

// What the answer may be: a guess, that changes nothing but the time.
void read_guess(const Fields& fields, const Model& model, schedule::GenerateRequest& request) {
  request.max_drafts = static_cast<int32_t>(fields.get(kMaxDrafts).value_or(schedule::kMostDrafts));
  const Json* prediction = fields.get(kPrediction);
  if (!prediction) return;
  if (!prediction->is_object()) fields.wrong_type("prediction", "an object");
  const Fields guess(*prediction, fields.path("prediction."));
  if (guess.string("type") != "content") guess.fail("type", R"(must be "content")");
  const Json* content = guess.find("content");
  if (!content) guess.wrong_type("content", "a string or an array of text parts");
  request.expected = encode(model, guess.path("content"), read_content(guess, *content), false);
  if (request.expected.size() > static_cast<std::size_t>(model.max_length()))
    request.expected.resize(static_cast<std::size_t>(model.max_length()));  // no answer is longer
}

// Fields that other servers know, that would change the answer, and that ark has not: ignoring them would answer
// another question. Null, false and empty values ask for nothing.
constexpr const char* kUnsupported[] = {
    // what the text may be
    "allowed_token_ids", "bad_words", "bad_words_ids", "banned_strings", "begin_suppress_tokens",
    "force_words_ids", "forced_eos_token_id", "format", "functions", "grammar_string", "json_mode",
    "logits_processors", "custom_logit_processor", "sequence_bias", "stop_regex", "structural_tag",
    "suppress_tokens", "watermark",
    // how long it may be
    "exponential_decay_length_penalty", "max_time", "max_tokens_second",
    // what the model reads
    "character", "context", "conversation", "documents", "guideline", "image_data", "images", "input",
    "input_embeds", "input_extra", "input_ids", "input_prefix", "input_suffix", "inputs",
    "instruction_template", "instruction_template_str", "instructions", "memory", "multimodal_data",
    "negative_prompt", "plugins", "previous_response_id", "prompt_embeds", "prompt_mode",
    "prompt_truncate_len", "raw", "safe_prompt", "session_params", "system", "system_prompt", "template",
    "truncate", "truncate_prompt_tokens", "web_search_options",
    // how much it thinks
    "max_thinking_tokens", "reasoning", "reasoning_budget", "reasoning_budget_tokens", "thinking",
    "thinking_budget", "thinking_budget_tokens", "thinking_token_budget", "verbosity",
    // which weights
    "adapter", "adapter_id", "adapters", "lora", "lora_adapter", "lora_path", "lora_request",
    // how it is searched or sampled
    "beam_search", "dynamic_temperature", "early_stopping", "mirostat_eta", "mirostat_lr", "mirostat_target",
    "mirostat_tau", "sampler_order", "sampler_priority", "samplers", "temperature_last", "token_healing",
    "use_beam_search",
    // what is told of it
    "decoder_input_details", "details", "logprob_token_ids", "post_sampling_probs", "prompt_logprobs",
    "response_fields", "return_hidden_states", "return_logprob", "return_tokens_as_token_ids",
    "token_ids_logprob",
    // several of these
    "custom_params", "kv_transfer_params", "options", "parameters", "preset", "sampling_params",
    "vllm_xargs"};
// Those of which a number, too, asks for nothing: -1, 0 and 1. (repeat_last_n and xtc_threshold do without the others.)
constexpr const char* kOffAtMinusOne[] = {"top_n_sigma"};
constexpr const char* kOffAtZero[] = {
    "diversity_penalty", "dry_multiplier", "dynatemp_range",   "epsilon_cutoff",
    "eta_cutoff",        "min_keep",       "min_length",       "mirostat",
    "mirostat_mode",     "n_indent",       "nsigma",           "no_repeat_ngram_size",
    "penalty_alpha",     "skew",           "smoothing_factor", "quadratic_sampling",
    "t_max_predict_ms",  "top_a",          "xtc_probability"};
constexpr const char* kOffAtOne[] = {"beam_width",
                                     "cfg_scale",
                                     "encoder_repetition_penalty",
                                     "guidance_scale",
                                     "length_penalty",
                                     "num_beams",
                                     "tfs",
                                     "tfs_z",
                                     "typ_p",
                                     "typical",
                                     "typical_p"};

// Other servers' names for what ark has. Beside ours, with the same value, they do no harm: some clients send both.
struct OtherName {
  const char *name, *ours;
  double neutral = kNoNumber;  // asks for nothing
};
constexpr OtherName kOtherNames[] = {{"max_length", "max_tokens"},
                                     {"max_new_tokens", "max_tokens"},
                                     {"max_output_tokens", "max_tokens"},
                                     {"n_predict", "max_tokens"},
                                     {"num_predict", "max_tokens"},
                                     {"min_new_tokens", "min_tokens", 0},
                                     {"stop_sequence", "stop"},
                                     {"stop_sequences", "stop"},
                                     {"stop_strings", "stop"},
                                     {"stop_words", "stop"},
                                     {"stopping_strings", "stop"},
                                     {"custom_stopping_strings", "stop"},
                                     {"no_stop_trim", "include_stop_str_in_output"},
                                     {"ban_eos_token", "ignore_eos"},
                                     {"bypass_eos", "ignore_eos"},
                                     {"banned_tokens", "logit_bias"},
                                     {"custom_token_bans", "logit_bias"},
                                     {"rep_pen", "repetition_penalty", 1},
                                     {"repeat_penalty", "repetition_penalty", 1},
                                     {"random_seed", "seed"},
                                     {"sampler_seed", "seed", -1},
                                     {"n_cmpl", "n", 1},
                                     {"num_return_sequences", "n", 1},
                                     {"n_probs", "logprobs", 0},
                                     {"top_logprobs_num", "logprobs", 0},
                                     {"top_n_tokens", "logprobs", 0},
                                     {"return_full_text", "echo"},
                                     {"return_tokens", "return_token_ids"}};

void refuse_other_names(const Fields& fields) {
  for (const OtherName& other : kOtherNames) {
    const Json *value = fields.find(other.name), *own = fields.find(other.ours);
    if (value && !(own && *own == *value))
      fields.refuse(other.name, other.neutral, std::string("is not supported; use ") + other.ours);
  }
}

// Of these false, too, asks for something.
void refuse_switches(const Fields& fields) {
  for (const char* name : {"enable_thinking", "think"})
    if (fields.find(name))
      fields.fail(name, "is not supported; chats take what their template knows in chat_template_kwargs");
  if (const auto samples = fields.boolean("do_sample");
      samples && *samples != (fields.get(kTemperature).value_or(kTemperature.standard) > 0))
    fields.fail("do_sample", "is not supported; use temperature, where 0 takes the most probable token");
}

void refuse_unsupported(const Fields& fields) {
  const auto refuse = [&](const auto& names, double neutral) {
    for (const char* name : names) fields.refuse(name, neutral);
  };
  refuse_other_names(fields);
  refuse_switches(fields);
  refuse(kUnsupported, kNoNumber);
  refuse(kOffAtMinusOne, -1);
  refuse(kOffAtZero, 0);
  refuse(kOffAtOne, 1);
}

}  // namespace

const std::vector<Field>& generation_fields() {
  static const std::vector<Field> own = {
      kModelName, kMaxTokens, kMinTokens,   kTemperature, kTopP,      kTopK,   kMinP,
      kSeed,      kPresence,  kFrequency,   kRepetition,  kLogitBias, kN,      kStop,
      kStopIds,   kIgnoreEos, kIncludeStop, kSkipSpecial, kReturnIds, kStream, kStreamOptions,
      kUser,      kCacheSalt, kPrediction,  kMaxDrafts};
  static const std::vector<Field> all = [] {
    std::vector<Field> fields = own;
    fields.insert(fields.end(), output_form_fields().begin(), output_form_fields().end());
    return fields;
  }();
  return all;
}

Parameters read_parameters(const Fields& fields, const Model& model) {
  refuse_unsupported(fields);
  Parameters parameters;
  schedule::GenerateRequest& request = parameters.request;
  parameters.max_tokens = fields.get(kMaxTokens);
  request.min_tokens = static_cast<int32_t>(fields.get(kMinTokens).value_or(0));
  parameters.n = static_cast<int32_t>(fields.get(kN).value_or(1));
  if (const auto seed = fields.get(kSeed)) parameters.seed = static_cast<uint64_t>(*seed);
  parameters.return_token_ids = fields.get(kReturnIds) || !model.tokenizer();
  (void)fields.get(kUser);  // checked
  request.cache_salt = fields.get(kCacheSalt).value_or("");
  read_sampling(fields, request.sampling);
  read_bias(fields, model, request);
  read_stops(fields, model, parameters);
  read_stream(fields, parameters);
  read_guess(fields, model, request);
  OutputForm form = read_output_form(fields, model);
  request.constrain = std::move(form.start);
  parameters.schema = std::move(form.schema);
  return parameters;
}

void check_length(const Model& model, const PromptSize& prompt, int64_t max_tokens,
                  const std::string& field) {
  const int64_t most = model.max_length();
  const auto refuse = [](const std::string& message, const std::string& param, const char* code) {
    throw http::HttpError(400, message, param, code);
  };
  if (prompt.tokens == 0)
    refuse(prompt.field + " is empty; at least one token is needed", prompt.field, "invalid_value");
  if (prompt.tokens + max_tokens <= most) return;
  const std::string& what = prompt.field;  // OpenAI's words: clients look for them
  refuse("This model's maximum context length is " + std::to_string(most) +
             " tokens. However, you requested " + std::to_string(prompt.tokens + max_tokens) + " tokens (" +
             std::to_string(prompt.tokens) + " in the " + what + ", " + std::to_string(max_tokens) +
             " in the completion). Please reduce the length of the " + what + " or completion." +
             (prompt.tokens < most
                  ? " " + field + " can be " + std::to_string(most - prompt.tokens) + " at most."
                  : ""),
         prompt.tokens > most ? what : field, "context_length_exceeded");
}

void check_sequences(const Model& model, std::size_t sequences, const std::string& field) {
  const auto most = static_cast<std::size_t>(std::max(1, model.options.max_queue));
  if (sequences > most)
    throw http::HttpError(400,
                          field + " asks for " + std::to_string(sequences) +
                              " sequences; a request may have " + std::to_string(most),
                          field, "invalid_value");
}

}  // namespace ark::api
