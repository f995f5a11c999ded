// ark-serve: an ONNX file behind OpenAI's HTTP API.
#include <cmath>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/log_writer.h"
#include "dma/launch.h"
#include "server/config.h"
#include "server/ending.h"
#include "server/frontend.h"
#include "server/http/api_keys.h"
#include "server/load/load.h"
#include "server/load/neighbours.h"
#include "server/text/model_text.h"
#include "server/tools/main_guard.h"
#include "server/trace/sinks.h"

namespace {

using namespace ark;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kTick = 20ms;          // between looks at signals and at the runner
constexpr auto kLastAnswers = 500ms;  // to send what is ready, or why it failed
constexpr auto kFailedEnd = 5s;       // for all of the end after the model failed

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(std::llround(seconds * 1e3));
}

// A line on standard output, for people; with --log-format json an object as the log's.
void say(const std::string& line, const LogFields& fields = {}) {
  print((is_json_log() ? log_text(LogLevel::kInfo, line, fields) : line) + "\n");
  std::fflush(stdout);
}

void say_ready(const ServeOptions& options, const std::string& model, const text::ModelText& text,
               const Frontend& frontend) {
  const std::string url = frontend.url();
  const std::string key = options.api_key_file.empty() ? "" : " -H 'Authorization: Bearer KEY'";
  const char* route = text.chat_template ? "/v1/chat/completions" : "/v1/completions";
  const char* input = text.chat_template ? R"("messages": [{"role": "user", "content": "Who are you?"}])"
                      : text.tokenizer   ? R"("prompt": "Once upon a time")"
                                         : R"("prompt": [1, 2, 3])";
  say("ready        " + url + "  model " + escaped(model), {{"url", url}, {"model", model}});
  say("try          curl " + frontend.local_url() + route + " -H 'Content-Type: application/json'" + key +
      " -d '{\"model\": " + json_quoted(model) + ", " + input + ", \"max_tokens\": 32}'");
}

// As after its rotation.
void reopen_log(const std::filesystem::path& file) {
  if (file.empty()) return;
  try {
    LogWriter::instance().open(file);
    log_line(LogLevel::kInfo, "the log file is opened anew");
  } catch (const std::exception&) {
    log_line(LogLevel::kError, "the log stays in the file that it was in",
             {{"why", std::string(current_error().what())}});
  }
}

// Until all work is done, time is up, a second signal comes or the runner fails.
void drain(api::Service& service, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  for (const auto& model : service.models())
    while (!model->scheduler->drain(kTick) && Clock::now() < deadline && Ending::asked() < 2 &&
           service.failure().empty()) {
    }
}

int serve(const ServeOptions& options, api::Service& service, Frontend& frontend, Ending& ending) {
  std::string silence;
  for (int reloads = 0; Ending::asked() == 0 && service.failure().empty();) {
    std::this_thread::sleep_for(kTick);
    if (const std::string now = service.silence(); now != silence) {
      log_line(LogLevel::kWarning, now.empty() ? "all ranks show signs of life again" : now);
      silence = now;
    }
    if (Ending::reloads() == reloads) continue;
    reloads = Ending::reloads();
    reopen_log(options.log_file);
    frontend.reload();
  }
  std::string failure = service.failure();
  if (failure.empty()) {
    log_line(LogLevel::kInfo, "draining; a second signal stops at once");
    ending.now("requests in flight");
    frontend.start_draining();
    drain(service, milliseconds(options.shutdown_timeout));
    failure = service.failure();
  }
  if (!failure.empty()) {
    ending.begin(kFailedEnd, Error(Code::kUnavailable, "").exit_code());
    log_line(LogLevel::kError, "the model can no longer run", {{"why", failure}});
  }
  ending.now("the scheduler's last step");
  for (const auto& model : service.models()) model->scheduler->shutdown();
  ending.now("the last answers");
  frontend.stop(Ending::asked() < 2 ? kLastAnswers : 0ms);
  ending.now("the end of the ranks", [who = service.silence()] { return who; });
  if (!failure.empty()) throw Error(Code::kUnavailable, failure);
  log_line(LogLevel::kInfo, "stopped");
  return 0;
}

int run(const ServeOptions& options) {
  set_log_level(options.log_level);
  if (!options.log_file.empty()) LogWriter::instance().open(options.log_file);
  const bool is_rank = is_rank_process(options);
  if (is_rank || is_model_process()) {  // ends with what started it, whatever the terminal sends to all
    for (const int number : {SIGHUP, SIGUSR1, SIGUSR2, SIGALRM}) std::signal(number, SIG_IGN);
    // Until it has met rank 0, one that a launcher has started ends when it is told to.
    if (dma::end_with_launcher())
      for (const int number : {SIGINT, SIGTERM, SIGQUIT}) std::signal(number, SIG_IGN);
    return is_rank ? run_rank(options) : run_model_process(options, [](const auto& line) { say(line); });
  }
  StageLog log([](const std::string& line) { say(line); });
  api::Service service;
  service.stage = [&log] { return log.current(); };
  std::optional<Frontend> frontend;
  dma::Socket listener;
  Ending* ending = nullptr;  // never destroyed: its thread looks after the very end, too
  if (!options.check) {
    ending = new Ending(milliseconds(options.shutdown_timeout));
    frontend.emplace(options, service);  // a port in use shows before the model is loaded
    listener = listen_for_neighbours(options);
  } else if (!options.api_key_file.empty()) {
    http::ApiKeys::load(options.api_key_file);
  }
  const auto sinks = std::make_shared<trace::Sinks>(trace::SinkOptions{
      options.trace_dir, milliseconds(options.trace_slower_than / 1e3), options.otlp_endpoint});
  service.dropped_records = [sinks] { return sinks->dropped(); };
  const schedule::SchedulerOptions policies = scheduling(options);
  const auto start = Clock::now();
  ServedModel model = load_model(options, log);
  model.load_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const std::string name = model.name;
  const auto text = model.text;  // shared: the service takes the model
  if (options.check) {
    say("checked      " + escaped(name) + " can be served");
    return 0;
  }
  service.add(std::move(model), policies, [sinks](const auto& record) { sinks->put(record); });
  api::Model& served = *service.models()[0];
  const auto pages = serve_neighbours(options, std::move(listener), served.served, *served.scheduler);
  try {
    ending->now("serving", [&frontend] { return frontend->in_progress(); });
    say_ready(options, name, *text, *frontend);
    return serve(options, service, *frontend, *ending);
  } catch (const std::exception&) {  // what it would ask goes now
    ending->now("the end after an error", [] { return std::string(); });
    throw;
  }
}

}  // namespace

int main(int argc, char** argv) {
  CommandLine line("ark-serve", "Serves an ONNX model over OpenAI's HTTP API.");
  ServeOptions options;
  add_serve_options(line, options);
  return run_main(line, argc, argv, [&] {
    options.finishes_cache = options.check;
    return run(options);
  });
}
