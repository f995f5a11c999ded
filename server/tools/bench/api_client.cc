#include "server/tools/bench/api_client.h"

#include <cstdlib>

#include "base/error.h"
#include "server/json.h"
#include "server/tools/bench/library.h"
#include "server/tools/bench/sse.h"

namespace ark::bench {
namespace {

constexpr std::chrono::seconds kConnectTimeout{30}, kReadTimeout{6 * 3600};
constexpr std::size_t kMostErrorBytes = 64 << 10;

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

std::string base_url(const ServeOptions& options) {
  if (options.base_url.empty()) {
    const bool v6 = options.host.find(':') != std::string::npos;
    return "http://" + (v6 ? "[" + options.host + "]" : options.host) + ":" + std::to_string(options.port);
  }
  return options.base_url;
}

// "http://host:1/prefix" -> "http://host:1" and "/prefix".
std::pair<std::string, std::string> split_url(const std::string& url) {
  const std::size_t scheme = url.find("://");
  if (scheme == std::string::npos)
    throw Error(Code::kUsage, "--base-url '" + escaped(url) + "' has no http://");
  const std::size_t path = url.find('/', scheme + 3);
  std::string prefix = path == std::string::npos ? "" : url.substr(path);
  while (prefix.ends_with('/')) prefix.pop_back();
  return {url.substr(0, path), prefix};
}

httplib::Headers headers_of(const ServeOptions& options) {
  httplib::Headers headers;
  if (const char* key = std::getenv("OPENAI_API_KEY"); key && *key)
    headers.emplace("Authorization", std::string("Bearer ") + key);
  for (const auto& [name, value] : options.headers) {
    headers.erase(name);
    headers.emplace(name, value);
  }
  return headers;
}

Json request_body(const ServeOptions& o, const Prompt& prompt, const std::string& model, RequestForm form) {
  Json body = o.sampling;
  body["model"] = model;
  body["stream"] = true;
  if (form.include_usage) body["stream_options"] = {{"include_usage", true}};
  if (o.chat()) {
    body["messages"] = Json::array({{{"role", "user"}, {"content", prompt.text}}});
    body["max_completion_tokens"] = prompt.output_tokens;
  } else {
    if (form.token_ids)
      body["prompt"] = prompt.ids;
    else
      body["prompt"] = prompt.text;
    body["max_tokens"] = prompt.output_tokens;
  }
  if (o.ignore_eos) body["ignore_eos"] = true;
  body.update(o.extra_body);
  return body;
}

std::string connection_error(httplib::Error error) {
  if (error == httplib::Error::Connection) return "connection refused: is the server running?";
  return "connection: " + httplib::to_string(error);
}

// The message of OpenAI's error envelope, or of what else the server sends.
std::string error_text(const Json& body) {
  if (const auto error = body.find("error"); error != body.end()) {
    if (error->is_string()) return error->get<std::string>();
    if (error->is_object() && error->contains("message") && (*error)["message"].is_string())
      return (*error)["message"];
  }
  return to_text(body);
}

// Reads the events of one answer into an Outcome.
class AnswerReader {
 public:
  explicit AnswerReader(Outcome& outcome)
      : outcome_(outcome),
        events_([this](std::string_view kind, std::string_view data) { event(kind, data); }) {}

  void add(std::string_view bytes) {
    now_ = Clock::now();
    events_.add(bytes);
  }
  void finish() {
    events_.finish();
    if (!has_token_) outcome_.first = seconds(Clock::now() - outcome_.start);  // an empty answer
    outcome_.latency = has_token_ ? seconds(last_ - outcome_.start) : outcome_.first;
    if (outcome_.error.empty() && !has_choice_) outcome_.error = "the answer has no choices";
    if (outcome_.error.empty() && !is_whole_) outcome_.error = "the stream ended before the answer did";
    outcome_.ok = outcome_.error.empty();
  }

 private:
  void event(std::string_view kind, std::string_view data) {
    if (data == "[DONE]") {
      is_whole_ = true;
      return;
    }
    if (!outcome_.error.empty()) return;
    const Json chunk = parse_json_or_discard(data);
    if (!chunk.is_object()) {
      outcome_.error = "an event is no JSON object: " + escaped(data);
      return;
    }
    const auto error = chunk.find("error");
    if (kind == "error" || (error != chunk.end() && !error->is_null())) {
      outcome_.error = error_text(chunk);
      return;
    }
    if (const auto usage = chunk.find("usage"); usage != chunk.end() && usage->is_object()) count(*usage);
    const auto choices = chunk.find("choices");
    if (choices == chunk.end() || !choices->is_array() || choices->empty()) return;
    has_choice_ = true;
    if ((*choices)[0].is_object()) token((*choices)[0]);
  }

  void count(const Json& usage) {
    const auto number = [&](const char* name) -> std::optional<int64_t> {
      const auto at = usage.find(name);
      if (at == usage.end() || !at->is_number_integer()) return std::nullopt;
      return at->get<int64_t>();
    };
    if (const auto n = number("completion_tokens")) outcome_.output_tokens = *n;
    if (const auto n = number("prompt_tokens")) outcome_.input_tokens = *n;
  }

  // A choice without any text (the role at the start, the finish reason at the end) is no token, but one with
  // empty text may be: half a character.
  void token(const Json& choice) {
    if (finished(choice)) is_whole_ = true;
    const bool is_chat = choice.contains("delta");
    const Json& holder = is_chat ? choice["delta"] : choice;
    if (!holder.is_object()) return;
    bool is_token = false;
    for (const char* name : {"text", "content", "reasoning_content", "reasoning"}) {
      const auto at = holder.find(name);
      if (at == holder.end() || !at->is_string()) continue;
      const std::string& text = at->get_ref<const std::string&>();
      outcome_.text += text;
      is_token |= !text.empty() || (!is_chat && !finished(choice));
    }
    if (is_chat && holder.contains("tool_calls") && !holder["tool_calls"].is_null()) is_token = true;
    if (const auto ids = choice.find("token_ids"); ids != choice.end() && ids->is_array())
      is_token |= !ids->empty();
    if (!is_token) return;
    if (!has_token_)
      outcome_.first = seconds(now_ - outcome_.start);
    else
      outcome_.intervals.push_back(seconds(now_ - last_));
    has_token_ = true;
    last_ = now_;
  }
  static bool finished(const Json& choice) {
    const auto reason = choice.find("finish_reason");
    return reason != choice.end() && !reason->is_null();
  }

  Outcome& outcome_;
  SseParser events_;
  Clock::time_point now_ = outcome_.start, last_ = outcome_.start;
  bool has_choice_ = false, has_token_ = false, is_whole_ = false;
};

}  // namespace

struct ApiClient::Connection {
  Connection(const std::string& host, std::string path) : client(host), prefix(std::move(path)) {
    client.set_keep_alive(true);
    client.set_tcp_nodelay(true);
    client.set_connection_timeout(kConnectTimeout);
    client.set_read_timeout(kReadTimeout);
  }
  httplib::Client client;
  std::string prefix;
};

ApiClient::ApiClient(const ServeOptions& options) : options_(options) {
  const auto [host, prefix] = split_url(base_url(options));
  connection_ = std::make_unique<Connection>(host, prefix);
  if (!connection_->client.is_valid())
    throw Error(Code::kUsage, "'" + escaped(host) + "' is no server's address");
}
ApiClient::~ApiClient() = default;
ApiClient::ApiClient(ApiClient&&) noexcept = default;

Outcome ApiClient::generate(const Prompt& prompt, const std::string& model, RequestForm form) {
  Outcome outcome;
  outcome.input_tokens = prompt.input_tokens;
  httplib::Request request;
  request.method = "POST";
  request.path = connection_->prefix + (!options_.endpoint.empty() ? options_.endpoint
                                        : options_.chat()          ? "/v1/chat/completions"
                                                                   : "/v1/completions");
  request.headers = headers_of(options_);
  request.headers.emplace("Content-Type", "application/json");
  request.body = to_text(request_body(options_, prompt, model, form));
  outcome.start = Clock::now();
  AnswerReader reader(outcome);
  std::string refusal;
  request.response_handler = [&](const httplib::Response& response) {
    outcome.status = response.status;
    return true;
  };
  request.content_receiver = [&](const char* data, std::size_t size, uint64_t, uint64_t) {
    if (outcome.status == 200)
      reader.add({data, size});
    else if (refusal.size() < kMostErrorBytes)
      refusal.append(data, size);
    return true;
  };
  const httplib::Result result = connection_->client.send(request);
  if (!result) outcome.error = connection_error(result.error());
  if (result && outcome.status != 200) {
    const Json body = parse_json_or_discard(refusal);
    outcome.error = "HTTP " + std::to_string(outcome.status) + ": " +
                    escaped(body.is_object() ? error_text(body) : refusal, 400);
  }
  reader.finish();
  return outcome;
}

Json ApiClient::page(const std::string& path) {
  const auto result = connection_->client.Get(connection_->prefix + path, headers_of(options_));
  if (!result || result->status != 200) return nullptr;
  Json body = parse_json_or_discard(result->body);
  return body.is_discarded() ? Json() : body;
}

std::string ApiClient::first_model() {
  const auto result = connection_->client.Get(connection_->prefix + "/v1/models", headers_of(options_));
  if (!result) throw Error(Code::kUnavailable, base_url(options_) + ": " + connection_error(result.error()));
  const Json body = parse_json_or_discard(result->body);
  if (result->status != 200 || !body.is_object() || !body.contains("data") || !body["data"].is_array() ||
      body["data"].empty() || !body["data"][0].is_object() || !body["data"][0].contains("id") ||
      !body["data"][0]["id"].is_string())
    throw Error(Code::kUnavailable, base_url(options_) + "/v1/models answers with HTTP " +
                                        std::to_string(result->status) + " and no model; give --model");
  return body["data"][0]["id"];
}

}  // namespace ark::bench
