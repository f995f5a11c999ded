// Lines on their way to standard error: a bounded queue and one thread that writes, so that a reader who stalls
// holds up nobody. Standard error may become a file, with all that libraries and a dying process write there.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

namespace ark {

class LogWriter {
 public:
  // The process's one; it lives until the process ends, whatever its thread is waiting for.
  static LogWriter& instance();

  // Never waits. Where the queue is full the line is dropped and counted; `is_last`: it is taken all the same.
  void put(std::string line, bool is_last = false);
  void drop();  // counts a line that could not be put
  // Whether all lines were written (or could not be) within `patience`; within ten times that where standard error
  // takes lines, but the machine is too busy to run who writes them.
  bool flush(std::chrono::milliseconds patience);
  int64_t dropped() const;
  // Standard error becomes `file`, made if there is none; where another is put in its place it goes on there. Throws
  // Error, and all stays as it was.
  void open(const std::filesystem::path& file);

 private:
  LogWriter();
  void run();

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_, idle_;
  std::deque<std::string> lines_;
  std::size_t bytes_ = 0;             // of lines_
  int64_t dropped_ = 0, untold_ = 0;  // lines; of these, not yet told in the log
  bool is_writing_ = false, has_thread_ = false;
  std::shared_ptr<const std::filesystem::path> file_;  // that standard error is, or null
};

}  // namespace ark
