#include "server/api/parameters.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <random>

#include "base/error.h"

namespace ark::api {
namespace {

constexpr double kSmallestTopP = 1e-6;  // top_p 0 means: only the best token

void read_sampling(const Fields& fields, SamplingParams& sampling) {
  const auto number = [&](const char* name, double low, double high, float& into) {
    if (const auto value = fields.number(name, low, high)) into = static_cast<float>(*value);
  };
  number("temperature", 0, 2, sampling.temperature);
  number("top_p", 0, 1, sampling.top_p);
  sampling.top_p = std::max(sampling.top_p, static_cast<float>(kSmallestTopP));
  number("min_p", 0, 1, sampling.min_p);
  number("presence_penalty", -2, 2, sampling.presence_penalty);
  number("frequency_penalty", -2, 2, sampling.frequency_penalty);
  number("repetition_penalty", kSmallestPenalty, 100, sampling.repetition_penalty);
  if (const auto top_k = fields.integer("top_k", -1, std::numeric_limits<int32_t>::max()))
    sampling.top_k = static_cast<int32_t>(std::max<int64_t>(0, *top_k));
}

void read_bias(const Fields& fields, const Model& model, schedule::GenerateRequest& request) {
  const Json* bias = fields.find("logit_bias");
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
    if (const auto value = entries.number(key, -100, 100))
      request.bias.emplace_back(id, static_cast<float>(*value));
  }
}

void read_stops(const Fields& fields, const Model& model, Parameters& parameters) {
  if (auto stop = fields.strings("stop", kMostStops)) parameters.text.stop = std::move(*stop);
  std::erase(parameters.text.stop, "");
  for (const std::string& stop : parameters.text.stop)
    if (stop.size() > kMostStopBytes)
      fields.fail("stop", "has a string of more than " + std::to_string(kMostStopBytes) + " bytes");
  if (!parameters.text.stop.empty()) model.tokenizer(fields.path("stop"));
  if (!fields.boolean("ignore_eos").value_or(false)) parameters.request.end_ids = model.served.end_ids;
  if (const auto ids = fields.ids("stop_token_ids", 1024))
    parameters.request.end_ids.insert(parameters.request.end_ids.end(), ids->begin(), ids->end());
  parameters.text.include_stop = fields.boolean("include_stop_str_in_output").value_or(false);
  parameters.text.skip_special = fields.boolean("skip_special_tokens").value_or(true);
}

void read_stream(const Fields& fields, Parameters& parameters) {
  parameters.stream = fields.boolean("stream").value_or(false);
  const Json* options = fields.find("stream_options");
  if (!options) return;
  if (!options->is_object()) fields.wrong_type("stream_options", "an object");
  if (!parameters.stream) fields.fail("stream_options", "is only for requests with stream: true");
  parameters.include_usage =
      Fields(*options, fields.path("stream_options.")).boolean("include_usage").value_or(false);
}

// Fields that OpenAI or vLLM know, that would change the answer, and that ark has not: ignoring them would
// answer another question.
void refuse_unsupported(const Fields& fields) {
  static constexpr const char* kUnsupported[] = {
      "allowed_token_ids", "bad_words",       "guided_choice",      "guided_grammar",
      "guided_json",       "guided_regex",    "structured_outputs", "truncate_prompt_tokens",
      "prompt_logprobs",   "use_beam_search", "logits_processors",  "functions",
      "grammar",           "json_schema"};
  for (const char* name : kUnsupported) {
    const Json* value = fields.find(name);
    if (value && *value != false && !(value->is_structured() && value->empty()))
      fields.fail(name, "is not supported");
  }
  if (const Json* format = fields.find("response_format")) {
    if (!format->is_object()) fields.wrong_type("response_format", "an object");
    const auto type = Fields(*format, "response_format.").string("type");
    if (!type || *type != "text")
      fields.fail("response_format", R"(must be {"type": "text"}: output cannot be constrained)");
  }
}

// splitmix64 (Steele, Lea, Flood 2014): one well-mixed word per input.
uint64_t mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

Parameters read_parameters(const Fields& fields, const Model& model) {
  refuse_unsupported(fields);
  Parameters parameters;
  schedule::GenerateRequest& request = parameters.request;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  parameters.max_tokens = fields.integer("max_tokens", 0, kMost);
  request.min_tokens = static_cast<int32_t>(fields.integer("min_tokens", 0, kMost).value_or(0));
  parameters.n = static_cast<int32_t>(fields.integer("n", 1, kMostSequences).value_or(1));
  if (const auto seed =
          fields.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()))
    parameters.seed = static_cast<uint64_t>(*seed);
  parameters.return_token_ids =
      fields.boolean("return_token_ids").value_or(false) || !model.served.text->tokenizer;
  (void)fields.string("user");
  read_sampling(fields, request.sampling);
  read_bias(fields, model, request);
  read_stops(fields, model, parameters);
  read_stream(fields, parameters);
  return parameters;
}

uint64_t seed_of(const std::optional<uint64_t>& seed, std::size_t index) {
  if (seed) return index == 0 ? *seed : mixed(*seed ^ mixed(index));
  std::random_device random;
  return static_cast<uint64_t>(random()) << 32 | random();
}

void check_length(const Model& model, const PromptSize& prompt, int64_t max_tokens,
                  const std::string& field) {
  const int64_t most = model.max_length();
  const auto refuse = [](const std::string& message, const std::string& param, const char* code) {
    throw http::HttpError(400, message, param, code);
  };
  if (prompt.tokens == 0)
    refuse(prompt.field + " is empty; at least one token is needed", prompt.field, "invalid_value");
  const std::string state = "the model's context is " + std::to_string(most) + " tokens, and " +
                            prompt.field + " has " + std::to_string(prompt.tokens);
  if (prompt.tokens > most) refuse(state, prompt.field, "context_length_exceeded");
  if (prompt.tokens + max_tokens > most)
    refuse(state + "; " + field + " can be " + std::to_string(most - prompt.tokens) + " at most, not " +
               std::to_string(max_tokens),
           field, "context_length_exceeded");
}

}  // namespace ark::api
