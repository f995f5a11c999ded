// Start-up as people see it: one line per stage with its time, and facts between them.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>

namespace ark {

class StageLog {
 public:
  explicit StageLog(std::function<void(const std::string& line)> print) : print_(std::move(print)) {}
  // The stage that began when the one before ended is over: "parse        0.013 s  smollm2.onnx, 272 nodes".
  void done(std::string_view stage, std::string_view detail = "");
  // A line without time: what was recognised, the sharding, memory per rank, KV tokens.
  void fact(std::string_view name, std::string_view text);
  // The stage that goes on now. Any thread.
  std::string current() const { return current_.load(); }
  // It goes on elsewhere, which is where its line is printed. No stage of ours: nothing happens.
  void enter(std::string_view stage);

 private:
  std::function<void(const std::string&)> print_;
  std::atomic<const char*> current_ = "text";
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace ark
