#include "server/text/stop_checker.h"

#include <algorithm>
#include <utility>

namespace ark::text {
namespace {

// Length of the longest end of `text` that is a beginning, but not all, of `stop`.
std::size_t started(std::string_view text, std::string_view stop) {
  for (std::size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n)
    if (text.ends_with(stop.substr(0, n))) return n;
  return 0;
}

}  // namespace

StopChecker::StopChecker(std::vector<std::string> stops, bool include_stop)
    : stops_(std::move(stops)), include_stop_(include_stop) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopChecker::push(std::string_view text) {
  if (stopped()) return {};
  held_ += text;
  std::size_t begin = std::string::npos, end = std::string::npos;
  for (std::size_t i = 0; i < stops_.size(); ++i) {
    const std::string& stop = stops_[i];
    const std::size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    if (at + stop.size() < end || (at + stop.size() == end && at < begin)) {
      begin = at;
      end = at + stop.size();
      match_ = static_cast<int>(i);
    }
  }
  if (stopped()) {
    held_.resize(include_stop_ ? end : begin);
    return std::exchange(held_, {});
  }
  std::size_t hold = 0;
  for (const std::string& stop : stops_) hold = std::max(hold, started(held_, stop));
  std::string out = held_.substr(0, held_.size() - hold);
  held_.erase(0, held_.size() - hold);
  return out;
}

std::string StopChecker::flush() { return std::exchange(held_, {}); }

}  // namespace ark::text
