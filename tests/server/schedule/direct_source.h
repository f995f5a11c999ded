// A neighbour in the same process: takes what another scheduler has as it lies in memory, as a one-sided READ would.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "engine/run/runner.h"
#include "server/schedule/scheduler.h"

namespace ark::test {

// An answer that is there at once.
class WholeFetch : public schedule::PageFetch {
 public:
  explicit WholeFetch(std::deque<std::string> pages) : pages_(std::move(pages)) {}
  std::optional<std::string> next() override {
    if (pages_.empty()) return std::nullopt;
    std::string page = std::move(pages_.front());
    pages_.pop_front();
    return page;
  }
  bool is_over() override { return true; }

 private:
  std::deque<std::string> pages_;
};

class DirectSource : public schedule::PageSource {
 public:
  DirectSource(const schedule::Scheduler& other, const StepRunner& runner) : other_(other), runner_(runner) {}

  bool is_there() const override { return true; }
  bool computes() const override { return false; }
  double seconds(int32_t) const override { return 0; }
  std::unique_ptr<schedule::PageFetch> ask(schedule::PageQuestion question) override {
    ++questions;
    const int32_t size = runner_.limits().page_size;
    const auto run = other_.directory().find_run(question.scope, question.tokens, size);
    std::deque<std::string> pages;
    for (auto i = static_cast<std::size_t>(question.first); i < run.size(); ++i) {
      std::string bytes(static_cast<std::size_t>(runner_.page_bytes()), '\0');
      runner_.read_page(run[i].page, std::as_writable_bytes(std::span(bytes)));
      if (!other_.directory().is_current(run[i])) break;
      pages.push_back(std::move(bytes));
    }
    return std::make_unique<WholeFetch>(std::move(pages));
  }
  void on_arrival(std::function<void()>) override {}

  std::atomic<int> questions{0};

 private:
  const schedule::Scheduler& other_;
  const StepRunner& runner_;
};

}  // namespace ark::test
