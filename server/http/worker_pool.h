// Threads for connections: made when needed, kept until the end, never more than a limit.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "server/http/library.h"

namespace ark::http {

class WorkerPool : public httplib::TaskQueue {
 public:
  explicit WorkerPool(std::size_t most) : most_(most) {}

  void enqueue(std::function<void()> job) override;
  void shutdown() override;  // runs what is queued and joins

 private:
  void work();

  const std::size_t most_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::vector<std::thread> threads_;
  std::size_t idle_ = 0;
  bool stopping_ = false;
};

}  // namespace ark::http
