#include "server/tools/bench/blame.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "server/json.h"

namespace ark::bench {
namespace {

constexpr std::size_t kMost = 100;    // requests that the server tells of at once
constexpr int64_t kMostMinutes = 15;  // that it remembers
constexpr double kTelling = 0.05;     // share of the time from which on a cause has its line
constexpr std::pair<const char*, std::pair<const char*, const char*>> kMetrics[] = {
    {"ttft", {"first_token", "first_token"}},
    {"itl", {"pause", "longest_pause"}},
    {"e2el", {"total", "total"}}};

double number(const Json& from, const char* name) {
  const auto at = from.find(name);
  return at != from.end() && at->is_number() ? at->get<double>() : 0;
}

// The mean of what the requests tell at `name`.
Json mean_of(const Json& requests, const char* name) {
  double ms = 0;
  int64_t count = 0;
  std::vector<std::pair<std::string, double>> causes;
  for (const Json& request : requests) {
    const auto told = request.is_object() ? request.find(name) : request.end();
    if (told == request.end() || !told->is_object() || !told->contains("causes") ||
        !(*told)["causes"].is_object())
      continue;
    ++count;
    ms += number(*told, "ms");
    for (const auto& [cause, value] : (*told)["causes"].items()) {
      if (!value.is_number()) continue;
      auto found = std::ranges::find(causes, cause, &std::pair<std::string, double>::first);
      if (found == causes.end()) found = causes.insert(found, {cause, 0});
      found->second += value.get<double>();
    }
  }
  if (count == 0) return {};
  std::ranges::stable_sort(causes, std::greater(), &std::pair<std::string, double>::second);
  const auto each = static_cast<double>(count);
  Json all = Json::object();
  for (const auto& [cause, sum] : causes) all[cause] = sum / each;
  return {{"requests", count}, {"ms", ms / each}, {"causes", std::move(all)}};
}

}  // namespace

Json blame_of_p99(const ServeOptions& options, const Traffic& traffic) {
  Json blame = Json::object();
  if (traffic.outcomes.empty()) return blame;
  const std::size_t count = std::clamp<std::size_t>(traffic.outcomes.size() / 100, 1, kMost);
  const auto minutes =
      std::clamp<int64_t>(static_cast<int64_t>(std::ceil(traffic.seconds / 60)), 1, kMostMinutes);
  ApiClient client(options);
  for (const auto& [metric, names] : kMetrics) {
    const Json page = client.page(std::string("/debug/slow?by=") + names.first +
                                  "&n=" + std::to_string(count) + "&minutes=" + std::to_string(minutes));
    if (!page.is_object() || !page.contains("requests") || !page["requests"].is_array()) break;
    if (Json mean = mean_of(page["requests"], names.second); !mean.is_null()) blame[metric] = std::move(mean);
  }
  return blame;
}

std::string blame_table(const Json& result) {
  const auto found = result.find("p99_blame");
  if (found == result.end()) return "";
  std::string text = "What took the slowest hundredth, in milliseconds (the server's /debug/slow):\n";
  char line[96];
  for (const auto& [metric, told] : found->items()) {
    const double ms = number(told, "ms");
    std::snprintf(line, sizeof line, "%-6s %9.2f  ", metric.c_str(), ms);
    text += line;
    const char* separator = "";
    for (const auto& [cause, value] : told.at("causes").items()) {
      if (value.get<double>() < kTelling * ms) continue;
      std::snprintf(line, sizeof line, "%s%s %.2f", std::exchange(separator, ", "), cause.c_str(),
                    value.get<double>());
      text += line;
    }
    text += "\n";
  }
  return text;
}

}  // namespace ark::bench
