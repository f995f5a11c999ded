// How many processors of a rank take part in a step: fewer while other programs use their cores, as Shenango (NSDI'19)
// gives cores up and takes them back. Which results a step has never depends on it. No clock, no thread: the rank's
// leader tells what steps took.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ark {

class Company {
 public:
  explicit Company(int32_t processors) : limit_(processors), active_(processors), lost_(processors) {}

  // Of the next step, at most `most`; at least 1.
  int32_t active(int32_t most);
  // A step with active() processors ended at `now` and took `ran`; `lost`: by processor, how long it was ready but had
  // no core. Nanoseconds.
  void step_done(int64_t now, int64_t ran, std::span<const int64_t> lost);

 private:
  // Trials into one direction: each that fails makes the next one later.
  struct Way {
    static constexpr int64_t kFirst = 50'000'000, kLongest = 1'000'000'000;  // ns until the next one
    int64_t next = 0, backoff = kFirst;
    void worked();
    void failed(int64_t now, int64_t spent);
  };

  void judge(int64_t now, double share, double speed);
  void try_other(int64_t now, double share, double speed);
  void forget();

  int32_t limit_, active_;
  int32_t before_ = 0;  // processors before this trial; 0: it is none
  double share_before_ = 0, speed_before_ = 0;
  Way fewer_, more_;
  // Of this window: what steps took, what of it the slowest processors lost, and each.
  int64_t ran_ = 0, worst_ = 0;
  std::vector<int64_t> lost_;
};

}  // namespace ark
