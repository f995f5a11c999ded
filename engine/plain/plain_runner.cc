#include "engine/plain/plain_runner.h"

#include <algorithm>

#include "base/error.h"
#include "engine/cpu/sampler.h"

namespace ark {
namespace {

Tensor to_f32(const Tensor& x) {
  if (x.dtype == DType::kF32) return x;
  Tensor out = Tensor::empty(DType::kF32, x.dims);
  for (int64_t i = 0; i < x.size(); ++i) out.as<float>()[i] = static_cast<float>(x.real(i));
  return out;
}

}  // namespace

PlainRunner::PlainRunner(const Graph& graph, DecoderSignature signature, PlainRunnerOptions options)
    : graph_(graph),
      signature_(std::move(signature)),
      inputs_(graph, signature_),
      driver_(graph, options.parallel, options.limits),
      slots_(static_cast<std::size_t>(options.max_slots)) {
  const auto file_length = static_cast<int32_t>(std::min<int64_t>(signature_.max_positions, 1 << 20));
  limits_.max_length = options.max_length > 0 ? options.max_length : file_length > 0 ? file_length : 2048;
  if (file_length > 0) limits_.max_length = std::min(limits_.max_length, file_length);
  limits_.parts_prompts = options.parts_prompts;
  // A whole prompt beside a token of each other sequence.
  limits_.max_tokens = options.parts_prompts ? options.max_tokens : limits_.max_length + options.max_slots;
  limits_.max_rows = std::max(options.max_slots, limits_.max_tokens);
  limits_.max_slots = options.max_slots;
  limits_.page_size = options.page_size;
  limits_.pages = options.max_slots * ((limits_.max_length + options.page_size - 1) / options.page_size);
  limits_.vocabulary = static_cast<int32_t>(signature_.vocabulary);
  limits_.depth = 2;
  limits_.shares_pages = 0;
  inputs_.check();
  thread_ = std::thread([this] { run_steps(); });
}

PlainRunner::~PlainRunner() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    is_stopped_.store(true, std::memory_order_relaxed);
  }
  changed_.notify_all();
  thread_.join();
}

uint64_t PlainRunner::post(const StepDescriptor& step) {
  const std::lock_guard lock(mutex_);
  if (!aborted_.empty()) throw Error(Code::kUnavailable, aborted_);
  ARK_CHECK(posted_ - polled_ < static_cast<uint64_t>(limits_.depth), "more than two steps in flight");
  queue_.push_back(step);
  changed_.notify_all();
  return ++posted_;
}

std::optional<StepResult> PlainRunner::poll(std::chrono::microseconds timeout) {
  std::unique_lock lock(mutex_);
  if (posted_ == polled_ && aborted_.empty()) return std::nullopt;
  changed_.wait_for(lock, timeout, [&] { return !results_.empty() || !aborted_.empty() || failure_; });
  if (!aborted_.empty()) throw Error(Code::kUnavailable, aborted_);
  if (results_.empty() && failure_) std::rethrow_exception(failure_);
  if (results_.empty()) return std::nullopt;
  StepResult result = std::move(results_.front());
  results_.pop_front();
  ++polled_;
  return result;
}

void PlainRunner::give_up(int32_t slot) {
  const std::lock_guard lock(mutex_);
  given_up_[slot] = posted_;
  if (running_ == slot) is_stopped_.store(true, std::memory_order_relaxed);
}

void PlainRunner::abort(const std::string& why) {
  const std::lock_guard lock(mutex_);
  aborted_ = why;
  is_stopped_.store(true, std::memory_order_relaxed);
  changed_.notify_all();
}

void PlainRunner::run_steps() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return is_ending_ || !queue_.empty(); });
    if (is_ending_) return;
    const StepDescriptor step = std::move(queue_.front());
    queue_.pop_front();
    const uint64_t number = ++taken_;
    lock.unlock();
    std::optional<StepResult> result;
    std::exception_ptr failure;
    try {
      result = execute(step, number);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    running_ = -1;
    if (result) results_.push_back(std::move(*result));
    failure_ = failure;
    changed_.notify_all();
    if (failure) return;
  }
}

void PlainRunner::begin_sequence(int32_t slot, uint64_t step) {
  const std::lock_guard lock(mutex_);
  running_ = slot;
  const auto it = given_up_.find(slot);
  is_stopped_.store(is_ending_ || !aborted_.empty() || (it != given_up_.end() && step <= it->second),
                    std::memory_order_relaxed);
}

// What one sequence meets is its own error: the others of the step go on.
StepResult PlainRunner::execute(const StepDescriptor& step, uint64_t number) {
  StepResult result{number, std::vector<RowResult>(step.rows.size()), {}};
  for (const StepSequence& s : step.sequences) {
    Slot& slot = slots_.at(static_cast<std::size_t>(s.slot));
    if (s.kv_length == 0) slot = {};
    begin_sequence(s.slot, number);
    std::vector<std::size_t> rows;  // of this sequence
    for (std::size_t r = 0; r < step.rows.size(); ++r)
      if (step.rows[r].slot == s.slot) rows.push_back(r);
    try {
      if (!slot.error) run_sequence(step, s, rows, result.rows);
    } catch (...) {
      slot.error = current_error();
    }
    if (slot.error)
      for (const std::size_t r : rows) result.rows[r].error = slot.error;
  }
  return result;
}

void PlainRunner::run_sequence(const StepDescriptor& step, const StepSequence& s,
                               const std::vector<std::size_t>& rows, std::vector<RowResult>& results) {
  Slot& slot = slots_[static_cast<std::size_t>(s.slot)];
  ARK_CHECK(s.kv_length == static_cast<int32_t>(slot.history.size()),
            "a plain slot cannot continue at another position");
  std::vector<int32_t> tokens(step.tokens.begin() + s.first, step.tokens.begin() + s.first + s.count);
  for (int32_t& t : tokens)
    if (t == kFeedbackToken) t = slot.last;
  const auto last_only = std::all_of(
      rows.begin(), rows.end(), [&](std::size_t r) { return step.rows[r].token == s.first + s.count - 1; });
  // Graphs that give the last token's logits only are run token by token where more is wanted, those that take one at a
  // time always.
  const bool takes_one =
      !inputs_.carried().empty() && graph_.value(graph_.inputs[signature_.ids]).shape->back().is_constant(1);
  std::size_t stride = takes_one || (signature_.last_only && !last_only) ? 1 : tokens.size();
  for (std::size_t begin = 0; begin < tokens.size();) {
    const Slot before = slot;
    const Tensor logits = run_tokens(slot, std::span(tokens).subspan(begin, stride));
    const int64_t given = logits.size() / limits_.vocabulary;
    if (given < 1) throw Error(Code::kUnsupported, "the model gave no logits");
    if (!last_only && given < static_cast<int64_t>(stride)) {  // what the graph's shapes did not tell
      slot = before;
      stride = 1;
      continue;
    }
    for (const std::size_t r : rows) {
      const int64_t local = step.rows[r].token - s.first - static_cast<int64_t>(begin);
      if (local < 0 || local >= static_cast<int64_t>(stride)) continue;
      // No cache: all positions are given; last only: one.
      const int64_t index = given - static_cast<int64_t>(stride) + local;
      const int64_t position = s.kv_length + static_cast<int64_t>(begin) + local + 1;
      results[r] = answer(step, step.rows[r], slot, position, logits, index);
      if ((step.rows[r].flags & (kWantToken | kTentative)) == kWantToken) slot.last = results[r].token;
    }
    begin += stride;
  }
}

RowResult PlainRunner::answer(const StepDescriptor& step, const StepRow& row, const Slot& slot,
                              int64_t position, const Tensor& logits, int64_t index) const {
  const auto v = static_cast<std::size_t>(limits_.vocabulary);
  const std::span<const float> values(logits.as<float>() + index * limits_.vocabulary, v);
  const std::span<const std::pair<int32_t, float>> bias(step.bias.data() + row.bias_first,
                                                        static_cast<std::size_t>(row.bias_count));
  const std::span<const uint32_t> mask(step.masks.data() + row.mask_first,
                                       static_cast<std::size_t>(row.mask_words));
  return sample_row(values, row, std::span(slot.history).first(static_cast<std::size_t>(position)), position,
                    bias, mask);
}

Tensor PlainRunner::run_tokens(Slot& slot, std::span<const int32_t> tokens) {
  constexpr int64_t kTokens = 512;  // of a run; a prompt read whole may take what its parts would
  const std::vector<Tensor> inputs = inputs_.of(slot.past, slot.history, tokens);
  const int64_t runs = (inputs[signature_.ids].size() + kTokens - 1) / kTokens;
  const std::vector<Tensor> outputs = driver_.run(inputs, stopped_, runs);
  slot.past.clear();
  for (const DecoderSignature::Cache& cache : inputs_.carried()) slot.past.push_back(outputs[cache.output]);
  slot.history.insert(slot.history.end(), tokens.begin(), tokens.end());
  return to_f32(outputs[signature_.logits]);
}

}  // namespace ark
