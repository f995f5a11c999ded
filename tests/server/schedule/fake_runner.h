// A StepRunner whose "model" is a hash of everything a sequence has cached, read back through its pages: a
// page that is lost, shared or reused too early changes the tokens.
#pragma once

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <thread>

#include "base/error.h"
#include "engine/run/runner.h"

namespace ark::test {

class FakeRunner : public StepRunner {
 public:
  explicit FakeRunner(RunnerLimits limits)
      : limits_(limits),
        memory_(static_cast<std::size_t>(limits.pages * limits.page_size), -1),
        tables_(static_cast<std::size_t>(limits.max_slots)),
        posted_tables_(tables_),
        last_(static_cast<std::size_t>(limits.max_slots), -1) {}

  // The token after `history`, by definition.
  static int32_t next(const std::vector<int32_t>& history, int32_t vocabulary,
                      const std::function<bool(int32_t)>& may_come = {}) {
    uint64_t h = 1469598103934665603ull;
    for (int32_t t : history) h = (h ^ static_cast<uint64_t>(t + 1)) * 1099511628211ull;
    const auto token = static_cast<int32_t>((h >> 20) % static_cast<uint64_t>(vocabulary));
    for (int32_t i = 0; i < vocabulary; ++i)  // that one, or the next that may come
      if (!may_come || may_come((token + i) % vocabulary)) return (token + i) % vocabulary;
    return -1;
  }

  const RunnerLimits& limits() const override { return limits_; }
  uint64_t post(const StepDescriptor& step) override {
    if (fail_at_ && posted_ + 1 == fail_at_) throw Error(Code::kUnavailable, "rank 1 died");
    ARK_CHECK(static_cast<int32_t>(queue_.size()) < limits_.depth, "too many steps in flight");
    ARK_CHECK(static_cast<int32_t>(step.tokens.size()) <= limits_.max_tokens &&
                  static_cast<int32_t>(step.rows.size()) <= limits_.max_rows,
              "a step beyond the limits");
    check_writes(step);
    computed += std::ssize(step.tokens);
    queue_.push_back(step);
    return ++posted_;
  }
  std::optional<StepResult> poll(std::chrono::microseconds timeout) override {
    if (queue_.empty()) return std::nullopt;
    if (done_ >= allowed_) {
      std::this_thread::sleep_for(timeout);
      return std::nullopt;
    }
    const StepDescriptor step = std::move(queue_.front());
    queue_.pop_front();
    reads_.pop_front();
    return execute(step);
  }
  void abort(const std::string&) override {}
  // Only so many steps end, until more are allowed. Any thread.
  static constexpr auto kAllSteps = std::numeric_limits<uint64_t>::max();
  void allow(uint64_t steps) { allowed_ = steps; }
  // A page's bytes are its tokens.
  int64_t page_bytes() const override { return int64_t{limits_.page_size} * 4; }
  void read_page(int32_t page, std::span<std::byte> to) const override {
    std::memcpy(to.data(), memory_.data() + std::ptrdiff_t{page} * limits_.page_size, to.size());
  }
  void write_page(int32_t page, std::span<const int32_t> tokens, std::span<const std::byte> from) override {
    ARK_CHECK(std::ssize(tokens) == limits_.page_size && std::ssize(from) == page_bytes(), "no whole page");
    for (const auto& reads : reads_) ARK_CHECK(!reads.contains(page), "a step in flight reads the page");
    std::memcpy(memory_.data() + std::ptrdiff_t{page} * limits_.page_size, from.data(), from.size());
  }
  std::atomic<int64_t> computed{0};  // tokens that steps were posted with
  void fail_at(uint64_t step) { fail_at_ = step; }
  void poison(int32_t token) { poison_ = token; }  // what follows it has no finite logits

 private:
  using Tables = std::vector<std::vector<int32_t>>;
  int32_t page_of(const Tables& tables, int32_t slot, int32_t position) const {
    return tables.at(static_cast<std::size_t>(slot))
        .at(static_cast<std::size_t>(position / limits_.page_size));
  }
  static void apply(const StepDescriptor& step, Tables& tables) {
    for (const PageDelta& d : step.page_deltas) {
      auto& table = tables.at(static_cast<std::size_t>(d.slot));
      if (static_cast<int32_t>(table.size()) <= d.index)
        table.resize(static_cast<std::size_t>(d.index) + 1, -1);
      table[d.index] = d.page;
    }
  }
  // Nobody writes what a step in flight reads for another slot: pages come back only when their steps are done.
  void check_writes(const StepDescriptor& step) {
    apply(step, posted_tables_);
    std::map<int32_t, int32_t> reads;  // page -> slot, -1 for several
    for (const StepSequence& s : step.sequences)
      for (int32_t i = 0; i < s.kv_length + s.count; ++i) {
        const int32_t page = page_of(posted_tables_, s.slot, i);
        if (i >= s.kv_length)
          for (const auto& earlier : reads_)
            ARK_CHECK(!earlier.contains(page) || earlier.at(page) == s.slot,
                      "a step writes a page that one in flight reads for somebody else");
        const auto at = reads.emplace(page, s.slot).first;
        if (at->second != s.slot) at->second = -1;
      }
    reads_.push_back(std::move(reads));
  }

  StepResult execute(const StepDescriptor& step) {
    apply(step, tables_);
    int32_t next_token = 0;
    std::set<int32_t> slots, remembered;
    for (const StepSequence& s : step.sequences) {
      ARK_CHECK(s.first == next_token && s.count >= 1 && slots.insert(s.slot).second,
                "sequences do not tile the tokens");
      next_token += s.count;
      for (int32_t i = 0; i < s.count; ++i) {
        int32_t token = step.tokens.at(static_cast<std::size_t>(s.first + i));
        if (token == kFeedbackToken) token = last_.at(static_cast<std::size_t>(s.slot));
        cell(s.slot, s.kv_length + i) = token;
      }
    }
    StepResult result{++done_, {}};
    for (const StepRow& row : step.rows) {
      const auto s = std::find_if(step.sequences.begin(), step.sequences.end(),
                                  [&](const StepSequence& q) { return q.slot == row.slot; });
      std::vector<int32_t> history;
      for (int32_t i = 0; i <= s->kv_length + row.token - s->first; ++i) history.push_back(cell(row.slot, i));
      RowResult r;
      const auto may_come = [&](int32_t token) {
        const auto word = static_cast<std::size_t>(row.mask_first + token / 32);
        return row.mask_words == 0 || (step.masks.at(word) >> token % 32 & 1) != 0;
      };
      r.token = next(history, limits_.vocabulary, may_come);
      if (history.back() == poison_) r.token = -1;
      r.logprob = row.target >= 0 ? static_cast<float>(row.target) : static_cast<float>(r.token);
      if ((row.flags & (kWantToken | kTentative)) == kWantToken) {
        ARK_CHECK(remembered.insert(row.slot).second, "two rows of a slot are its last");
        last_.at(static_cast<std::size_t>(row.slot)) = r.token;
      }
      result.rows.push_back(r);
    }
    return result;
  }
  int32_t& cell(int32_t slot, int32_t position) {
    const int32_t page = page_of(tables_, slot, position);
    return memory_.at(static_cast<std::size_t>(page * limits_.page_size + position % limits_.page_size));
  }

  RunnerLimits limits_;
  std::vector<int32_t> memory_;
  Tables tables_, posted_tables_;                 // as executed, as posted
  std::deque<std::map<int32_t, int32_t>> reads_;  // of the steps in queue_
  std::vector<int32_t> last_;
  std::deque<StepDescriptor> queue_;
  int32_t poison_ = -1;
  uint64_t posted_ = 0, done_ = 0, fail_at_ = 0;
  std::atomic<uint64_t> allowed_{kAllSteps};
};

}  // namespace ark::test
