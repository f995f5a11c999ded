#include "server/api/completions.h"

#include <algorithm>
#include <numeric>

#include "server/api/completion_choice.h"
#include "server/api/format.h"

namespace ark::api {
namespace {

constexpr int64_t kDefaultMaxTokens = 16;  // OpenAI's

void read_own_fields(const Fields& fields, CompletionJob& job) {
  Parameters& p = job.parameters;
  if (const auto suffix = fields.string("suffix"); suffix && !suffix->empty())
    fields.fail("suffix", "is not supported: the model continues text and does not fill in");
  job.echo = fields.boolean("echo").value_or(false);
  job.logprobs = static_cast<int32_t>(fields.integer("logprobs", 0, kMaxTop).value_or(-1));
  const auto best_of = fields.integer("best_of", 1, kMostSequences);
  job.best_of = static_cast<int32_t>(best_of.value_or(p.n));
  if (job.best_of < p.n) fields.fail("best_of", "must be at least n, which is " + std::to_string(p.n));
  if (job.best_of > p.n && p.stream)
    fields.fail("best_of", "must equal n in a stream: the best are known at the end");
  p.request.top_logprobs = job.best_of > p.n ? std::max(0, job.logprobs) : job.logprobs;
  p.request.prompt_logprobs = job.echo && job.logprobs >= 0;
}

std::vector<int32_t> ids_of(const Fields& fields, const Json& list, const Model& model) {
  const Json holder = {{"prompt", list}};
  const std::vector<int32_t> ids =
      *Fields(holder).ids("prompt", static_cast<std::size_t>(model.max_length()) + 1);
  for (const int32_t id : ids)
    if (id >= model.vocabulary())
      fields.fail("prompt", "holds the token id " + std::to_string(id) + ", beyond the vocabulary of " +
                                std::to_string(model.vocabulary()));
  return ids;
}

Prompt read_prompt(const Fields& fields, const Json& value, const Model& model, bool special, bool echo) {
  Prompt prompt;
  if (value.is_string()) {
    prompt.text = value.get<std::string>();
    prompt.ids = model.encode("prompt", prompt.text, special);
  } else if (value.is_array()) {
    prompt.ids = ids_of(fields, value, model);
    if (const text::Tokenizer* tokenizer = model.tokenizer_or_null(); tokenizer && echo)
      prompt.text = tokenizer->decode(prompt.ids, false);
  } else {
    fields.fail("prompt", "must hold strings or arrays of token ids, not " + kind_of(value));
  }
  return prompt;
}

void read_prompts(const Fields& fields, CompletionJob& job) {
  const Json* value = fields.find("prompt");
  if (!value || !(value->is_string() || value->is_array()))
    fields.wrong_type("prompt",
                      "a string, an array of strings, token ids, or an array of arrays of token ids");
  if (value->is_array() && value->empty()) fields.fail("prompt", "must not be an empty array");
  const bool special = fields.boolean("add_special_tokens").value_or(true);
  const bool many = value->is_array() && !(*value)[0].is_number();
  const std::size_t count = many ? value->size() : 1;
  const auto most = static_cast<std::size_t>(std::max(1, job.model.options.max_queue));
  if (count * static_cast<std::size_t>(job.best_of) > most)
    fields.fail("prompt", "asks for " + std::to_string(count * static_cast<std::size_t>(job.best_of)) +
                              " sequences; a request may have " + std::to_string(most));
  for (std::size_t i = 0; i < count; ++i)
    job.prompts.push_back(read_prompt(fields, many ? (*value)[i] : *value, job.model, special, job.echo));
  for (const Prompt& prompt : job.prompts) {
    const int64_t room = job.model.max_length() - static_cast<int64_t>(prompt.ids.size());
    const int64_t wanted =
        job.parameters.max_tokens.value_or(std::clamp<int64_t>(room, 1, kDefaultMaxTokens));
    check_length(job.model, {"prompt", static_cast<int64_t>(prompt.ids.size())}, wanted, "max_tokens");
  }
}

void submit(CompletionJob& job) {
  for (std::size_t p = 0; p < job.prompts.size(); ++p)
    for (int32_t i = 0; i < job.best_of; ++i) {
      schedule::GenerateRequest request = job.parameters.request;
      request.prompt = job.prompts[p].ids;
      const int64_t room = job.model.max_length() - static_cast<int64_t>(request.prompt.size());
      request.max_tokens =
          static_cast<int32_t>(job.parameters.max_tokens.value_or(std::min(room, kDefaultMaxTokens)));
      request.sampling.seed = seed_of(job.parameters.seed, static_cast<std::size_t>(i));
      job.batch.submit(std::move(request), job.parameters.text);
    }
}

Json envelope_of(const CompletionJob& job) {
  return {{"id", job.id},
          {"object", "text_completion"},
          {"created", job.created},
          {"model", job.model.served.name}};
}

// Of each prompt's best_of sequences, the n most probable ones per token, best first.
std::vector<std::size_t> chosen(CompletionJob& job) {
  std::vector<std::size_t> all;
  const auto tries = static_cast<std::size_t>(job.best_of), keep = static_cast<std::size_t>(job.parameters.n);
  for (std::size_t p = 0; p < job.prompts.size(); ++p) {
    std::vector<std::size_t> order(tries);
    std::iota(order.begin(), order.end(), p * tries);
    if (tries > keep)
      std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return job.batch.at(a).mean_logprob() > job.batch.at(b).mean_logprob();
      });
    all.insert(all.end(), order.begin(), order.begin() + static_cast<std::ptrdiff_t>(keep));
  }
  return all;
}

Json whole_answer(CompletionJob& job, const std::function<bool()>& client_gone) {
  std::vector<CompletionChoice> choices;
  for (std::size_t i = 0; i < job.batch.size(); ++i) choices.emplace_back(job, i);
  job.batch.run(client_gone, [&](std::size_t i, Piece piece) { choices[i].add(std::move(piece)); });
  Json answer = envelope_of(job);
  Json list = Json::array();
  for (const std::size_t i : chosen(job)) list.push_back(choices[i].take(list.size()));
  answer["choices"] = std::move(list);
  answer["usage"] = usage(job.prompt_tokens(), job.batch.generated());
  return answer;
}

void stream_answer(CompletionJob& job, const std::function<bool()>& client_gone,
                   const std::function<void(const Json&)>& send) {
  std::vector<CompletionChoice> choices;
  for (std::size_t i = 0; i < job.batch.size(); ++i) choices.emplace_back(job, i);
  Json chunk = envelope_of(job);
  if (job.parameters.include_usage) chunk["usage"] = nullptr;
  job.batch.run(client_gone, [&](std::size_t i, Piece piece) {
    choices[i].add(std::move(piece));
    if (!choices[i].has_news()) return;
    chunk["choices"] = Json::array({choices[i].take(i)});
    send(chunk);
  });
  if (!job.parameters.include_usage) return;
  chunk["choices"] = Json::array();
  chunk["usage"] = usage(job.prompt_tokens(), job.batch.generated());
  send(chunk);
}

http::Response complete(Service& service, http::Request& request) {
  std::shared_ptr<CompletionJob> job;
  {
    const Json body = parse_body(request.body);
    const Fields fields(body);
    Model& model = service.model_of(fields);
    job = std::make_shared<CompletionJob>(model, read_parameters(fields, model));
    job->id = "cmpl-" + request.id;
    job->created = unix_seconds();
    read_own_fields(fields, *job);
    read_prompts(fields, *job);
  }
  submit(*job);
  http::Response response;
  response.log = std::make_shared<LogFields>();
  const auto note = [job, log = response.log] {
    log_usage(*log, job->model, job->prompt_tokens(), job->batch.generated());
  };
  if (job->parameters.stream) {
    response.content_type = "text/event-stream";
    response.headers.emplace_back("Cache-Control", "no-cache");
    response.stream = [job, note, gone = request.client_gone](const http::Writer& write) {
      stream_events(write, [&](const auto& send) { stream_answer(*job, gone, send); });
      note();
    };
    return response;
  }
  response.body = to_text(whole_answer(*job, request.client_gone));
  note();
  return response;
}

}  // namespace

void add_completions(http::Router& router, Service& service) {
  router.add(
      {"POST", "/v1/completions", [&service](http::Request& request) { return complete(service, request); }});
}

}  // namespace ark::api
