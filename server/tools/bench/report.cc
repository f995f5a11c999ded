#include "server/tools/bench/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>

#include "base/error.h"
#include "server/json.h"

namespace ark::bench {
namespace {

using Values = std::vector<double>;

double mean(const Values& v) {
  return v.empty() ? 0 : std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size());
}

double deviation(const Values& v) {
  const double m = mean(v);
  double squares = 0;
  for (const double x : v) squares += (x - m) * (x - m);
  return v.empty() ? 0 : std::sqrt(squares / static_cast<double>(v.size()));
}

// Of sorted values; between two of them linear, as numpy does.
double percentile(const Values& sorted, double p) {
  if (sorted.empty()) return 0;
  const double at = p / 100 * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - static_cast<double>(low));
}

// 99 -> "99", 99.9 -> "99.9".
std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

int64_t output_tokens(const Outcome& outcome, const text::Tokenizer* tokenizer) {
  if (outcome.output_tokens) return *outcome.output_tokens;
  if (tokenizer) return static_cast<int64_t>(tokenizer->encode(outcome.text, false).size());
  return outcome.latency > outcome.first || !outcome.text.empty()
             ? static_cast<int64_t>(outcome.intervals.size()) + 1
             : 0;
}

// A change of something that is counted, `at` seconds after the run's begin.
struct Change {
  double at = 0, by = 0;
};

// The most tokens that came within a second, or the whole run's rate where that is more: a short run has no second.
double peak_rate(std::vector<Change> tokens, double mean_rate) {
  std::sort(tokens.begin(), tokens.end(), [](const Change& a, const Change& b) { return a.at < b.at; });
  double within = 0, most = mean_rate;
  for (std::size_t first = 0, last = 0; last < tokens.size(); ++last) {
    within += tokens[last].by;
    while (tokens[first].at <= tokens[last].at - 1) within -= tokens[first++].by;
    most = std::max(most, within);
  }
  return most;
}

double peak_sum(std::vector<Change> changes) {
  // What ends where another begins is not counted with it.
  std::sort(changes.begin(), changes.end(),
            [](const Change& a, const Change& b) { return std::pair(a.at, a.by) < std::pair(b.at, b.by); });
  double sum = 0, most = 0;
  for (const Change& change : changes) most = std::max(most, sum += change.by);
  return most;
}

// An answer's tokens are spread evenly over its events.
void add_peaks(const std::vector<Outcome>& outcomes, const std::vector<int64_t>& lengths, Json& result) {
  std::vector<Change> tokens, requests;
  Clock::time_point begin = Clock::time_point::max();
  for (const Outcome& o : outcomes) begin = std::min(begin, o.start);
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const Outcome& o = outcomes[i];
    if (!o.ok) continue;
    const double start = std::chrono::duration<double>(o.start - begin).count();
    const double each = static_cast<double>(lengths[i]) / static_cast<double>(o.intervals.size() + 1);
    tokens.push_back({start + o.first, each});
    for (const double interval : o.intervals) tokens.push_back({tokens.back().at + interval, each});
    requests.push_back({start, 1});
    requests.push_back({start + o.latency, -1});
  }
  result["max_output_tokens_per_s"] = peak_rate(std::move(tokens), result["output_throughput"].get<double>());
  result["max_concurrent_requests"] = static_cast<int64_t>(peak_sum(std::move(requests)));
}

void add_details(const std::vector<Outcome>& outcomes, const std::vector<int64_t>& lengths, Json& result) {
  for (const char* name : {"input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors"})
    result[name] = Json::array();
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const Outcome& o = outcomes[i];
    result["input_lens"].push_back(o.input_tokens);
    result["output_lens"].push_back(lengths[i]);
    result["ttfts"].push_back(o.ok ? o.first : 0);
    result["itls"].push_back(o.ok ? o.intervals : Values());
    result["generated_texts"].push_back(o.text);
    result["errors"].push_back(o.error);
  }
}

struct Metrics {
  std::map<std::string, Values> by_name;  // milliseconds, of all requests that succeeded
  int64_t completed = 0, good = 0, input = 0, output = 0;
};

Metrics collect(const ServeOptions& options, const std::vector<Outcome>& outcomes,
                const std::vector<int64_t>& lengths) {
  Metrics m;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const Outcome& o = outcomes[i];
    if (!o.ok) continue;
    std::map<std::string, double> own = {{"ttft", o.first * 1e3}, {"e2el", o.latency * 1e3}, {"tpot", 0}};
    if (lengths[i] > 1) {
      own["tpot"] = (o.latency - o.first) * 1e3 / static_cast<double>(lengths[i] - 1);
      m.by_name["tpot"].push_back(own["tpot"]);
    }
    m.by_name["ttft"].push_back(own["ttft"]);
    m.by_name["e2el"].push_back(own["e2el"]);
    for (const double interval : o.intervals) m.by_name["itl"].push_back(interval * 1e3);
    ++m.completed;
    m.input += o.input_tokens;
    m.output += lengths[i];
    m.good += std::all_of(options.goodput.begin(), options.goodput.end(),
                          [&](const auto& limit) { return own[limit.first] <= limit.second; });
  }
  return m;
}

void add_metric(const ServeOptions& options, const std::string& name, Values values, Json& result) {
  std::sort(values.begin(), values.end());
  result["mean_" + name + "_ms"] = mean(values);
  result["median_" + name + "_ms"] = percentile(values, 50);
  result["std_" + name + "_ms"] = deviation(values);
  for (const double p : options.percentiles)
    result["p" + short_number(p) + "_" + name + "_ms"] = percentile(values, p);
}

std::string row(const std::string& name, double value, bool whole) {
  char line[96];
  std::snprintf(line, sizeof line, whole ? "%-40s %-10.0f\n" : "%-40s %-10.2f\n", (name + ":").c_str(),
                value);
  return line;
}

std::string heading(const std::string& text, char fill) {
  const std::string side((50 - std::min<std::size_t>(text.size(), 50)) / 2, fill);
  return side + text + std::string(50 - side.size() - std::min<std::size_t>(text.size(), 50), fill) + "\n";
}

}  // namespace

Json figures(const ServeOptions& options, const Traffic& traffic, const text::Tokenizer* tokenizer) {
  std::vector<int64_t> lengths;
  for (const Outcome& o : traffic.outcomes) lengths.push_back(o.ok ? output_tokens(o, tokenizer) : 0);
  Metrics m = collect(options, traffic.outcomes, lengths);
  const auto per_second = [&](int64_t count) { return static_cast<double>(count) / traffic.seconds; };
  Json result;
  result["duration"] = traffic.seconds;
  result["completed"] = m.completed;
  result["failed"] = static_cast<int64_t>(traffic.outcomes.size()) - m.completed;
  result["total_input_tokens"] = m.input;
  result["total_output_tokens"] = m.output;
  result["request_throughput"] = per_second(m.completed);
  result["request_goodput"] = options.goodput.empty() ? Json() : Json(per_second(m.good));
  result["output_throughput"] = per_second(m.output);
  result["total_token_throughput"] = per_second(m.input + m.output);
  add_peaks(traffic.outcomes, lengths, result);
  for (const std::string& name : options.percentile_metrics)
    add_metric(options, name, m.by_name[name], result);
  if (options.save_detailed) add_details(traffic.outcomes, lengths, result);
  return result;
}

std::string table(const ServeOptions& options, const Json& result) {
  const auto line = [&](const std::string& name, const std::string& key, bool whole) {
    return row(name, result.at(key).get<double>(), whole);
  };
  std::string text = heading(" Serving Benchmark Result ", '=');
  text += line("Successful requests", "completed", true) + line("Failed requests", "failed", true);
  if (options.max_concurrency > 0)
    text += row("Maximum request concurrency", static_cast<double>(options.max_concurrency), true);
  if (options.request_rate > 0) text += row("Request rate configured (RPS)", options.request_rate, false);
  text += line("Benchmark duration (s)", "duration", false) +
          line("Total input tokens", "total_input_tokens", true) +
          line("Total generated tokens", "total_output_tokens", true) +
          line("Request throughput (req/s)", "request_throughput", false);
  if (!options.goodput.empty()) text += line("Request goodput (req/s)", "request_goodput", false);
  text += line("Output token throughput (tok/s)", "output_throughput", false) +
          line("Peak output token throughput (tok/s)", "max_output_tokens_per_s", false) +
          line("Peak concurrent requests", "max_concurrent_requests", false) +
          line("Total token throughput (tok/s)", "total_token_throughput", false);
  static const std::map<std::string, std::pair<const char*, const char*>> kNames = {
      {"ttft", {"TTFT", " Time to First Token "}},
      {"tpot", {"TPOT", " Time per Output Token (excl. 1st token) "}},
      {"itl", {"ITL", " Inter-token Latency "}},
      {"e2el", {"E2EL", " End-to-end Latency "}}};
  for (const std::string& name : options.percentile_metrics) {
    const auto& [capitals, title] = kNames.at(name);
    const std::string unit = std::string(" ") + capitals + " (ms)";
    text += heading(title, '-') + line("Mean" + unit, "mean_" + name + "_ms", false) +
            line("Median" + unit, "median_" + name + "_ms", false);
    for (const double p : options.percentiles)
      text += line("P" + short_number(p) + unit, "p" + short_number(p) + "_" + name + "_ms", false);
  }
  return text + std::string(50, '=') + "\n";
}

}  // namespace ark::bench
