// POST /v1/chat/completions.
#include "server/api/chat.h"

#include <algorithm>

#include "base/random.h"
#include "server/api/chat_messages.h"
#include "server/api/endpoints.h"
#include "server/api/logprobs.h"
#include "server/api/output_form.h"
#include "server/api/schema.h"
#include "server/api/tools.h"
#include "server/text/model_text.h"

namespace ark::api {
using session::Piece;

namespace {

constexpr IntegerField kMaxCompletion{"max_completion_tokens", 0, INT32_MAX,
                                      "Tokens to generate at most; wins over max_tokens.", true};
constexpr FlagField kWantLogprobs{"logprobs", false, "Log-probabilities of the tokens."};
constexpr IntegerField kTopLogprobs{"top_logprobs", 0, kMaxTop, "Alternatives per token; needs logprobs."};
constexpr FlagField kParallel{"parallel_tool_calls", true,
                              "false: the first call of a tool ends the answer."};
const OtherField kModalities{"modalities", [](const Limits&) { return maybe(list(one_of({"text"}))); }};

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

}  // namespace

ChatJob::ChatJob(Model& m, Parameters p, const Fields& fields, const std::string& request_id,
                 const char* kind)
    : Job(m, std::move(p), kind + request_id) {
  refuse_what_ark_has_not(fields);
  check_sequences(model, static_cast<std::size_t>(parameters.n), "n");
  read_logprobs(fields);
  expect_calls(fields);
  prompt_ = chat_tokens(fields, model);
  parameters.text.goes_on = is_continued(fields);
  read_length(fields);
}

void ChatJob::begin() {
  for (int32_t i = 0; i < parameters.n; ++i) submit(prompt_, max_tokens_, i);
  for (std::size_t i = 0; i < batch.size(); ++i)
    answers_.push_back(
        {.calls = text::ToolCalls(calls_), .id = "call-" + std::to_string(random_word()) + "-"});
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
  if (has_form && parameters.schema.is_null())
    fields.fail("tools", "cannot be called beside a form other than JSON");
  if (tools.must_call) parameters.schema = nullptr;  // of a text in whose place the calls stand
  // What is forced is written by a grammar, in one form for all models.
  const bool written = tools.must_call || has_form;
  if (!written) calls_.form = own_form(fields);
  calls_.tools = tools.may_call;
  calls_.only_tools = tools.only;
  const bool several = many && !tools.names;
  if (!several) calls_.most = 1;
  const text::CallForm& form = calls_.form;
  if (written)
    parameters.request.constrain =
        start_calls({tools.may_call, form.begin, form.end, several, parameters.schema}, model);
  else if (!several && !form.end.empty())
    parameters.text.stop.push_back(form.end);
  const text::Tokenizer& tokenizer = tokenizer_for(model, "messages");
  for (const std::string_view mark : form.marks())
    if (const auto id = tokenizer.id(mark); id && tokenizer.is_special(*id))
      parameters.text.skip_special = false;
}

// Where there is none, no call would be found in what the model writes of itself.
const text::CallForm& ChatJob::own_form(const Fields& fields) const {
  const auto& form = model.served.text->call_form;
  if (!form)
    fields.fail(
        "tools",
        "are not supported: the model's chat template prints no calls of tools in a form that is read; leave "
        "them out, send tool_choice \"none\" or \"required\", or render them by /apply-template and read the "
        "calls from the text");
  return *form;
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

Json ChatJob::told(Answer& by, const std::vector<text::ToolCall>& calls, bool streams) {
  Json all = Json::array();
  for (const text::ToolCall& call : calls) {
    Json one = streams ? Json{{"index", by.told}} : Json::object();
    one["id"] = by.id + std::to_string(by.told++);
    one["type"] = "function";
    one["function"] = {{"name", call.name}, {"arguments", call.arguments}};
    all.push_back(std::move(one));
  }
  return all;
}

Json ChatJob::choices() {
  Json list = Json::array();
  for (std::size_t i = 0; i < answers_.size(); ++i) {
    const Piece& all = answers_[i].all;
    Json message = {{"role", "assistant"}, {"content", all.text}, {"refusal", nullptr}};
    if (reads_calls_) {
      text::ToolCalls::Found found = answers_[i].calls.push(all.text, true);
      const bool silent = found.text.empty() && !found.calls.empty();
      message["content"] = silent ? Json() : Json(std::move(found.text));
      if (!found.calls.empty()) message["tool_calls"] = told(answers_[i], found.calls, false);
    }
    list.push_back(choice_of(i, "message", std::move(message), all));
  }
  return list;
}

std::vector<Json> ChatJob::news(std::size_t index, Piece piece) {
  const bool ids = parameters.return_token_ids && !piece.ids.empty();
  Json calls;
  if (reads_calls_) {
    text::ToolCalls::Found found = answers_[index].calls.push(piece.text, batch.at(index).done());
    piece.text = std::move(found.text), calls = told(answers_[index], found.calls, true);
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

namespace {

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
