#include "server/http/worker_pool.h"

#include <system_error>

namespace ark::http {

bool WorkerPool::submit(std::function<void()> job) {
  std::lock_guard lock(mutex_);
  if (jobs_.size() >= idle_ && threads_.size() < most_) {
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {  // the threads there are take the job in turn
      if (threads_.empty()) return false;
    }
  } else if (jobs_.size() >= idle_) {
    return false;
  }
  jobs_.push_back(std::move(job));
  changed_.notify_one();
  return true;
}

bool WorkerPool::is_crowded() const {
  std::lock_guard lock(mutex_);
  return jobs_.size() > idle_;
}

void WorkerPool::shutdown() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    changed_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
    --idle_;
    if (jobs_.empty()) return;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
  }
}

}  // namespace ark::http
