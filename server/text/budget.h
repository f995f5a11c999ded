// What one piece of work on text from strangers may cost: rendering a template, tokenizing a text, decoding a
// token.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace ark::text {

class BudgetExceeded : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// While it lives, work on text in this thread ends where nobody waits for it any more: `stop` says so. It is asked some
// thousand times a second.
class StopScope {
 public:
  explicit StopScope(const std::function<bool()>& stop) : outer_(current()) { current() = &stop; }
  ~StopScope() { current() = outer_; }
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

  static bool stopped() { return current() && *current() && (*current())(); }

 private:
  static const std::function<bool()>*& current() {
    thread_local const std::function<bool()>* stop = nullptr;
    return stop;
  }
  const std::function<bool()>* outer_;
};

// Counts work done and bytes made, not statements run: a list that holds one list twice, which holds one
// list twice and so on is small, but walking it is not. Who walks over values or makes text charges for it
// before or while doing it. One unit is about what a step of the interpreter, or looking at 64 bytes, takes:
// some 100 ns. Time passes also where nothing is charged for, and on a slow machine: it is limited, too.
class Budget {
 public:
  constexpr Budget(std::size_t work, std::size_t bytes, std::chrono::seconds time = std::chrono::seconds(10))
      : work_(work), bytes_(bytes), time_(time), work_left_(work), bytes_left_(bytes), next_look_(work) {}

  void charge(std::size_t work = 1) {
    if (work > work_left_) throw BudgetExceeded("takes more than " + std::to_string(work_) + " steps");
    work_left_ -= work;
    if (work_left_ <= next_look_) look();
  }
  std::size_t work_left() const { return work_left_; }
  // For looking at a text once.
  void charge_reading(std::size_t bytes) { charge(1 + bytes / kBytesPerUnit); }
  // For making text and lists. What is freed again is not given back.
  void charge_bytes(std::size_t bytes) {
    if (bytes > bytes_left_)
      throw BudgetExceeded("makes more than " + std::to_string(bytes_ >> 20) + " MiB of text and lists");
    bytes_left_ -= bytes;
    charge(bytes / kBytesPerUnit);
  }

 private:
  using Clock = std::chrono::steady_clock;

  void look() {
    next_look_ = work_left_ - std::min(work_left_, kWorkPerLook);
    const Clock::time_point now = Clock::now();
    if (end_ == Clock::time_point()) end_ = now + time_;
    if (now > end_) throw BudgetExceeded("takes more than " + std::to_string(time_.count()) + " s");
    if (StopScope::stopped()) throw BudgetExceeded("was stopped: nobody waits for it");
  }

  static constexpr std::size_t kBytesPerUnit = 64, kWorkPerLook = 4096;
  std::size_t work_, bytes_;  // as given, for messages
  std::chrono::seconds time_;
  std::size_t work_left_, bytes_left_;
  std::size_t next_look_;    // at the clock, when so much work is left
  Clock::time_point end_{};  // set by the first look
};

// A text that is charged for before it grows: what stands while it is copied, too.
class TextBuilder {
 public:
  explicit TextBuilder(Budget& budget, std::size_t reserved = 0) : budget_(budget) {
    if (reserved) grow(reserved);
  }
  TextBuilder& operator+=(std::string_view more) {
    if (more.size() > text_.capacity() - text_.size()) grow(std::max(more.size(), text_.capacity()));
    text_ += more;
    return *this;
  }
  TextBuilder& operator+=(char more) { return *this += std::string_view(&more, 1); }
  std::size_t size() const { return text_.size(); }
  std::string take() { return std::move(text_); }

 private:
  void grow(std::size_t more) {
    budget_.charge_bytes(text_.size() + more);
    text_.reserve(text_.size() + more);
  }

  Budget& budget_;
  std::string text_;
};

}  // namespace ark::text
