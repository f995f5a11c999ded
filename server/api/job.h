// A request for generated text from its body to its answer: what completions and chat share.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api/endpoint.h"
#include "server/api/parameters.h"
#include "server/json.h"
#include "server/session/batch.h"

namespace ark::api {

// Owned by the connection's thread.
class Job {
 public:
  Job(Model& model, Parameters parameters, std::string id);
  virtual ~Job() = default;

  // One sequence more; `index` tells those of one prompt apart.
  void submit(std::vector<int32_t> prompt, int64_t max_tokens, int32_t index);

  // Throw HttpError 499 when the client is gone.
  virtual Json whole_answer(const std::function<bool()>& client_gone);
  virtual void stream_answer(const std::function<bool()>& client_gone,
                             const std::function<void(const Json&)>& send);
  // How a stream says these: what it sends, that it has failed, that it is over.
  virtual std::string event(const Json& json) const;
  virtual std::string failure_event(const http::HttpError& error) const;
  virtual std::string_view last_event() const { return "data: [DONE]\n\n"; }

  virtual int64_t prompt_tokens() const = 0;
  int64_t cached_tokens() const;  // of these, those that were not computed for it

  Model& model;
  Parameters parameters;
  const std::string id;
  const int64_t created;  // Unix seconds
  session::Batch batch;

 protected:
  // "object" of answers and chunks; what else stands before "choices".
  virtual Json head(bool is_chunk) const = 0;
  // Of a stream: the choices to send, a chunk each, when sequence `index` goes on.
  virtual std::vector<Json> news(std::size_t index, session::Piece piece) = 0;
  // Of a whole answer: called as sequences go on, then once for "choices".
  virtual void add(std::size_t index, session::Piece piece) = 0;
  virtual Json choices() = 0;

  void run(const std::function<bool()>& client_gone,
           const std::function<void(std::size_t, session::Piece)>& take);

 private:
  Json envelope(bool is_chunk) const;
  Json usage() const;

  std::vector<std::size_t> firsts_;  // of each prompt's sequences, the first
};

// Sets "finish_reason" and "stop_reason" where the sequence has ended.
void set_finish(Json& choice, const session::Generation& generation);

// The answer to a request whose sequences are submitted: whole, or as a stream of events.
http::Response respond(const std::shared_ptr<Job>& job, const http::Request& request);

schedule::Origin origin_of(const Model& model, const http::Request& request);

// Reads a request's fields into a job of this kind, made of them and of `more`.
template <typename KindOfJob, typename... More>
std::shared_ptr<KindOfJob> read_job(Service& service, const http::Request& request, const Fields& fields,
                                    More&&... more) {
  Model& model = service.model_of(fields);
  Parameters parameters = read_parameters(fields, model);
  parameters.request.client = request.client;
  parameters.request.owner = request.owner;
  parameters.request.origin = origin_of(model, request);
  return std::make_shared<KindOfJob>(model, std::move(parameters), fields, request.id,
                                     std::forward<More>(more)...);
}

// A handler: reads the request, frees its body, and answers.
template <typename KindOfJob>
http::Response run_job(Service& service, http::Request& request) {
  std::shared_ptr<KindOfJob> job;
  {
    const Json body = parse_body(request.body);
    job = read_job<KindOfJob>(service, request, Fields(body));
  }
  job->begin();
  return respond(job, request);
}

// Schemas: an answer with choices of this kind, and the members that all choices have.
Json answer_schema(const char* object_name, Json choice);
Json choice_schema(Json properties);
Json usage_schema(const Limits&);
inline constexpr Schema kUsage{"Usage", usage_schema};

}  // namespace ark::api
