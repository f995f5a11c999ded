#include "base/log_writer.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "base/descriptor.h"
#include "base/error.h"
#include "base/log.h"

namespace ark {
namespace {

constexpr std::size_t kMostLines = 8192, kMostBytes = 4 << 20;

// False: standard error is broken or full for good.
bool write_line(std::string line) {
  line += '\n';
  for (std::size_t at = 0; at < line.size();) {
    const ssize_t n = ::write(STDERR_FILENO, line.data() + at, line.size() - at);
    if (n > 0) at += static_cast<std::size_t>(n);
    if (n >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN) return false;
    pollfd poller{STDERR_FILENO, POLLOUT, 0};
    ::poll(&poller, 1, -1);
  }
  return true;
}

constexpr int kNoFile = -1;

// 0, or why standard error cannot become the file: an errno, or kNoFile for what may hold up who writes it (a FIFO).
int turn_to(const std::filesystem::path& file, int flags) {
  const Descriptor opened(::open(file.c_str(), O_WRONLY | O_APPEND | O_NONBLOCK | O_CLOEXEC | flags, 0640));
  struct stat what {};
  if (!opened || ::fstat(opened.number, &what) != 0) return errno;
  if (!S_ISREG(what.st_mode)) return kNoFile;
  return ::dup2(opened.number, STDERR_FILENO) < 0 ? errno : 0;
}

// Where another file was put in the place of standard error's. Each process sees that for itself; one that is only
// moved away is kept until whoever was told to opens the next.
void follow(const std::filesystem::path& file) {
  struct stat named {};
  struct stat own {};
  if (::stat(file.c_str(), &named) == 0 && ::fstat(STDERR_FILENO, &own) == 0 &&
      (named.st_ino != own.st_ino || named.st_dev != own.st_dev))
    turn_to(file, 0);
}

}  // namespace

LogWriter& LogWriter::instance() {
  static auto* const writer = new LogWriter;
  return *writer;
}

LogWriter::LogWriter() {
  try {
    std::thread([this] { run(); }).detach();
    has_thread_ = true;
  } catch (const std::system_error&) {  // no thread to be had: whoever has a line writes it
  }
}

void LogWriter::put(std::string line, bool is_last) {
  std::unique_lock lock(mutex_);
  if (!has_thread_) {
    if (file_) follow(*file_);
    if (!write_line(std::move(line))) ++dropped_;
    return;
  }
  if (!is_last && (lines_.size() >= kMostLines || bytes_ + line.size() > kMostBytes)) {
    ++dropped_;
    ++untold_;
    return;
  }
  const std::size_t bytes = line.size();
  lines_.push_back(std::move(line));
  bytes_ += bytes;
  wake_.notify_one();
}

void LogWriter::drop() {
  std::lock_guard lock(mutex_);
  ++dropped_;
  ++untold_;
}

bool LogWriter::flush(std::chrono::milliseconds patience) {
  constexpr int kTurns = 10;
  std::unique_lock lock(mutex_);
  for (int turn = 0; turn < kTurns; ++turn) {
    if (idle_.wait_for(lock, patience, [&] { return lines_.empty() && !is_writing_; })) return true;
    pollfd poller{STDERR_FILENO, POLLOUT, 0};
    if (::poll(&poller, 1, 0) <= 0 || (poller.revents & POLLOUT) == 0) return false;
  }
  return false;
}

void LogWriter::open(const std::filesystem::path& file) {
  auto own = std::make_shared<const std::filesystem::path>(file);
  if (const int why = turn_to(file, O_CREAT); why != 0)
    throw Error(Code::kUsage, "log file " + escaped(file.string()) + ": " +
                                  (why == kNoFile ? "is no regular file" : std::strerror(why)) +
                                  "; name one that can be made or written here");
  std::lock_guard lock(mutex_);
  file_ = std::move(own);
}

int64_t LogWriter::dropped() const {
  std::lock_guard lock(mutex_);
  return dropped_;
}

void LogWriter::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return !lines_.empty(); });
    std::string line = std::move(lines_.front());
    lines_.pop_front();
    bytes_ -= line.size();
    is_writing_ = true;
    const auto file = file_;
    lock.unlock();
    if (file) follow(*file);
    bool is_written = write_line(std::move(line));
    lock.lock();
    if (is_written && untold_ > 0 && lines_.empty()) {  // it flows again
      const int64_t untold = std::exchange(untold_, 0);
      lock.unlock();
      is_written = write_line(log_text(
          LogLevel::kWarning, "standard error was not read: log lines were dropped", {{"lines", untold}}));
      lock.lock();
    }
    if (!is_written) ++dropped_;
    is_writing_ = false;
    if (lines_.empty()) idle_.notify_all();
  }
}

}  // namespace ark
