// POST /v1/chat/completions.
#include <algorithm>

#include "base/random.h"
#include "server/api/chat_messages.h"
#include "server/api/endpoints.h"
#include "server/api/job.h"
#include "server/api/logprobs.h"
#include "server/api/output_form.h"
#include "server/api/schema.h"
#include "server/api/tool_calls.h"
#include "server/api/tools.h"
#include "server/text/model_text.h"

namespace ark::api {
namespace {

using session::Piece;

constexpr IntegerField kMaxCompletion{"max_completion_tokens", 0, INT32_MAX,
                                      "Tokens to generate at most; wins over max_tokens.", true};
constexpr FlagField kWantLogprobs{"logprobs", false, "Log-probabilities of the tokens."};
constexpr IntegerField kTopLogprobs{"top_logprobs", 0, kMaxTop, "Alternatives per token; needs logprobs."};
constexpr FlagField kParallel{"parallel_tool_calls", true,
                              "false: the first call of a tool ends the answer."};
const OtherField kModalities{"modalities", [](const Limits&) { return maybe(list(one_of({"text"}))); }};

class ChatJob : public Job {
 public:
  ChatJob(Model& m, Parameters p, const Fields& fields, const std::string& request_id);
  void begin() {
    for (int32_t i = 0; i < parameters.n; ++i) submit(prompt_, max_tokens_, i);
    for (std::size_t i = 0; i < batch.size(); ++i)
      answers_.push_back({.calls = ToolCalls("call-" + std::to_string(random_word()) + "-")});
  }
  int64_t prompt_tokens() const override { return static_cast<int64_t>(prompt_.size()); }

 protected:
  Json head(bool is_chunk) const override;
  std::vector<Json> news(std::size_t index, Piece piece) override;
  void add(std::size_t index, Piece piece) override;
  Json choices() override;

 private:
  void read_logprobs(const Fields& fields);
  void read_length(const Fields& fields);
  void expect_calls(const Fields& fields);
  void check_template_asks(const Fields& fields) const;
  Json choice_of(std::size_t index, const char* what, Json content, const Piece& piece);

  std::vector<int32_t> prompt_;
  int64_t max_tokens_ = 0;
  int32_t top_ = -1;  // -1: no log-probabilities
  bool reads_calls_ = false;
  struct Answer {
    Piece all;
    bool begun = false;  // the stream has said the role
    ToolCalls calls;
  };
  std::vector<Answer> answers_;  // a sequence each
};

void refuse_what_ark_has_not(const Fields& fields) {
  if (const auto kinds = fields.strings(kModalities.name, 16))
    for (const std::string& kind : *kinds)
      if (kind != "text") fields.fail("modalities", "must be text only");
  if (fields.find("audio")) fields.fail("audio", "is not supported: the model makes text");
  fields.refuse("suffix", kNoNumber);
  fields.refuse("prompt", kNoNumber, "is only for /v1/completions; use messages");
  fields.refuse("add_special_tokens", kNoNumber,
                "is only for /v1/completions: chat templates write the special tokens");
  fields.refuse("best_of", 1, "is not supported in chat; use n");
  if (fields.boolean("echo").value_or(false)) fields.fail("echo", "is not supported in chat");
}

ChatJob::ChatJob(Model& m, Parameters p, const Fields& fields, const std::string& request_id)
    : Job(m, std::move(p), "chatcmpl-" + request_id) {
  refuse_what_ark_has_not(fields);
  check_sequences(model, static_cast<std::size_t>(parameters.n), "n");
  read_logprobs(fields);
  expect_calls(fields);
  prompt_ = chat_tokens(fields, model);
  read_length(fields);
}

void ChatJob::read_logprobs(const Fields& fields) {
  const bool wanted = fields.get(kWantLogprobs);
  const auto top = fields.get(kTopLogprobs);
  if (top.value_or(0) > 0 && !wanted) fields.fail("top_logprobs", "needs logprobs: true");
  if (wanted) top_ = static_cast<int32_t>(top.value_or(0));
  parameters.request.top_logprobs = top_;
}

// A call that comes as text would be lost on a client that waits for one.
void ChatJob::expect_calls(const Fields& fields) {
  const bool many = fields.get(kParallel);
  const Tools tools = read_tools(fields);
  if (tools.may_call.empty()) return;
  reads_calls_ = true;
  const bool has_form = parameters.request.constrain != nullptr;
  if (has_form && (tools.must_call || parameters.schema.is_null()))
    fields.fail("tools", "cannot be called beside a form other than JSON, nor a call be forced beside any");
  if (!tools.must_call) check_template_asks(fields);
  const bool several = many && !tools.names;
  if (tools.must_call || has_form)
    parameters.request.constrain =
        start_calls({tools.may_call, ToolCalls::kBegin, ToolCalls::kEnd, several, parameters.schema}, model);
  else if (!many)
    parameters.text.stop.emplace_back(ToolCalls::kEnd);
  const text::Tokenizer& tokenizer = tokenizer_for(model, "messages");
  const auto mark = tokenizer.id(ToolCalls::kBegin);
  if (mark && tokenizer.is_special(*mark)) parameters.text.skip_special = false;
}

// Otherwise no call would be found in what the model writes of itself.
void ChatJob::check_template_asks(const Fields& fields) const {
  const text::ModelText& text = *model.served.text;
  const auto& asking = text.tool_template ? text.tool_template : text.chat_template;
  if (!asking || !ToolCalls::are_asked_for(asking->source()))
    fields.fail(
        "tools",
        "are not supported: the model's chat template does not ask for calls as <tool_call>{\"name\": ..., "
        "\"arguments\": ...}</tool_call>, and others are not read; leave them out, send tool_choice "
        "\"none\" or \"required\", or render them by /apply-template and read the calls from the text");
}

void ChatJob::read_length(const Fields& fields) {
  const auto newer = fields.get(kMaxCompletion);
  const int64_t room = std::max<int64_t>(1, model.max_length() - prompt_tokens());
  max_tokens_ = newer ? *newer : parameters.max_tokens.value_or(room);
  check_length(model, {"messages", prompt_tokens()}, max_tokens_, newer ? kMaxCompletion.name : "max_tokens");
}

Json ChatJob::head(bool is_chunk) const {
  Json all = {{"object", is_chunk ? "chat.completion.chunk" : "chat.completion"}};
  if (parameters.return_token_ids) all["prompt_token_ids"] = prompt_;
  return all;
}

// The members of a choice that are the same in a stream and in a whole answer.
Json ChatJob::choice_of(std::size_t index, const char* what, Json content, const Piece& piece) {
  Json logprobs;
  if (top_ >= 0) logprobs = {{"content", chat_logprobs(model, piece.scores, top_)}, {"refusal", nullptr}};
  Json choice = {{"index", index},
                 {what, std::move(content)},
                 {"logprobs", std::move(logprobs)},
                 {"finish_reason", nullptr}};
  set_finish(choice, batch.at(index));
  if (answers_[index].calls.any() && choice["finish_reason"] == "stop")
    choice["finish_reason"] = "tool_calls";
  if (parameters.return_token_ids) choice["token_ids"] = piece.ids;
  return choice;
}

void ChatJob::add(std::size_t index, Piece piece) {
  Piece& all = answers_[index].all;
  all.text += piece.text;
  all.ids.insert(all.ids.end(), piece.ids.begin(), piece.ids.end());
  std::ranges::move(piece.scores, std::back_inserter(all.scores));
}

Json ChatJob::choices() {
  Json list = Json::array();
  for (std::size_t i = 0; i < answers_.size(); ++i) {
    const Piece& all = answers_[i].all;
    Json message = {{"role", "assistant"}, {"content", all.text}, {"refusal", nullptr}};
    if (reads_calls_) {
      ToolCalls::Found found = answers_[i].calls.push(all.text, true);
      const bool silent = found.text.empty() && !found.calls.empty();
      message["content"] = silent ? Json() : Json(std::move(found.text));
      for (Json& call : found.calls) call.erase("index");
      if (!found.calls.empty()) message["tool_calls"] = std::move(found.calls);
    }
    list.push_back(choice_of(i, "message", std::move(message), all));
  }
  return list;
}

std::vector<Json> ChatJob::news(std::size_t index, Piece piece) {
  const bool ids = parameters.return_token_ids && !piece.ids.empty();
  Json calls;
  if (reads_calls_) {
    ToolCalls::Found found = answers_[index].calls.push(piece.text, batch.at(index).done());
    piece.text = std::move(found.text), calls = std::move(found.calls);
  }
  if (piece.text.empty() && calls.empty() && piece.scores.empty() && !ids && !batch.at(index).done())
    return {};
  std::vector<Json> all;
  // The role comes first, and with the first token: clients take its time for the time to the first token.
  if (!std::exchange(answers_[index].begun, true)) {
    Json role = {{"role", "assistant"}, {"content", ""}};
    all.push_back(
        {{"index", index}, {"delta", std::move(role)}, {"logprobs", nullptr}, {"finish_reason", nullptr}});
  }
  Json delta = Json::object();
  if (!piece.text.empty()) delta["content"] = piece.text;
  if (!calls.empty()) delta["tool_calls"] = std::move(calls);
  all.push_back(choice_of(index, "delta", std::move(delta), piece));
  return all;
}

Json chat_request(const Limits& limits) {
  std::vector<Field> fields = generation_fields();
  fields.insert(fields.end(), template_fields().begin(), template_fields().end());
  for (const Field& field :
       std::initializer_list<Field>{kMaxCompletion, kWantLogprobs, kTopLogprobs, kModalities, kParallel})
    fields.push_back(field);
  return object_of(fields, limits);
}

Json chat_answer(const Limits&) {
  Json message = object({{"role", type("string")},
                         {"content", maybe(type("string"))},
                         {"refusal", maybe(type("string"))},
                         {"tool_calls", list(type("object"))}});
  Json whole = answer_schema("chat.completion", choice_schema({{"message", std::move(message)}}));
  whole["properties"]["choices"]["items"]["properties"]["finish_reason"] =
      maybe(one_of({"stop", "length", "tool_calls"}));
  whole["properties"]["prompt_token_ids"] = list(token_id());
  return whole;
}

}  // namespace

std::vector<Endpoint> chat() {
  return {{.method = "POST",
           .path = "/v1/chat/completions",
           .id = "chat",
           .summary = "Answer a conversation.",
           .handle = run_job<ChatJob>,
           .answer = {{"ChatAnswer", chat_answer}, kUsage},
           .request = {{"ChatRequest", chat_request}, kChatMessage},
           .streams = true}};
}

}  // namespace ark::api
