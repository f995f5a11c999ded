#include "engine/cpu/pool.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <iterator>

namespace ark {
namespace {

const cpu_set_t& process_mask() {
  static const cpu_set_t mask = [] {
    cpu_set_t m;
    CPU_ZERO(&m);
    sched_getaffinity(0, sizeof m, &m);
    return m;
  }();
  return mask;
}

}  // namespace

void Pool::pin(const CpuList& cpus) {
  // A core's CPUs or one of them: the first and their number say which.
  thread_local int pinned_to = -1;
  const int wanted = cpus.empty() ? -1 : cpus.front() + CPU_SETSIZE * static_cast<int>(cpus.size());
  if (pinned_to == wanted) return;
  cpu_set_t set = process_mask();
  if (!cpus.empty()) CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  // A refusal (a container's policy) costs speed only.
  if (sched_setaffinity(0, sizeof set, &set) == 0) pinned_to = wanted;
}

Pool& Pool::shared() {
  static Pool pool;
  return pool;
}

Pool::~Pool() {
  for (std::jthread& thread : threads_) thread.request_stop();
  wake_.notify_all();
}

void Pool::launch(int count, std::span<const CpuList> seats, const std::function<void(int)>& body) {
  process_mask();  // before the first thread is pinned
  const std::lock_guard lock(mutex_);
  // Threads first: a gang of which some have none would wait for ever for those.
  while (idle_ < static_cast<int>(work_.size()) + count) {
    threads_.emplace_back([this](std::stop_token stop) { run(stop); });
    ++idle_;
  }
  // All or, where memory lacks, none: a body left behind would run when its owner is gone.
  std::vector<std::function<void()>> jobs;
  jobs.reserve(count);
  for (int i = 0; i < count; ++i) {
    jobs.emplace_back([body, i, seat = seats.empty() ? CpuList() : seats[static_cast<std::size_t>(i)]] {
      pin(seat);
      body(i);
    });
  }
  work_.reserve(work_.size() + jobs.size());
  std::ranges::move(jobs, std::back_inserter(work_));
  wake_.notify_all();
}

void Pool::run(std::stop_token stop) {
  ::prctl(PR_SET_TIMERSLACK, 1UL);  // sleeps end when they were asked to, not 50 us later
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!wake_.wait(lock, stop, [this] { return !work_.empty(); })) return;
    std::function<void()> job = std::move(work_.back());
    work_.pop_back();
    --idle_;
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
    ++idle_;
  }
}

}  // namespace ark
