#include "server/trace/files.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "server/json.h"
#include "server/trace/report.h"

namespace ark::trace {
namespace {

namespace fs = std::filesystem;
using schedule::Cause, schedule::Record, schedule::Span;

constexpr std::string_view kPrefix = "ark-slow-", kSuffix = ".json";
constexpr std::size_t kMostOfId = 64;  // of a file's name

Json slice(const std::string& name, int track, int64_t begin_ns, int64_t ns, Json arguments) {
  return {{"name", name},
          {"ph", "X"},
          {"pid", 1},
          {"tid", track},
          {"ts", static_cast<double>(begin_ns) / 1e3},
          {"dur", static_cast<double>(ns) / 1e3},
          {"args", std::move(arguments)}};
}

Json label(const char* what, int track, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", 1}, {"tid", track}, {"args", {{"name", name}}}};
}

// 20261123T121530.042Z-<id>-7: in the order of time, and good for any file system.
std::string name_of(const Record& record, uint64_t number) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  std::tm utc{};
  ::gmtime_r(&now.tv_sec, &utc);
  char time[32], fraction[32];
  std::strftime(time, sizeof time, "%Y%m%dT%H%M%S", &utc);
  std::snprintf(fraction, sizeof fraction, ".%03ldZ-", now.tv_nsec / 1'000'000);
  std::string id = record.origin.id.substr(0, kMostOfId);
  std::ranges::replace_if(
      id, [](unsigned char c) { return !std::isalnum(c) && c != '-' && c != '_'; }, '_');
  return std::string(kPrefix) + time + fraction + id + "-" + std::to_string(number) + std::string(kSuffix);
}

// Whole or not at all: under its name it never stands half.
bool write_whole(const fs::path& file, const std::string& text) {
  const fs::path part = file.string() + ".part";
  std::ofstream out(part, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  std::error_code error;
  if (out) {
    fs::rename(part, file, error);
    if (!error) return true;
  }
  const int why = errno;
  fs::remove(part, error);
  errno = why;
  return false;
}

}  // namespace

std::string perfetto_text(const Record& record) {
  Json events =
      Json::array({label("process_name", 0, "request " + record.origin.id), label("thread_name", 1, "phases"),
                   label("thread_name", 2, "causes, in each phase by name")});
  const Json timeline = report_of(record).at("timeline");
  for (std::size_t i = 0; i < record.spans.size(); ++i) {
    const Span& span = record.spans[i];
    events.push_back(
        slice(schedule::name_of(span.phase), 1, span.begin_ns, span.end_ns - span.begin_ns, timeline[i]));
    int64_t at = span.begin_ns;
    for (std::size_t c = 0; c < schedule::kCauses; ++c) {
      if (span.shares.ns[c] <= 0) continue;
      events.push_back(slice(text_of(static_cast<Cause>(c)).name, 2, at, span.shares.ns[c], Json::object()));
      at += span.shares.ns[c];
    }
  }
  Json report = report_of(record);
  report.erase("timeline");
  return to_text({{"displayTimeUnit", "ms"},
                  {"otherData", std::move(report)},
                  {"traceEvents", std::move(events)}}) +
         "\n";
}

TraceFiles::TraceFiles(fs::path folder, std::chrono::nanoseconds slower_than)
    : folder_(std::move(folder)), slower_than_(slower_than) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error || ::access(folder_.c_str(), W_OK | X_OK) != 0)
    throw Error(Code::kOs, "--trace-dir " + escaped(folder_.string()) + ": " +
                               (error ? error.message() : std::string(std::strerror(errno))));
  for (const std::string& name : names_in(folder_)) {
    const fs::path file = folder_ / name;
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix) || !fs::is_regular_file(file, error)) continue;
    const auto size = static_cast<int64_t>(fs::file_size(file, error));
    if (!error) files_.emplace_back(file, size);
  }
  std::ranges::sort(files_);
  for (const auto& [file, size] : files_) bytes_ += size;
}

std::size_t TraceFiles::write(const std::vector<RecordPtr>& records) {
  std::size_t lost = 0;
  for (const RecordPtr& record : records)
    if (record->total_ns() >= slower_than_.count() && !write(*record)) ++lost;
  return lost;
}

bool TraceFiles::write(const Record& record) {
  const std::string text = perfetto_text(record);
  const auto size = static_cast<int64_t>(text.size());
  make_room(size);
  const fs::path file = folder_ / name_of(record, ++count_);
  if (write_whole(file, text)) {
    files_.emplace_back(file, size);
    bytes_ += size;
    has_warned_ = false;
    return true;
  }
  if (!std::exchange(has_warned_, true))
    log_line(LogLevel::kWarning, "traces of slow requests cannot be written; --trace-dir",
             {{"file", file.string()}, {"why", std::string(std::strerror(errno))}});
  return false;
}

void TraceFiles::make_room(int64_t bytes) {
  while (!files_.empty() && (files_.size() >= kMostFiles || bytes_ + bytes > kMostBytes)) {
    std::error_code error;
    fs::remove(files_.front().first, error);
    bytes_ -= files_.front().second;
    files_.pop_front();
  }
}

}  // namespace ark::trace
