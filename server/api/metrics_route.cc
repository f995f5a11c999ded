#include "server/api/metrics_route.h"

#include <unistd.h>

#include <ctime>
#include <fstream>

namespace ark::api {
namespace {

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// One metric over all models: its description once, then a line for each.
class Printer {
 public:
  Printer(const Service& service, std::string& out) : service_(service), out_(out) {}

  template <typename Value>
  void value(const char* name, const char* type, const char* help, Value of) {
    describe(out_, name, type, help);
    for (const auto& model : service_.models())
      out_ += std::string(name) + "{" + labels(*model) + "} " + std::to_string(of(*model)) + "\n";
  }
  void histogram(const char* name, const char* help, Histogram ModelMetrics::*member) {
    describe(out_, name, "histogram", help);
    for (const auto& model : service_.models()) (model->metrics.*member).print(out_, name, labels(*model));
  }
  void finished() {
    const char* name = "ark_sequences_total";
    describe(out_, name, "counter", "Sequences by how they ended.");
    for (const auto& model : service_.models()) {
      const ModelMetrics& m = model->metrics;
      const auto line = [&](const char* reason, int64_t count) {
        out_ += std::string(name) + "{" + labels(*model) + "," + label("reason", reason) + "} " +
                std::to_string(count) + "\n";
      };
      line("stop", m.stop);
      line("length", m.length);
      line("cancelled", m.cancelled);
      line("failed", m.failed);
    }
  }

 private:
  static std::string labels(const Model& model) { return label("model", model.served.name); }
  const Service& service_;
  std::string& out_;
};

using Stats = schedule::SchedulerStats;

void print_models(const Service& service, std::string& out) {
  Printer print(service, out);
  const auto stat = [&](const char* name, const char* type, const char* help, int64_t Stats::*member) {
    print.value(name, type, help, [member](const Model& model) { return model.scheduler->stats().*member; });
  };
  stat("ark_requests_running", "gauge", "Sequences that take part in steps.", &Stats::running);
  stat("ark_requests_waiting", "gauge", "Sequences in the queue.", &Stats::waiting);
  stat("ark_kv_pages_held", "gauge", "Pages of cached keys and values in use.", &Stats::pages_held);
  stat("ark_kv_pages", "gauge", "Pages of cached keys and values that exist.", &Stats::pages_total);
  stat("ark_steps_total", "counter", "Steps of the model.", &Stats::steps);
  stat("ark_prompt_tokens_total", "counter", "Prompt tokens that were computed.", &Stats::prompt_tokens);
  stat("ark_generated_tokens_total", "counter", "Tokens that were sampled.", &Stats::generated_tokens);
  stat("ark_preemptions_total", "counter", "Sequences that gave their pages away and were computed again.",
       &Stats::preemptions);
  stat("ark_refused_total", "counter", "Sequences refused because the queue was full.", &Stats::refused);
  print.finished();
  print.histogram("ark_time_to_first_token_seconds", "From arrival to the first token.",
                  &ModelMetrics::first_token);
  print.histogram("ark_inter_token_latency_seconds", "Between two tokens of a sequence.",
                  &ModelMetrics::inter_token);
  print.histogram("ark_request_latency_seconds", "From arrival to the last token.",
                  &ModelMetrics::end_to_end);
  print.histogram("ark_queue_time_seconds", "From arrival to the first step.", &ModelMetrics::queue);
}

}  // namespace

void add_metrics(http::Router& router, Service& service, std::function<std::size_t()> open_connections) {
  const std::time_t start = std::time(nullptr);
  router.add(
      {"GET", "/metrics", [&service, start, open_connections = std::move(open_connections)](http::Request&) {
         http::Response response;
         response.content_type = "text/plain; version=0.0.4; charset=utf-8";
         std::string& out = response.body;
         const auto gauge = [&](const char* name, const char* help, int64_t value) {
           describe(out, name, "gauge", help);
           out += std::string(name) + " " + std::to_string(value) + "\n";
         };
         gauge("process_start_time_seconds", "Start of the process, Unix time.", start);
         gauge("process_resident_memory_bytes", "Resident memory of this process.", resident_bytes());
         gauge("ark_open_connections", "HTTP connections.", static_cast<int64_t>(open_connections()));
         service.metrics().print(out);
         print_models(service, out);
         return response;
       }});
}

}  // namespace ark::api
