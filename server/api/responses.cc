// POST /v1/responses: a conversation answered, as OpenAI's newer API asks for it. Nothing is kept: each request brings
// the whole conversation.
#include <ctime>
#include <utility>

#include "server/api/chat.h"
#include "server/api/endpoints.h"
#include "server/api/responses_input.h"
#include "server/api/schema.h"

namespace ark::api {
namespace {

class ResponseJob final : public ChatJob {
 public:
  ResponseJob(Model& m, Parameters p, const Fields& chat, const std::string& request_id, Json shown)
      : ChatJob(m, std::move(p), chat, request_id, "resp_"), shown_(std::move(shown)) {}

  Json whole_answer(const std::function<bool()>& client_gone) override;
  void stream_answer(const std::function<bool()>& client_gone,
                     const std::function<void(const Json&)>& send) override;
  std::string event(const Json& json) const override;
  std::string failure_event(const http::HttpError& error) const override;
  std::string_view last_event() const override { return ""; }

 private:
  using Send = std::function<void(const Json&)>;
  // Of a stream: numbers and sends an event.
  void tell(const Send& send, const char* type, Json more);
  void tell_part(const Send& send, const char* type, Json more);
  void tell_choice(const Send& send, const Json& choice);
  void say(const Send& send, const std::string& text);
  void tell_call(const Send& send, const Json& call);
  void open_message(const Send& send);
  void close_message(const Send& send);

  bool was_cut() const { return batch.at(0).finish_reason() == std::string_view("length"); }
  const char* end_status() const { return was_cut() ? "incomplete" : "completed"; }
  Json response(const char* status) const;
  std::string next_id(const char* kind) const {
    return kind + id.substr(id.find('_') + 1) + "_" + std::to_string(output_.size());
  }
  Json message(const char* status, Json content) const;
  Json call(const char* status, const Json& chat_call) const;
  static Json part(const std::string& text, Json logprobs);

  Json shown_;                   // what the answer repeats of the request
  Json output_ = Json::array();  // items that are whole
  bool is_open_ = false;         // of a stream: a message, and
  std::string text_;             // what it has so far
  Json scores_ = Json::array();  // likewise
  Json held_ = Json::array();    // of tokens whose text is held back: it may be a call's
  int64_t events_ = 0;
};

Json ResponseJob::part(const std::string& text, Json logprobs) {
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", Json::array()},
          {"logprobs", std::move(logprobs)}};
}

Json ResponseJob::message(const char* status, Json content) const {
  return {{"id", next_id("msg_")},
          {"type", "message"},
          {"status", status},
          {"role", "assistant"},
          {"content", std::move(content)}};
}

Json ResponseJob::call(const char* status, const Json& chat_call) const {
  return {{"id", next_id("fc_")},
          {"type", "function_call"},
          {"status", status},
          {"call_id", chat_call["id"]},
          {"name", chat_call["function"]["name"]},
          {"arguments", chat_call["function"]["arguments"]}};
}

Json ResponseJob::response(const char* status) const {
  Json all = {{"id", id},
              {"object", "response"},
              {"created_at", created},
              {"status", status},
              {"background", false},
              {"error", nullptr},
              {"incomplete_details", nullptr},
              {"instructions", nullptr},
              {"max_output_tokens", nullptr},
              {"metadata", Json::object()},
              {"model", model.name()},
              {"output", output_},
              {"parallel_tool_calls", true},
              {"previous_response_id", nullptr},
              {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
              {"store", false},
              {"temperature", parameters.request.sampling.temperature},
              {"text", {{"format", {{"type", "text"}}}}},
              {"tool_choice", "auto"},
              {"tools", Json::array()},
              {"top_logprobs", 0},
              {"top_p", parameters.request.sampling.top_p},
              {"truncation", "disabled"},
              {"usage", nullptr},
              {"user", nullptr}};
  all.update(shown_);
  if (std::string_view(status) == "in_progress") return all;
  const int64_t input = prompt_tokens(), output = batch.generated();
  all["usage"] = {{"input_tokens", input},
                  {"input_tokens_details", {{"cached_tokens", cached_tokens()}, {"cache_write_tokens", 0}}},
                  {"output_tokens", output},
                  {"output_tokens_details", {{"reasoning_tokens", 0}}},
                  {"total_tokens", input + output}};
  if (std::string_view(status) == "incomplete") all["incomplete_details"] = {{"reason", "max_output_tokens"}};
  if (std::string_view(status) == "completed") all["completed_at"] = std::time(nullptr);
  return all;
}

Json ResponseJob::whole_answer(const std::function<bool()>& client_gone) {
  run(client_gone, [&](std::size_t i, session::Piece piece) { add(i, std::move(piece)); });
  const Json choice = std::move(choices()[0]);
  const Json &said = choice["message"], &logprobs = choice["logprobs"];
  if (said["content"].is_string()) {
    Json content =
        part(said["content"].get<std::string>(), logprobs.is_null() ? Json::array() : logprobs["content"]);
    output_.push_back(message(end_status(), Json::array({std::move(content)})));
  }
  if (const auto calls = said.find("tool_calls"); calls != said.end())
    for (const Json& one : *calls) output_.push_back(call("completed", one));
  return response(end_status());
}

void ResponseJob::tell(const Send& send, const char* type, Json more) {
  Json all = {{"type", type}, {"sequence_number", events_++}};
  all.update(more);
  send(all);
}

void ResponseJob::tell_part(const Send& send, const char* type, Json more) {
  Json all = {{"item_id", next_id("msg_")}, {"output_index", output_.size()}, {"content_index", 0}};
  all.update(more);
  tell(send, type, std::move(all));
}

void ResponseJob::open_message(const Send& send) {
  if (std::exchange(is_open_, true)) return;
  tell(send, "response.output_item.added",
       {{"output_index", output_.size()}, {"item", message("in_progress", Json::array())}});
  tell_part(send, "response.content_part.added", {{"part", part("", Json::array())}});
}

void ResponseJob::close_message(const Send& send) {
  if (!std::exchange(is_open_, false)) return;
  const Json whole = part(text_, scores_);
  tell_part(send, "response.output_text.done", {{"text", text_}, {"logprobs", scores_}});
  tell_part(send, "response.content_part.done", {{"part", whole}});
  Json item = message(batch.at(0).done() ? end_status() : "completed", Json::array({whole}));
  tell(send, "response.output_item.done", {{"output_index", output_.size()}, {"item", item}});
  output_.push_back(std::move(item));
  text_.clear();
  scores_ = Json::array();
}

void ResponseJob::tell_call(const Send& send, const Json& chat_call) {
  const Json item = call("completed", chat_call);
  const Json of = {{"item_id", item["id"]}, {"output_index", output_.size()}};
  const auto with = [&](const char* name, const Json& value) {
    Json all = of;
    all[name] = value;
    return all;
  };
  Json begun = item;
  begun["status"] = "in_progress", begun["arguments"] = "";
  tell(send, "response.output_item.added", {{"output_index", output_.size()}, {"item", begun}});
  tell(send, "response.function_call_arguments.delta", with("delta", item["arguments"]));
  tell(send, "response.function_call_arguments.done", with("arguments", item["arguments"]));
  tell(send, "response.output_item.done", {{"output_index", output_.size()}, {"item", item}});
  output_.push_back(item);
}

void ResponseJob::say(const Send& send, const std::string& text) {
  open_message(send);
  text_ += text;
  for (const Json& score : held_) scores_.push_back(score);
  tell_part(send, "response.output_text.delta",
            {{"delta", text}, {"logprobs", std::exchange(held_, Json::array())}});
}

void ResponseJob::tell_choice(const Send& send, const Json& choice) {
  const Json& delta = choice["delta"];
  const std::string text = delta.value("content", "");
  const Json& logprobs = choice["logprobs"];
  const Json scores = logprobs.is_null() ? Json::array() : logprobs["content"];
  for (const Json& score : scores) held_.push_back(score);
  if (!text.empty()) say(send, text);
  const auto calls = delta.find("tool_calls");
  if (calls == delta.end()) return;
  close_message(send);
  held_ = Json::array();  // of the calls' own text
  for (const Json& one : *calls) tell_call(send, one);
}

void ResponseJob::stream_answer(const std::function<bool()>& client_gone, const Send& send) {
  tell(send, "response.created", {{"response", response("in_progress")}});
  tell(send, "response.in_progress", {{"response", response("in_progress")}});
  run(client_gone, [&](std::size_t i, session::Piece piece) {
    for (const Json& choice : news(i, std::move(piece))) tell_choice(send, choice);
  });
  if (output_.empty()) open_message(send);
  if (is_open_ && !held_.empty()) say(send, "");
  close_message(send);
  tell(send, was_cut() ? "response.incomplete" : "response.completed",
       {{"response", response(end_status())}});
}

std::string ResponseJob::event(const Json& json) const {
  return "event: " + json["type"].get<std::string>() + "\n" + ChatJob::event(json);
}

std::string ResponseJob::failure_event(const http::HttpError& error) const {
  Json failed = response("failed");
  if (is_open_) failed["output"].push_back(message("incomplete", Json::array({part(text_, scores_)})));
  failed["error"] = {{"code", error.status < 500 ? "invalid_prompt" : "server_error"},
                     {"message", error.message}};
  return event({{"type", "response.failed"}, {"sequence_number", events_}, {"response", std::move(failed)}});
}

http::Response respond_to(Service& service, http::Request& request) {
  std::shared_ptr<ResponseJob> job;
  {
    const Json body = parse_body(request.body);
    ResponsesInput input{Fields(body)};
    try {
      job = read_job<ResponseJob>(service, request, Fields(input.chat), std::move(input.shown));
    } catch (const http::HttpError& error) {
      throw input.in_own_words(error);
    }
  }
  job->begin();
  return respond(job, request);
}

Json responses_request(const Limits& limits) {
  std::vector<Field> fields = responses_fields();
  fields.push_back(kModelName);
  return object_of(fields, limits);
}

Json responses_answer(const Limits&) {
  return object({{"id", type("string")},
                 {"object", one_of({"response"})},
                 {"created_at", type("integer")},
                 {"status", one_of({"completed", "incomplete"})},
                 {"model", type("string")},
                 {"output", list(type("object"), "Messages and calls of functions.")},
                 {"usage", type("object")}},
                {"id", "object", "created_at", "status", "model", "output", "usage"});
}

}  // namespace

std::vector<Endpoint> responses() {
  return {{.method = "POST",
           .path = "/v1/responses",
           .id = "responses",
           .summary = "Answer a conversation, in items.",
           .handle = respond_to,
           .answer = {{"ResponsesAnswer", responses_answer}},
           .request = {{"ResponsesRequest", responses_request}, {"ResponseItem", response_item_schema}},
           .streams = true}};
}

}  // namespace ark::api
