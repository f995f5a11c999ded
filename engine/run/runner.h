// What the scheduler drives: something that runs decoder steps. Two users: RaggedRunner (Program, loops) and
// PlainRunner (the untouched graph with explicit past/present, one sequence at a time).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/error.h"
#include "engine/run/step.h"

namespace ark {

// What a runner throws that loses its steps in flight and all that it cached, but begins anew: StepRunner::ready()
// tells when.
class RunnerLost : public Error {
  using Error::Error;
};

struct RunnerLimits {
  int32_t max_tokens = 0;  // T of one step
  int32_t max_rows = 0;    // R of one step
  int32_t max_slots = 0;   // sequences that the device keeps at once
  int32_t max_length = 0;  // tokens of one sequence, prompt and generated
  int32_t page_size = 0;   // tokens
  int32_t pages = 0;       // page ids are [0, pages)
  int32_t vocabulary = 0;
  int32_t depth = 2;     // steps that may be in flight
  int32_t embedded = 0;  // token ids that the embedding has rows for; 0: all of the vocabulary

  int32_t processors = 0;     // of each rank, of which a step may ask for fewer; 0: it may not
  int32_t shares_pages = 1;   // 0: keys and values do not lie in their pages alone, slots cannot share them
  int32_t parts_prompts = 1;  // 0: a step has all tokens of a sequence that are not read yet, or none

  bool is_embedded(int32_t token) const { return token >= 0 && token < (embedded ? embedded : vocabulary); }
};

// Post and poll from one thread at a time. A dead rank, an abort or a deadline surfaces as
// Error(kUnavailable) from post or poll, naming rank, phase and what was waited for; the runner is then
// unusable. What fails one sequence only is told by its rows: RowResult::error, or for logits that are not finite a
// token of -1 or a log-probability that is no number.
class StepRunner {
 public:
  virtual ~StepRunner() = default;
  virtual const RunnerLimits& limits() const = 0;
  // Starts a step; returns its number (1, 2, ...). Never blocks while fewer than `depth` steps are in flight;
  // throws Error(kInternal) beyond, or if the descriptor breaks a limit.
  virtual uint64_t post(const StepDescriptor& step) = 0;
  // The next finished step in order, or nullopt when `timeout` passes or nothing is in flight.
  virtual std::optional<StepResult> poll(std::chrono::microseconds timeout) = 0;
  // Nobody wants any more what the steps in flight compute for `slot`: they may end it early, with an error in its
  // rows. The caller of post.
  virtual void give_up(int32_t /*slot*/) {}
  // Whether steps can be posted; waits for it at most `timeout`. Only runners that begin anew are ever not ready; they
  // throw RunnerLost from here, too: where they die between steps, or again as they begin.
  virtual bool ready(std::chrono::microseconds /*timeout*/) { return true; }
  // Why the runner is unusable, empty while it is not: a rank that dies is noticed between steps too. Any thread.
  virtual std::string failure() const { return {}; }
  // Which rank shows no sign of life, empty while all do: it may come back, or be taken for dead later. Any thread.
  virtual std::string silence() const { return {}; }
  // Of a page's keys and values, of all ranks together; 0: they cannot be reached from this process.
  virtual int64_t page_bytes() const { return 0; }
  // Page `page` as page_bytes() bytes, which mean the same to each runner of the same program. Any thread, also while
  // steps are in flight; a page that one of them writes comes out as a mixture (PageDirectory tells).
  virtual void read_page(int32_t /*page*/, std::span<std::byte> /*to*/) const { refuse_pages(); }
  // Page `page` as if steps had computed it for these page_size tokens. The caller of post; no step in flight has it.
  virtual void write_page(int32_t /*page*/, std::span<const int32_t> /*tokens*/,
                          std::span<const std::byte> /*from*/) {
    refuse_pages();
  }
  // Ends all waits soon; from any thread.
  virtual void abort(const std::string& why) = 0;

 private:
  [[noreturn]] static void refuse_pages() {
    throw Error(Code::kUnsupported, "this runner's pages cannot be reached");
  }
};

}  // namespace ark
