#include "server/tools/sequences.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace ark {
namespace {

StepResult run_step(StepRunner& runner, const StepDescriptor& step) {
  runner.post(step);
  for (;;)
    if (auto result = runner.poll(std::chrono::seconds(1))) {
      for (const RowResult& row : result->rows)
        if (row.error) throw *row.error;
      return *result;
    }
}

}  // namespace

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

Sequences::Sequences(StepRunner& runner, int32_t count, int32_t longest) : runner_(runner), count_(count) {
  const RunnerLimits& limits = runner.limits();
  pages_each_ = (longest + limits.page_size - 1) / limits.page_size;
  if (count > limits.max_slots || int64_t{count} * pages_each_ > limits.pages || longest > limits.max_length)
    throw Error(Code::kUsage, std::to_string(count) + " sequences of " + std::to_string(longest) +
                                  " tokens do not fit the runner");
}

double Sequences::prefill(int32_t tokens) {
  double first = 0;
  for (int32_t slot = 0; slot < count_; ++slot) {
    const auto start = std::chrono::steady_clock::now();
    for (int32_t at = 0; at < tokens;) {
      const int32_t chunk = std::min(tokens - at, runner_.limits().max_tokens);
      StepDescriptor step;
      add(step, slot, at, chunk);
      if (at + chunk == tokens) add_row(step, slot);
      run_step(runner_, step);
      at += chunk;
    }
    if (slot == 0) first = milliseconds_since(start);
  }
  length_ = tokens;
  return first;
}

double Sequences::decode() {
  StepDescriptor step;
  for (int32_t slot = 0; slot < count_; ++slot) {
    add(step, slot, length_, 1);
    add_row(step, slot);
  }
  const auto start = std::chrono::steady_clock::now();
  const StepCost cost = run_step(runner_, step).cost;
  ++length_;
  sent_ = cost.sent;
  reduced_ += cost.reduced;
  return milliseconds_since(start);
}

void Sequences::add(StepDescriptor& step, int32_t slot, int32_t at, int32_t count) {
  step.sequences.push_back({slot, static_cast<int32_t>(step.tokens.size()), count, at});
  for (int32_t i = 0; i < count; ++i) step.tokens.push_back((at + i) * 7919 % runner_.limits().vocabulary);
  if (at == 0)
    for (int32_t page = 0; page < pages_each_; ++page)
      step.page_deltas.push_back({slot, page, slot * pages_each_ + page});
}

void Sequences::add_row(StepDescriptor& step, int32_t slot) {
  StepRow row;
  row.token = static_cast<int32_t>(step.tokens.size()) - 1;
  row.slot = slot;
  row.sampling.temperature = 0;
  step.rows.push_back(row);
}

}  // namespace ark
