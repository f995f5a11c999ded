// Records on their way out of the server, to files or to another program: a bounded queue and a thread of its own. Who
// puts something in never waits; what has no room is dropped and counted.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "server/trace/slowest.h"

namespace ark::trace {

class Outbox {
 public:
  static constexpr std::size_t kMost = 1024;  // records that wait

  // `deliver` is called by the thread, with what has come; it returns how many of these were lost. `linger`: how long
  // records wait for company.
  using Deliver = std::function<std::size_t(const std::vector<RecordPtr>&, const std::stop_token&)>;
  Outbox(Deliver deliver, std::chrono::milliseconds linger);
  // Delivers what is there, once.
  ~Outbox();

  void put(RecordPtr record);  // any thread
  int64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  void run(const std::stop_token& stop);

  const Deliver deliver_;
  const std::chrono::milliseconds linger_;
  std::atomic<int64_t> dropped_{0};
  std::mutex mutex_;  // guards what follows, up to the thread
  std::condition_variable_any came_;
  std::vector<RecordPtr> waiting_;
  std::jthread thread_;
};

}  // namespace ark::trace
