// --trace-dir: a file for each slow request, in the Trace Event Format that ui.perfetto.dev opens.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "server/trace/slowest.h"

namespace ark::trace {

// The request as a process: its phases in one track, below them what their time went to.
std::string perfetto_text(const schedule::Record& record);

// One thread.
class TraceFiles {
 public:
  static constexpr std::size_t kMostFiles = 200;
  static constexpr int64_t kMostBytes = 64 << 20;  // of all; the oldest go first, also those of a run before

  // Makes the folder. Throws Error(kOs) where no file can be written there.
  TraceFiles(std::filesystem::path folder, std::chrono::nanoseconds slower_than);

  // Writes those that are slow; how many could not be written.
  std::size_t write(const std::vector<RecordPtr>& records);

 private:
  bool write(const schedule::Record& record);
  void make_room(int64_t bytes);

  const std::filesystem::path folder_;
  const std::chrono::nanoseconds slower_than_;
  std::deque<std::pair<std::filesystem::path, int64_t>> files_;  // with their bytes, the oldest first
  int64_t bytes_ = 0;
  uint64_t count_ = 0;
  bool has_warned_ = false;
};

}  // namespace ark::trace
