#include "server/api/job.h"

#include <atomic>
#include <ctime>

#include "base/error.h"
#include "server/api/schema.h"
#include "server/http/envelope.h"
#include "server/text/budget.h"

namespace ark::api {
namespace {

struct ClientGone {};

const std::function<bool()> kNever;  // for text::StopScope

// A failure becomes an event.
void stream_events(const http::Writer& write, Job& job, const std::function<bool()>& client_gone) {
  try {
    job.stream_answer(client_gone, [&](const Json& json) {
      if (!write(job.event(json))) throw ClientGone{};
    });
  } catch (const ClientGone&) {
    return;
  } catch (const http::HttpError& e) {
    if (e.status == http::kClientClosedRequest) return;
    write(job.failure_event(e));
  } catch (const std::exception&) {
    write(job.failure_event(http::failure_of_request(job.id)));
  }
  if (const std::string_view last = job.last_event(); !last.empty()) write(last);
}

}  // namespace

Job::Job(Model& m, Parameters p, std::string name)
    : model(m), parameters(std::move(p)), id(std::move(name)), created(std::time(nullptr)), batch(m) {}

std::string Job::event(const Json& json) const { return "data: " + to_text(json) + "\n\n"; }

std::string Job::failure_event(const http::HttpError& e) const {
  return "data: " + http::envelope(e.status, e.message, e.param, e.code) + "\n\n";
}

void Job::submit(std::vector<int32_t> prompt, int64_t max_tokens, int32_t index) {
  schedule::GenerateRequest request = parameters.request;
  request.prompt = std::move(prompt);
  request.max_tokens = static_cast<int32_t>(max_tokens);
  if (request.min_tokens > max_tokens)
    throw http::HttpError(400,
                          "min_tokens must be at most max_tokens, which is " + std::to_string(max_tokens),
                          "min_tokens", "invalid_value");
  request.sampling.seed = session::seed_of(parameters.seed, index);
  if (index == 0) firsts_.push_back(batch.size());
  const text::StopScope none(kNever);
  batch.submit(std::move(request), parameters.text);
}

void Job::run(const std::function<bool()>& client_gone,
              const std::function<void(std::size_t, session::Piece)>& take) {
  // A client that is gone is the batch's to notice: within a token's text it would be that text's fault, a 400.
  const text::StopScope none(kNever);
  if (!batch.run(client_gone, take))
    throw http::HttpError(http::kClientClosedRequest, "the client closed the connection");
}

Json Job::envelope(bool is_chunk) const {
  Json all = {{"id", id},
              {"object", nullptr},
              {"created", created},
              {"model", model.name()},
              {"system_fingerprint", model.served.fingerprint}};
  all.update(head(is_chunk));
  return all;
}

int64_t Job::cached_tokens() const {
  int64_t sum = 0;
  for (const std::size_t first : firsts_) sum += batch.at(first).times().cached_tokens;
  return sum;
}

Json Job::usage() const {
  const int64_t prompt = prompt_tokens(), generated = batch.generated();
  int64_t right = 0, wrong = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const schedule::Ticket::Times times = batch.at(i).times();
    right += times.drafts_right, wrong += times.drafts_wrong;
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", generated},
          {"total_tokens", prompt + generated},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens()}}},
          {"completion_tokens_details",
           {{"accepted_prediction_tokens", right}, {"rejected_prediction_tokens", wrong}}}};
}

Json Job::whole_answer(const std::function<bool()>& client_gone) {
  run(client_gone, [&](std::size_t i, session::Piece piece) { add(i, std::move(piece)); });
  Json answer = envelope(false);
  answer["choices"] = choices();
  answer["usage"] = usage();
  return answer;
}

void Job::stream_answer(const std::function<bool()>& client_gone,
                        const std::function<void(const Json&)>& send) {
  Json chunk = envelope(true);
  if (parameters.include_usage) chunk["usage"] = nullptr;
  run(client_gone, [&](std::size_t i, session::Piece piece) {
    for (Json& choice : news(i, std::move(piece))) {
      chunk["choices"] = Json::array({std::move(choice)});
      if (parameters.continuous_usage) chunk["usage"] = usage();
      send(chunk);
      chunk.erase("prompt_token_ids");  // once is enough
    }
  });
  if (!parameters.include_usage) return;
  chunk["choices"] = Json::array();
  chunk["usage"] = usage();
  send(chunk);
}

void set_finish(Json& choice, const session::Generation& generation) {
  if (!generation.done()) return;
  choice["finish_reason"] = generation.finish_reason();
  Json& reason = choice["stop_reason"];
  if (const auto* text = std::get_if<std::string>(&generation.stop_reason())) reason = *text;
  if (const auto* id = std::get_if<int32_t>(&generation.stop_reason())) reason = *id;
}

schedule::Origin origin_of(const Model& model, const http::Request& request) {
  static std::atomic<uint64_t> requests{0};
  schedule::Origin origin{.model = model.name(), .id = request.id};
  origin.number = ++requests;
  if (request.trace) {
    origin.trace_id = request.trace->trace_id;
    origin.parent_id = request.trace->parent_id;
    origin.is_sampled = request.trace->is_sampled;
  }
  return origin;
}

http::Response respond(const std::shared_ptr<Job>& job, const http::Request& request) {
  http::Response response;
  response.sent = [job](std::chrono::nanoseconds blocked) { job->batch.mark_sent(blocked); };
  const auto note = [job, log = request.log] {
    *log = {{"model", job->model.name()},
            {"prompt_tokens", job->prompt_tokens()},
            {"cached_tokens", job->cached_tokens()},
            {"generated_tokens", job->batch.generated()}};
  };
  if (job->parameters.stream) {
    response.content_type = "text/event-stream";
    response.headers.emplace_back("Cache-Control", "no-cache");
    response.stream = [job, note, gone = request.client_gone](const http::Writer& write) {
      stream_events(write, *job, gone);
      note();
    };
    return response;
  }
  try {
    response.body = to_text(job->whole_answer(request.client_gone));
  } catch (const std::exception&) {
    note();  // it was computed, whoever has gone meanwhile
    throw;
  }
  note();
  return response;
}

Json usage_schema(const Limits&) {
  return object({{"prompt_tokens", type("integer")},
                 {"completion_tokens", type("integer")},
                 {"total_tokens", type("integer")},
                 {"prompt_tokens_details", object({{"cached_tokens", type("integer")}})},
                 {"completion_tokens_details", object({{"accepted_prediction_tokens", type("integer")},
                                                       {"rejected_prediction_tokens", type("integer")}})}});
}

Json choice_schema(Json properties) {
  Json all = {{"index", type("integer")}};
  all.update(properties);
  all.update({{"logprobs", maybe(type("object"))},
              {"finish_reason", maybe(one_of({"stop", "length"}))},
              {"stop_reason",
               maybe({{"oneOf", Json::array({type("string"), token_id()})},
                      {"description", "The stop string or the stop token that ended it (extension)."}})},
              {"token_ids", list(token_id())}});
  return object(std::move(all));
}

Json answer_schema(const char* object_name, Json choice) {
  return object({{"id", type("string")},
                 {"object", one_of({object_name})},
                 {"created", type("integer")},
                 {"model", type("string")},
                 {"system_fingerprint", text("Of the model's files and ark's version.")},
                 {"choices", list(std::move(choice))},
                 {"usage", reference("Usage")}},
                {"id", "object", "created", "model", "system_fingerprint", "choices", "usage"});
}

}  // namespace ark::api
