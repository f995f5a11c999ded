// Steps of a runner as benchmarks make them: some sequences of the same length, their prompts, then a token of each.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "engine/run/runner.h"

namespace ark {

double milliseconds_since(std::chrono::steady_clock::time_point start);
double median(std::vector<double> values);  // of some

// Sequences in slots 0, 1, ... each with pages of its own, all of the same length. Errors of rows are thrown.
class Sequences {
 public:
  // Throws Error(kUsage) where they do not fit the runner.
  Sequences(StepRunner& runner, int32_t count, int32_t longest);
  // Prefills every sequence with `tokens` tokens, in chunks of what a step takes; returns the milliseconds of
  // sequence 0.
  double prefill(int32_t tokens);
  // One token of every sequence, sampled greedily; the step's milliseconds.
  double decode();
  const SentBytes& sent() const { return sent_; }           // in the latest step of decode()
  const ReduceCounts& reduced() const { return reduced_; }  // in all of them

 private:
  void add(StepDescriptor& step, int32_t slot, int32_t at, int32_t count);
  static void add_row(StepDescriptor& step, int32_t slot);

  StepRunner& runner_;
  int32_t count_, pages_each_ = 0, length_ = 0;
  SentBytes sent_;
  ReduceCounts reduced_;
};

}  // namespace ark
