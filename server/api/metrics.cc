#include "server/api/metrics.h"

#include <cstdio>

namespace ark::api {
namespace {

std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

}  // namespace

void Histogram::observe(double seconds, int64_t times) {
  std::size_t bucket = 0;
  while (bucket < kBounds.size() && seconds > kBounds[bucket]) ++bucket;
  buckets_[bucket].fetch_add(times, std::memory_order_relaxed);
  sum_.fetch_add(seconds * static_cast<double>(times), std::memory_order_relaxed);
}

void Histogram::print(std::string& out, std::string_view name, const std::string& labels) const {
  int64_t count = 0;
  for (std::size_t i = 0; i <= kBounds.size(); ++i) {
    count += buckets_[i].load(std::memory_order_relaxed);
    const std::string bound = i < kBounds.size() ? number(kBounds[i]) : "+Inf";
    out += std::string(name) + "_bucket{" + labels + ",le=\"" + bound + "\"} " + std::to_string(count) + "\n";
  }
  out += std::string(name) + "_sum{" + labels + "} " + number(sum_.load(std::memory_order_relaxed)) + "\n";
  out += std::string(name) + "_count{" + labels + "} " + std::to_string(count) + "\n";
}

void ServerMetrics::count(const std::string& route, int status) {
  std::lock_guard lock(mutex_);
  ++requests_[{route, status}];
}

void ServerMetrics::print(std::string& out) const {
  describe(out, "ark_http_requests_total", "counter", "HTTP requests by route and status.");
  std::lock_guard lock(mutex_);
  for (const auto& [key, count] : requests_)
    out += "ark_http_requests_total{" + label("route", std::get<0>(key)) + "," +
           label("status", std::to_string(std::get<1>(key))) + "} " + std::to_string(count) + "\n";
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

}  // namespace ark::api
