// Start-up as people see it: one line per stage with its time, and facts between them.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace ark {

class StageLog {
 public:
  explicit StageLog(std::function<void(const std::string& line)> print) : print_(std::move(print)) {}
  // The stage that began when the one before ended is over: "parse        0.013 s  smollm2.onnx, 272 nodes".
  void done(std::string_view stage, std::string_view detail = "");
  // What went on beside the stages, with its own time.
  void beside(std::string_view name, double seconds, std::string_view detail) const;
  // Called after each stage; what it throws ends the load.
  void set_watch(std::function<void()> watch) { watch_ = std::move(watch); }
  // A line without time: what was recognised, the sharding, memory per rank, KV tokens.
  void fact(std::string_view name, std::string_view text);
  // The stage that goes on now. Any thread.
  std::string current() const { return current_.load(); }
  // It goes on elsewhere, which is where its line is printed. No stage of ours: nothing happens.
  void enter(std::string_view stage);

 private:
  std::function<void(const std::string&)> print_;
  std::function<void()> watch_;
  std::atomic<const char*> current_ = "parse";
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace ark
