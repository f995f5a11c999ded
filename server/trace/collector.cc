#include "server/trace/collector.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "base/random.h"
#include "server/json.h"
#include "server/trace/spans.h"

namespace ark::trace {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kTimeout = 5s, kLastTimeout = 300ms;  // the latter once the server ends
constexpr std::chrono::milliseconds kFirstPause{500};  // before it is asked again; doubled each time
constexpr int kTries = 4;

// As OTLP has it: what another try may change.
bool may_pass(int status) { return status == 0 || status == 429 || (status >= 502 && status <= 504); }

void sleep(std::chrono::milliseconds time, const std::stop_token& stop) {
  std::mutex none;
  std::unique_lock lock(none);
  std::condition_variable_any never;
  never.wait_for(lock, stop, time, [] { return false; });
}

int64_t unix_minus_steady() {
  const auto unix_time = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::nanoseconds(unix_time).count() -
         std::chrono::nanoseconds(Slowest::Clock::now().time_since_epoch()).count();
}

}  // namespace

Collector::Collector(const std::string& url) : url_(parse_url("--otlp-endpoint", url)) {}

std::size_t Collector::send(const std::vector<RecordPtr>& records, const std::stop_token& stop) {
  std::vector<RecordPtr> wanted;
  for (const RecordPtr& record : records)
    if (record->origin.is_sampled) wanted.push_back(record);
  if (wanted.empty()) return 0;
  const std::string body = to_text(spans_of(wanted, unix_minus_steady(), random_word));
  Posted posted;
  auto pause = kFirstPause;
  for (int tries = 0; tries < kTries; ++tries, pause *= 2) {
    const auto begin = Slowest::Clock::now();
    posted = post(url_, "/v1/traces", body, [&] {
      return Slowest::Clock::now() - begin > (stop.stop_requested() ? kLastTimeout : kTimeout);
    });
    if (posted.status / 100 == 2) {
      has_warned_ = false;
      return 0;
    }
    if (!may_pass(posted.status) || stop.stop_requested()) break;
    sleep(pause, stop);
  }
  if (!std::exchange(has_warned_, true))
    log_line(
        LogLevel::kWarning, "the collector of --otlp-endpoint does not take spans",
        {{"host", url_.host}, {"why", posted.status ? "HTTP " + std::to_string(posted.status) : posted.why}});
  return wanted.size();
}

}  // namespace ark::trace
