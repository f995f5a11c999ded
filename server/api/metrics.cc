// GET /metrics.
#include "server/api/metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>

#include "server/api/endpoints.h"
#include "server/version.h"

namespace ark::api {
namespace {

const std::time_t kStart = std::time(nullptr);

std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, value == std::floor(value) && std::abs(value) < 1e15 ? "%.0f" : "%.9g",
                value);
  return text;
}

double resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  double total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

double cpu_seconds() {  // of all threads, in user and system mode
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double open_descriptors() {
  DIR* folder = ::opendir("/proc/self/fd");
  if (!folder) return 0;
  double count = -1;  // the folder's own
  while (const dirent* entry = ::readdir(folder)) count += entry->d_name[0] != '.';
  ::closedir(folder);
  return count;
}

double most_descriptors() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<double>(limit.rlim_cur) : 0;
}

// Of the process, by the names that Prometheus' client libraries use.
void print_process(std::string& out) {
  const auto one = [&](const char* name, const char* type, const char* help, double value) {
    describe(out, name, type, help);
    series(out, name, "", value);
  };
  one("process_start_time_seconds", "gauge", "Start of the process, Unix time.", static_cast<double>(kStart));
  one("process_resident_memory_bytes", "gauge", "Resident memory of this process.", resident_bytes());
  one("process_cpu_seconds_total", "counter", "User and system CPU time of this process.", cpu_seconds());
  one("process_open_fds", "gauge", "Open file descriptors.", open_descriptors());
  one("process_max_fds", "gauge", "File descriptors that may be open.", most_descriptors());
}

// One metric over all models: its description once, then a line for each.
class Printer {
 public:
  Printer(const Service& service, std::string& out) : service_(service), out_(out) {}

  template <typename Value>
  void value(const char* name, const char* type, const char* help, Value of) {
    describe(out_, name, type, help);
    for (const auto& model : service_.models())
      series(out_, name, labels(*model), static_cast<double>(of(*model)));
  }
  void histogram(const char* name, const char* help, session::Histogram session::Statistics::*member) {
    describe(out_, name, "histogram", help);
    for (const auto& model : service_.models()) series(out_, name, labels(*model), model->statistics.*member);
  }
  void finished() {
    const char* name = "ark_sequences_total";
    describe(out_, name, "counter", "Sequences by how they ended.");
    for (const auto& model : service_.models()) {
      const session::Statistics& s = model->statistics;
      const auto line = [&](const char* reason, int64_t count) {
        series(out_, name, labels(*model) + "," + label("reason", reason), static_cast<double>(count));
      };
      line("stop", s.stop);
      line("length", s.length);
      line("cancelled", s.cancelled);
      line("failed", s.failed);
    }
  }

 private:
  static std::string labels(const Model& model) { return label("model", model.name()); }
  const Service& service_;
  std::string& out_;
};

using Stats = schedule::SchedulerStats;

double used_share(const Model& model) {
  const Stats stats = model.scheduler->stats();
  return stats.pages_total ? static_cast<double>(stats.pages_held) / static_cast<double>(stats.pages_total)
                           : 0;
}

void print_models(const Service& service, std::string& out) {
  Printer print(service, out);
  const auto stat = [&](const char* name, const char* type, const char* help, int64_t Stats::*member) {
    print.value(name, type, help, [member](const Model& model) { return model.scheduler->stats().*member; });
  };
  print.value("ark_load_seconds", "gauge", "From the start of loading the model to its readiness.",
              [](const Model& model) { return model.served.load_seconds; });
  stat("ark_requests_running", "gauge", "Sequences that take part in steps.", &Stats::running);
  stat("ark_requests_waiting", "gauge", "Sequences in the queue.", &Stats::waiting);
  stat("ark_batch_sequences", "gauge", "Sequences in the latest step.", &Stats::step_sequences);
  stat("ark_batch_tokens", "gauge", "Tokens in the latest step.", &Stats::step_tokens);
  stat("ark_kv_pages_held", "gauge", "Pages of cached keys and values in use.", &Stats::pages_held);
  stat("ark_kv_pages", "gauge", "Pages of cached keys and values that exist.", &Stats::pages_total);
  print.value("ark_kv_usage_ratio", "gauge", "Share of the pages of cached keys and values in use, 0 to 1.",
              used_share);
  stat("ark_steps_total", "counter", "Steps of the model.", &Stats::steps);
  stat("ark_prompt_tokens_total", "counter", "Prompt tokens that were computed.", &Stats::prompt_tokens);
  stat("ark_generated_tokens_total", "counter", "Tokens that were sampled.", &Stats::generated_tokens);
  stat("ark_preemptions_total", "counter", "Sequences that gave their pages away and were computed again.",
       &Stats::preemptions);
  stat("ark_restarts_total", "counter", "Times that the model's process died and was started again.",
       &Stats::restarts);
  stat("ark_refused_total", "counter", "Sequences refused because the queue was full.", &Stats::refused);
  print.finished();
  print.histogram("ark_time_to_first_token_seconds", "From arrival to the first token.",
                  &session::Statistics::first_token);
  print.histogram("ark_inter_token_latency_seconds", "Between two tokens of a sequence.",
                  &session::Statistics::inter_token);
  print.histogram("ark_request_latency_seconds", "From arrival to the last token.",
                  &session::Statistics::end_to_end);
  print.histogram("ark_queue_time_seconds", "From arrival to the first step.", &session::Statistics::queue);
}

http::Response print_all(Service& service, http::Request&) {
  http::Response response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  std::string& out = response.body;
  describe(out, "ark_build_info", "gauge", "1; the labels say what is running.");
  series(out, "ark_build_info", label("version", kVersion), 1);
  print_process(out);
  describe(out, "ark_open_connections", "gauge", "HTTP connections.");
  series(out, "ark_open_connections", "", static_cast<double>(service.open_connections()));
  service.metrics().print(out);
  print_models(service, out);
  return response;
}

}  // namespace

void ServerMetrics::count(const std::string& route, int status) {
  std::lock_guard lock(mutex_);
  ++requests_[{route.empty() ? "none" : route, status}];
}

void ServerMetrics::print(std::string& out) const {
  const char* name = "ark_http_requests_total";
  describe(out, name, "counter",
           "HTTP requests by route and status; route \"none\": no such path or method.");
  std::lock_guard lock(mutex_);
  for (const auto& [key, count] : requests_)
    series(out, name, label("route", key.first) + "," + label("status", std::to_string(key.second)),
           static_cast<double>(count));
}

std::string label(std::string_view name, std::string_view value) {
  std::string out = std::string(name) + "=\"";
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return out + '"';
}

void describe(std::string& out, std::string_view name, std::string_view type, std::string_view help) {
  out += "# HELP " + std::string(name) + " " + std::string(help) + "\n# TYPE " + std::string(name) + " " +
         std::string(type) + "\n";
}

void series(std::string& out, std::string_view name, std::string_view labels, double value) {
  out += std::string(name) + (labels.empty() ? "" : "{" + std::string(labels) + "}") + " " + number(value) +
         "\n";
}

void series(std::string& out, std::string_view name, std::string_view labels,
            const session::Histogram& histogram) {
  const std::string stem(name), all(labels);
  int64_t count = 0;
  for (std::size_t i = 0; i <= session::Histogram::kBounds.size(); ++i) {
    count += histogram.bucket(i);
    const std::string bound =
        i < session::Histogram::kBounds.size() ? number(session::Histogram::kBounds[i]) : "+Inf";
    series(out, stem + "_bucket", all + ",le=\"" + bound + "\"", static_cast<double>(count));
  }
  series(out, stem + "_sum", all, histogram.sum());
  series(out, stem + "_count", all, static_cast<double>(count));
}

std::vector<Endpoint> metrics() {
  return {{.method = "GET",
           .path = "/metrics",
           .id = "metrics",
           .summary = "Prometheus metrics.",
           .handle = print_all,
           .is_probe = true}};
}

}  // namespace ark::api
