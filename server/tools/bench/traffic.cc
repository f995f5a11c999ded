#include "server/tools/bench/traffic.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>

namespace ark::bench {
namespace {

// Threads that take due requests. A new one is started when all are busy, up to the concurrency.
class Workers {
 public:
  using Handle = std::function<void(ApiClient&, std::size_t)>;
  Workers(const ServeOptions& options, std::size_t most, Handle handle)
      : options_(options), most_(most), handle_(std::move(handle)) {}

  void add(std::size_t request) {
    const std::lock_guard lock(mutex_);
    due_.push_back(request);
    if (idle_ < due_.size() && threads_.size() < most_)
      threads_.emplace_back([this] { work(); });
    else
      wake_.notify_one();
  }
  // Returns when all requests have been handled.
  void join() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void work() {
    ApiClient client(options_);
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      wake_.wait(lock, [&] { return closed_ || !due_.empty(); });
      --idle_;
      if (due_.empty()) return;
      const std::size_t request = due_.front();
      due_.pop_front();
      lock.unlock();
      handle_(client, request);
      lock.lock();
    }
  }

  const ServeOptions& options_;
  const std::size_t most_;
  const Handle handle_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::size_t> due_;
  std::size_t idle_ = 0;
  bool closed_ = false;
  std::vector<std::thread> threads_;  // only the thread that adds touches it
};

}  // namespace

std::vector<double> arrival_times(std::size_t count, double rate, double burstiness, uint64_t seed) {
  std::vector<double> times(count, 0.0);
  if (rate == 0) return times;
  std::mt19937_64 random(seed);
  std::gamma_distribution<double> gap(burstiness, 1 / (rate * burstiness));
  double now = 0;
  for (double& time : times) time = now += gap(random);
  // Chance moves the end of a short run; the rate that was asked for is kept.
  const double scale = now > 0 ? static_cast<double>(count) / rate / now : 1;
  for (double& time : times) time *= scale;
  return times;
}

Traffic run_traffic(const ServeOptions& options, const std::vector<Prompt>& prompts, const std::string& model,
                    RequestForm form, const std::function<void(std::size_t)>& progress) {
  Traffic traffic;
  traffic.outcomes.resize(prompts.size());
  std::mutex mutex;
  std::size_t finished = 0;
  const std::size_t most =
      options.max_concurrency > 0 ? static_cast<std::size_t>(options.max_concurrency) : prompts.size();
  Workers workers(options, most, [&](ApiClient& client, std::size_t i) {
    traffic.outcomes[i] = client.generate(prompts[i], model, form);
    const std::lock_guard lock(mutex);
    progress(++finished);
  });
  const std::vector<double> due =
      arrival_times(prompts.size(), options.request_rate, options.burstiness, options.seed);
  const Clock::time_point start = Clock::now();
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    std::this_thread::sleep_until(
        start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(due[i])));
    workers.add(i);
  }
  workers.join();
  traffic.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return traffic;
}

}  // namespace ark::bench
