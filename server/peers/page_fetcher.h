// Asks other servers for pages (schedule::PageSource): a question of one message, answered by all pages one behind the
// other. Neighbours that are gone, slow or wrong are left alone for a while.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "dma/bootstrap/socket.h"
#include "server/peers/messages.h"
#include "server/schedule/pace.h"
#include "server/schedule/page_source.h"

namespace ark::peers {

struct PageFetcherOptions {
  std::vector<std::string> addresses;  // "host:port", or "@name" on this machine
  std::string key, identity;           // as of PageServerOptions
  bool computes = false;               // the neighbours are prefill servers
  // For a neighbour that fails; doubled each time, up to ten times as long.
  std::chrono::milliseconds first_pause{1000};
};

class PageFetcher : public schedule::PageSource {
 public:
  PageFetcher(PageFetcherOptions options, const PageShape& shape,
              std::shared_ptr<schedule::PageTraffic> traffic);
  ~PageFetcher() override;

  bool is_there() const override;
  bool computes() const override { return options_.computes; }
  double seconds(int32_t pages) const override;
  std::unique_ptr<schedule::PageFetch> ask(schedule::PageQuestion question) override;
  void on_arrival(std::function<void()> call) override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Task;
  class Fetch;
  struct Neighbour {
    std::string address;
    std::vector<dma::Socket> idle;  // connections
    bool is_up = false;
    bool is_self = false;    // this server, which is never asked
    int failures = 0;        // in a row
    bool was_wrong = false;  // the last question to it failed
    Clock::time_point retry_at{};
    std::string told;  // the last line about it
  };
  enum class Outcome : uint8_t { kPages, kNone, kFailed };

  void work(const std::stop_token& stop);
  void keep(const std::stop_token& stop);
  void run(const std::stop_token& stop, Task& task);
  Outcome ask_one(Neighbour& neighbour, Task& task);
  void take_answer(const dma::Socket& socket, Task& task, dma::Deadline until);
  dma::Socket connect(Neighbour& neighbour);
  dma::Socket take_connection(Neighbour& neighbour);
  void fail(Neighbour& neighbour, const std::string& why);
  void note_answer(Neighbour& neighbour, dma::Socket socket);
  void tell_arrival();

  const PageFetcherOptions options_;
  const PageShape shape_;
  const std::shared_ptr<schedule::PageTraffic> traffic_;

  mutable std::mutex mutex_;  // guards what follows, up to the blank line
  std::condition_variable_any changed_;
  std::deque<std::shared_ptr<Task>> tasks_;
  std::deque<Neighbour> neighbours_;
  std::size_t first_ = 0;  // that is asked first
  schedule::Recent page_seconds_, trip_seconds_;

  std::mutex call_mutex_;  // guards call_, and is held while it runs
  std::function<void()> call_;
  std::vector<std::jthread> threads_;  // last: use all of the above
};

}  // namespace ark::peers
