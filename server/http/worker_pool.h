// Threads for requests: made when needed, kept until the end, never more than a limit.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ark::http {

class WorkerPool {
 public:
  explicit WorkerPool(std::size_t most) : most_(most) {}

  // False, and nothing happens: all threads are busy, and there are as many as may be.
  bool submit(std::function<void()> job);
  bool is_crowded() const;  // whether jobs wait for a thread
  void shutdown();          // runs what is queued and joins

 private:
  void work();

  const std::size_t most_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::vector<std::thread> threads_;
  std::size_t idle_ = 0;
  bool stopping_ = false;
};

}  // namespace ark::http
