#include "server/api/chat.h"

#include <algorithm>
#include <utility>

#include "server/api/chat_messages.h"
#include "server/api/format.h"
#include "server/api/generation.h"

namespace ark::api {
namespace {

struct ChatJob {
  ChatJob(Model& m, Parameters p) : model(m), parameters(std::move(p)), batch(m) {}
  Model& model;
  Parameters parameters;
  std::string id;
  int64_t created = 0;
  std::vector<int32_t> prompt;
  int32_t top = -1;  // -1: no log-probabilities
  Batch batch;
};

void refuse_what_ark_has_not(const Fields& fields) {
  if (const auto kinds = fields.strings("modalities", 16))
    for (const std::string& kind : *kinds)
      if (kind != "text") fields.fail("modalities", "must be text only");
  if (fields.find("audio")) fields.fail("audio", "is not supported: the model makes text");
  if (fields.boolean("echo").value_or(false)) fields.fail("echo", "is not supported in chat");
}

void read_logprobs(const Fields& fields, ChatJob& job) {
  const bool wanted = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, kMaxTop);
  if (top && !wanted) fields.fail("top_logprobs", "needs logprobs: true");
  if (wanted) job.top = static_cast<int32_t>(top.value_or(0));
  job.parameters.request.top_logprobs = job.top;
}

void read_length(const Fields& fields, ChatJob& job) {
  const auto newer = fields.integer("max_completion_tokens", 0, INT32_MAX);
  const std::string name = newer ? "max_completion_tokens" : "max_tokens";
  const auto prompt = static_cast<int64_t>(job.prompt.size());
  const int64_t room = std::max<int64_t>(1, job.model.max_length() - prompt);
  const int64_t wanted = newer ? *newer : job.parameters.max_tokens.value_or(room);
  check_length(job.model, {"messages", prompt}, wanted, name);
  job.parameters.request.max_tokens = static_cast<int32_t>(wanted);
}

void submit(ChatJob& job) {
  for (int32_t i = 0; i < job.parameters.n; ++i) {
    schedule::GenerateRequest request = job.parameters.request;
    request.prompt = job.prompt;
    request.sampling.seed = seed_of(job.parameters.seed, static_cast<std::size_t>(i));
    job.batch.submit(std::move(request), job.parameters.text);
  }
}

Json envelope_of(const ChatJob& job, const char* object) {
  Json all = {{"id", job.id}, {"object", object}, {"created", job.created}, {"model", job.model.served.name}};
  if (job.parameters.return_token_ids) all["prompt_token_ids"] = job.prompt;
  return all;
}

Json logprobs_of(const ChatJob& job, const std::vector<TokenScore>& scores) {
  if (job.top < 0) return nullptr;
  return {{"content", chat_logprobs(job.model, scores, job.top)}, {"refusal", nullptr}};
}

// The members of a choice that are the same in a stream and in a whole answer.
Json choice_of(ChatJob& job, std::size_t index, const char* what, Json content, const Piece& piece) {
  const Generation& generation = job.batch.at(index);
  Json choice = {{"index", index},
                 {what, std::move(content)},
                 {"logprobs", logprobs_of(job, piece.scores)},
                 {"finish_reason", nullptr}};
  if (generation.done()) {
    choice["finish_reason"] = generation.finish_reason();
    choice["stop_reason"] = generation.stop_reason();
  }
  if (job.parameters.return_token_ids) choice["token_ids"] = piece.ids;
  return choice;
}

Json whole_answer(ChatJob& job, const std::function<bool()>& client_gone) {
  std::vector<Piece> all(job.batch.size());
  job.batch.run(client_gone, [&](std::size_t i, Piece piece) {
    all[i].text += piece.text;
    all[i].ids.insert(all[i].ids.end(), piece.ids.begin(), piece.ids.end());
    std::move(piece.scores.begin(), piece.scores.end(), std::back_inserter(all[i].scores));
  });
  Json answer = envelope_of(job, "chat.completion");
  Json choices = Json::array();
  for (std::size_t i = 0; i < all.size(); ++i) {
    Json message = {{"role", "assistant"}, {"content", all[i].text}, {"refusal", nullptr}};
    choices.push_back(choice_of(job, i, "message", std::move(message), all[i]));
  }
  answer["choices"] = std::move(choices);
  const auto prompt = static_cast<int64_t>(job.prompt.size());
  answer["usage"] = usage(prompt, job.batch.generated());
  return answer;
}

void stream_answer(ChatJob& job, const std::function<bool()>& client_gone,
                   const std::function<void(const Json&)>& send) {
  Json chunk = envelope_of(job, "chat.completion.chunk");
  if (job.parameters.include_usage) chunk["usage"] = nullptr;
  std::vector<bool> begun(job.batch.size());
  // The role comes first, and with the first token: clients take its time for the time to the first token.
  const auto begin = [&](std::size_t i) {
    if (begun[i]) return;
    begun[i] = true;
    Json delta = {{"role", "assistant"}, {"content", ""}};
    chunk["choices"] = Json::array(
        {Json{{"index", i}, {"delta", std::move(delta)}, {"logprobs", nullptr}, {"finish_reason", nullptr}}});
    send(chunk);
    chunk.erase("prompt_token_ids");
  };
  job.batch.run(client_gone, [&](std::size_t i, Piece piece) {
    const bool ids = job.parameters.return_token_ids && !piece.ids.empty();
    if (piece.text.empty() && piece.scores.empty() && !ids && !job.batch.at(i).done()) return;
    begin(i);
    Json delta = Json::object();
    if (!piece.text.empty()) delta["content"] = piece.text;
    chunk["choices"] = Json::array({choice_of(job, i, "delta", std::move(delta), piece)});
    send(chunk);
  });
  if (!job.parameters.include_usage) return;
  chunk["choices"] = Json::array();
  chunk["usage"] = usage(static_cast<int64_t>(job.prompt.size()), job.batch.generated());
  send(chunk);
}

http::Response chat(Service& service, http::Request& request) {
  std::shared_ptr<ChatJob> job;
  {
    const Json body = parse_body(request.body);
    const Fields fields(body);
    Model& model = service.model_of(fields);
    job = std::make_shared<ChatJob>(model, read_parameters(fields, model));
    job->id = "chatcmpl-" + request.id;
    job->created = unix_seconds();
    refuse_what_ark_has_not(fields);
    read_logprobs(fields, *job);
    job->prompt = chat_tokens(fields, model);
    read_length(fields, *job);
  }
  submit(*job);
  http::Response response;
  response.log = std::make_shared<LogFields>();
  const auto note = [job, log = response.log] {
    log_usage(*log, job->model, static_cast<int64_t>(job->prompt.size()), job->batch.generated());
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

void add_chat(http::Router& router, Service& service) {
  router.add({"POST", "/v1/chat/completions",
              [&service](http::Request& request) { return chat(service, request); }});
}

}  // namespace ark::api
