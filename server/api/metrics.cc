// GET /metrics.
#include "server/api/metrics.h"

#include <dirent.h>
#include <sys/resource.h>

#include <cmath>
#include <cstdio>
#include <ctime>
#include <variant>

#include "base/energy.h"
#include "base/log_writer.h"
#include "engine/cuda/energy.h"
#include "server/api/endpoints.h"
#include "server/session/freed_memory.h"
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

// `name="value"`, with backslash, quote and newline escaped.
std::string label(std::string_view name, std::string_view value) {
  std::string out = std::string(name) + "=\"";
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return out + '"';
}

// "# HELP" and "# TYPE".
void describe(std::string& out, std::string_view name, std::string_view type, std::string_view help) {
  out += "# HELP " + std::string(name) + " " + std::string(help) + "\n# TYPE " + std::string(name) + " " +
         std::string(type) + "\n";
}

// One line; `labels` as `model="x"`, "" for none.
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
  one("process_resident_memory_bytes", "gauge", "Resident memory of this process.",
      static_cast<double>(session::resident_bytes()));
  one("process_cpu_seconds_total", "counter", "User and system CPU time of this process.", cpu_seconds());
  one("process_open_fds", "gauge", "Open file descriptors.", open_descriptors());
  one("process_max_fds", "gauge", "File descriptors that may be open.", most_descriptors());
  const auto energy = [&](const char* total, const char* power, const std::string& whose,
                          std::optional<double> joules, PowerMeter& meter) {
    if (!joules) return;
    const std::string of = " of the machine's " + whose + ", of all programs, since the ";
    one(total, "counter", ("Energy" + of + "first look.").c_str(), *joules);
    if (const auto watts = meter.watts(*joules))
      one(power, "gauge", ("Mean power" + of + "look before, one second at least.").c_str(), *watts);
  };
  static EnergyMeter processors;
  static cuda::GpuEnergy gpus;
  static PowerMeter power, gpu_power;
  energy("ark_energy_joules_total", "ark_power_watts", "processors", processors.joules(), power);
  energy("ark_gpu_energy_joules_total", "ark_gpu_power_watts", "GPUs", gpus.joules(), gpu_power);
}

using session::Statistics;
using Stats = schedule::SchedulerStats;

double used_share(const Model& model) {
  const Stats stats = model.scheduler->stats();
  return stats.pages_total ? static_cast<double>(stats.pages_held) / static_cast<double>(stats.pages_total)
                           : 0;
}

template <std::atomic<int64_t> schedule::PageTraffic::*kCount>
double traffic(const Model& model) {
  return static_cast<double>(((*model.served.page_traffic).*kCount).load());
}
using Traffic = schedule::PageTraffic;

// A metric of each model: what it is called here, and by vLLM, whose dashboards others have; null: not there.
struct Metric {
  const char *ours, *theirs, *type, *help;
  std::variant<int64_t Stats::*, double (*)(const Model&), session::Histogram Statistics::*> of;
};

const Metric kMetrics[] = {
    {"ark_load_seconds", nullptr, "gauge", "From the start of loading the model to its readiness.",
     [](const Model& model) { return model.served.load_seconds; }},
    {"ark_requests_running", "num_requests_running", "gauge", "Sequences that take part in steps.",
     &Stats::running},
    {"ark_requests_waiting", "num_requests_waiting", "gauge", "Sequences in the queue.", &Stats::waiting},
    {"ark_batch_sequences", nullptr, "gauge", "Sequences in the latest step.", &Stats::step_sequences},
    {"ark_batch_tokens", nullptr, "gauge", "Tokens in the latest step.", &Stats::step_tokens},
    {"ark_awaited_requests", nullptr, "gauge", "Requests that an idle server waits for (--energy-weight).",
     &Stats::gather},
    {"ark_step_processors", nullptr, "gauge",
     "Processors of each rank that steps may use (--energy-weight); 0: all.", &Stats::processors},
    {"ark_kv_pages_held", nullptr, "gauge", "Pages of cached keys and values in use.", &Stats::pages_held},
    {"ark_kv_pages_cached", nullptr, "gauge", "Pages that nobody uses, kept for prompts that begin alike.",
     &Stats::pages_cached},
    {"ark_kv_pages", nullptr, "gauge", "Pages of cached keys and values that exist.", &Stats::pages_total},
    {"ark_kv_usage_ratio", "kv_cache_usage_perc", "gauge",
     "Share of the pages of cached keys and values in use, 0 to 1.", used_share},
    {nullptr, "gpu_cache_usage_perc", "gauge", "The same by its older name.", used_share},
    {"ark_steps_total", nullptr, "counter", "Steps of the model.", &Stats::steps},
    {"ark_prompt_tokens_total", "prompt_tokens_total", "counter", "Prompt tokens that were computed.",
     &Stats::prompt_tokens},
    {"ark_prefix_queries_total", "prefix_cache_queries_total", "counter",
     "Prompt tokens of sequences that came to their first token.", &Stats::prefix_queries},
    {"ark_prefix_hits_total", "prefix_cache_hits_total", "counter",
     "Those of them that were cached and not computed again.", &Stats::prefix_hits},
    {"ark_kv_peer_questions_total", nullptr, "counter",
     "Questions to other servers for pages: a round trip each.", traffic<&Traffic::asked>},
    {"ark_kv_peer_failures_total", nullptr, "counter", "Those of them without a right answer in time.",
     traffic<&Traffic::failed>},
    {"ark_kv_pages_fetched_total", nullptr, "counter", "Pages that came from other servers.",
     traffic<&Traffic::fetched>},
    {"ark_kv_fetched_bytes_total", nullptr, "counter", "Their bytes.", traffic<&Traffic::fetched_bytes>},
    {"ark_kv_peer_answers_total", nullptr, "counter", "Questions of other servers.",
     traffic<&Traffic::answered>},
    {"ark_kv_peer_refusals_total", nullptr, "counter", "Other servers that were sent away.",
     traffic<&Traffic::refused>},
    {"ark_kv_pages_served_total", nullptr, "counter", "Pages that went to other servers.",
     traffic<&Traffic::served>},
    {"ark_kv_served_bytes_total", nullptr, "counter", "Their bytes.", traffic<&Traffic::served_bytes>},
    {"ark_kv_pages_changed_total", nullptr, "counter",
     "Pages that were given away as they were read for another server, which were not sent.",
     traffic<&Traffic::changed>},
    {"ark_kv_prefills_total", nullptr, "counter", "Prompts that were computed for other servers.",
     traffic<&Traffic::computed>},
    {"ark_drafts_total", "spec_decode_num_drafts_total", "counter",
     "Times that a sequence's step checked guesses of what follows.", &Stats::drafts},
    {"ark_draft_tokens_total", "spec_decode_num_draft_tokens_total", "counter", "Tokens of these guesses.",
     &Stats::draft_tokens},
    {"ark_draft_accepted_tokens_total", "spec_decode_num_accepted_tokens_total", "counter",
     "Those of them that the model sampled itself.", &Stats::accepted_tokens},
    {"ark_generated_tokens_total", "generation_tokens_total", "counter", "Tokens that were sampled.",
     &Stats::generated_tokens},
    {"ark_exchanged_bytes_total", nullptr, "counter",
     "Bytes that ranks of the model's process sent to others, where it runs on CPUs.", &Stats::sent_bytes},
    {"ark_exchanged_zero_bytes_total", nullptr, "counter",
     "Bytes that they did not send, as these are zeros by the plan.", &Stats::unsent_zeros},
    {"ark_reduced_by_pump_total", nullptr, "counter",
     "All-reduces of these ranks that their pumps added up as the parts arrived.", &Stats::reduced_by_pump},
    {"ark_reduced_by_processors_total", nullptr, "counter", "All-reduces that their processors added up.",
     &Stats::reduced_by_processors},
    {"ark_preemptions_total", "num_preemptions_total", "counter",
     "Sequences that gave their pages away and were computed again.", &Stats::preemptions},
    {"ark_restarts_total", nullptr, "counter", "Times that the model's process died and was started again.",
     &Stats::restarts},
    {"ark_refused_total", nullptr, "counter", "Sequences refused because the queue was full.",
     &Stats::refused},
    {"ark_nonfinite_logits_total", nullptr, "counter",
     "Sequences that ended as their logits were not finite.", &Stats::nonfinite},
    {"ark_time_to_first_token_seconds", "time_to_first_token_seconds", "histogram",
     "From arrival to the first token.", &Statistics::first_token},
    {"ark_inter_token_latency_seconds", "time_per_output_token_seconds", "histogram",
     "Between two tokens of a sequence.", &Statistics::inter_token},
    {nullptr, "inter_token_latency_seconds", "histogram", "The same by its newer name.",
     &Statistics::inter_token},
    {"ark_request_latency_seconds", "e2e_request_latency_seconds", "histogram",
     "From arrival to the last token.", &Statistics::end_to_end},
    {"ark_queue_time_seconds", "request_queue_time_seconds", "histogram", "From arrival to the first step.",
     &Statistics::queue},
};

// How sequences ended.
struct Ending {
  const char *ours, *theirs;
  std::atomic<int64_t> Statistics::*count;
};
constexpr Ending kEndings[] = {{"stop", "stop", &Statistics::stop},
                               {"length", "length", &Statistics::length},
                               {"cancelled", "abort", &Statistics::cancelled},
                               {"failed", "error", &Statistics::failed}};

void print_models(const Service& service, std::string& out, bool by_vllm) {
  const auto labels = [&](const Model& model) {
    return label(by_vllm ? "model_name" : "model", model.name());
  };
  for (const Metric& metric : kMetrics) {
    if (!(by_vllm ? metric.theirs : metric.ours)) continue;
    const std::string name = by_vllm ? std::string("vllm:") + metric.theirs : metric.ours;
    describe(out, name, metric.type, metric.help);
    for (const auto& model : service.models()) {
      if (const auto* histogram = std::get_if<session::Histogram Statistics::*>(&metric.of))
        series(out, name, labels(*model), model->statistics.**histogram);
      else if (const auto* count = std::get_if<int64_t Stats::*>(&metric.of))
        series(out, name, labels(*model), static_cast<double>(model->scheduler->stats().**count));
      else
        series(out, name, labels(*model), std::get<double (*)(const Model&)>(metric.of)(*model));
    }
  }
  const char* name = by_vllm ? "vllm:request_success_total" : "ark_sequences_total";
  describe(out, name, "counter", "Sequences by how they ended.");
  for (const auto& model : service.models())
    for (const Ending& ending : kEndings)
      series(out, name,
             labels(*model) + "," +
                 label(by_vllm ? "finished_reason" : "reason", by_vllm ? ending.theirs : ending.ours),
             static_cast<double>(model->statistics.*ending.count));
}

// Of ranks that were never waited for there is nothing to tell.
void print_ranks(const Service& service, std::string& out) {
  const char* name = "ark_rank_awaited_seconds_total";
  describe(out, name, "counter",
           "Seconds that steps took longer by one rank, which was late or had no core (lost_core).");
  const auto print = [&](const Model& model, const std::vector<int64_t>& by_rank, const char* cause) {
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank)
      series(out, name,
             label("model", model.name()) + "," + label("rank", std::to_string(rank)) + "," +
                 label("cause", cause),
             static_cast<double>(by_rank[rank]) * 1e-9);
  };
  for (const auto& model : service.models()) {
    const Stats stats = model->scheduler->stats();
    print(*model, stats.late_ns, "late_rank");
    print(*model, stats.coreless_ns, "lost_core");
  }
}

http::Response metrics_response() {
  http::Response response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  return response;
}

http::Response print_all(Service& service, http::Request&) {
  http::Response response = metrics_response();
  std::string& out = response.body;
  describe(out, "ark_build_info", "gauge", "1; the labels say what is running.");
  series(out, "ark_build_info", label("version", kVersion), 1);
  print_process(out);
  describe(out, "ark_open_connections", "gauge", "HTTP connections.");
  series(out, "ark_open_connections", "", static_cast<double>(service.open_connections()));
  describe(out, "ark_log_lines_dropped_total", "counter",
           "Log lines that standard error did not take in time.");
  series(out, "ark_log_lines_dropped_total", "", static_cast<double>(LogWriter::instance().dropped()));
  describe(out, "ark_records_dropped_total", "counter",
           "Records of requests that --trace-dir or --otlp-endpoint did not take.");
  series(out, "ark_records_dropped_total", "", static_cast<double>(service.dropped_records()));
  service.metrics().print(out);
  print_models(service, out, false);
  print_ranks(service, out);
  print_models(service, out, true);  // dashboards for vLLM ask here
  return response;
}

http::Response print_by_vllm(Service& service, http::Request&) {
  http::Response response = metrics_response();
  print_models(service, response.body, true);
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

std::vector<Endpoint> metrics() {
  return {{.method = "GET",
           .path = "/metrics",
           .id = "metrics",
           .summary = "Prometheus metrics; those of the models also by vLLM's names.",
           .handle = print_all,
           .is_probe = true},
          {.method = "GET",
           .path = "/metrics/vllm",
           .id = "metricsByVllm",
           .summary = "Of these only those by vLLM's names.",
           .handle = print_by_vllm,
           .is_probe = true}};
}

}  // namespace ark::api
