#include "server/trace/outbox.h"

#include <utility>

namespace ark::trace {

Outbox::Outbox(Deliver deliver, std::chrono::milliseconds linger)
    : deliver_(std::move(deliver)),
      linger_(linger),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

Outbox::~Outbox() {
  thread_.request_stop();
  thread_.join();
}

void Outbox::put(RecordPtr record) {
  {
    std::lock_guard lock(mutex_);
    if (waiting_.size() < kMost) {
      waiting_.push_back(std::move(record));
    } else {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
  }
  came_.notify_one();
}

void Outbox::run(const std::stop_token& stop) {
  for (bool ends = false; !ends;) {
    std::vector<RecordPtr> records;
    {
      std::unique_lock lock(mutex_);
      came_.wait(lock, stop, [&] { return !waiting_.empty(); });
      came_.wait_for(lock, stop, linger_, [&] { return waiting_.size() >= kMost / 2; });
      ends = stop.stop_requested();
      records.swap(waiting_);
    }
    if (!records.empty())
      dropped_.fetch_add(static_cast<int64_t>(deliver_(records, stop)), std::memory_order_relaxed);
  }
}

}  // namespace ark::trace
