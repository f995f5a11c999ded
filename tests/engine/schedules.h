// Random schedules over jobs whose every logit is known beforehand: any batching, chunking, preemption,
// placement, forking and cancelling must give the bytes that the job gives alone.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/driving.h"

namespace ark::test {

// A sequence with all it comes to: tokens (prompt, then sampled ones) and what follows from each of them.
struct Job {
  std::vector<int32_t> tokens;
  int32_t prompt = 0;
  SamplingParams sampling;
  std::vector<std::pair<int32_t, float>> bias;
  std::vector<uint32_t> mask;
  std::vector<RowResult> rows;  // after each token; token and logprob from the last of the prompt on
};

inline StepRow row_of(const Job& job, int32_t token, int32_t slot, uint32_t flags) {
  StepRow row;
  row.token = token;
  row.slot = slot;
  row.flags = flags;
  row.prompt_length = job.prompt;
  row.sampling = job.sampling;
  return row;
}

// Runs `job` token by token to `length` tokens and writes down everything.
inline void run_job(StepRunner& runner, Job& job, int32_t length) {
  Sequence s{.slot = 0};
  int32_t page = 0;
  for (int32_t i = 0; i < length; ++i) {
    s.tokens.assign(job.tokens.begin(), job.tokens.end());
    StepDescriptor step;
    add_chunk(step, s, 1, runner.limits().page_size, page, false, 0);
    const bool samples = i + 1 >= job.prompt;
    StepRow row = row_of(job, 0, 0, samples ? kWantToken | kWantLogprob | kWantLogits : kWantLogits);
    row.bias_count = static_cast<int32_t>(job.bias.size());
    step.bias = job.bias;
    row.mask_words = static_cast<int32_t>(job.mask.size());
    step.masks = job.mask;
    step.rows = {row};
    runner.post(step);
    job.rows.push_back(wait_for(runner).rows[0]);
    if (samples) job.tokens.push_back(job.rows.back().token);
  }
  job.tokens.resize(static_cast<std::size_t>(length));
}

class RandomSchedule {
 public:
  RandomSchedule(StepRunner& runner, const std::vector<Job>& jobs, uint32_t seed)
      : runner_(runner),
        limits_(runner.limits()),
        jobs_(jobs),
        random_(seed),
        users_(static_cast<std::size_t>(limits_.pages)),
        slots_(static_cast<std::size_t>(limits_.max_slots)) {
    for (int32_t page = 0; page < limits_.pages; ++page) free_.push_back(page);
    std::shuffle(free_.begin(), free_.end(), random_);
    depth_ = 1 + below(2);
    greed_ = 1 + below(4);
  }

  // Posts `steps` steps and compares all that comes back; what differs first, or "".
  std::string run(int32_t steps) {
    for (int32_t n = 0; n < steps && wrong_.empty(); ++n) {
      for (Live& live : slots_) change(live);
      post();
      while (static_cast<int32_t>(flights_.size()) >= depth_) take();
    }
    while (!flights_.empty()) take();
    return wrong_;
  }

 private:
  struct Live {
    const Job* job = nullptr;  // null: the slot is free
    std::vector<int32_t> pages;
    int32_t told = 0;     // entries of `pages` that the device's table holds
    int32_t posted = 0;   // tokens
    int32_t sampled = 0;  // the slot's last sample is the token at this position; 0: none
    uint64_t last = 0;    // step that touches its pages last
  };
  struct Expected {
    const Job* job;
    int32_t position;
    uint32_t flags;
  };
  struct Flight {
    uint64_t step;
    std::vector<Expected> rows;
  };

  int32_t below(int32_t n) { return static_cast<int32_t>(random_() % static_cast<uint32_t>(n)); }
  bool one_in(int32_t n) { return below(n) == 0; }

  void drop(Live& live) {
    for (const int32_t page : live.pages) retiring_.emplace_back(live.last, page);
    live = {};
  }

  void change(Live& live) {
    if (live.job && one_in(24)) {  // preempted: all again, on other pages; the slot's last sample stays valid
      Live again{.job = live.job, .sampled = live.sampled};
      drop(live);
      live = again;
    } else if (live.job && (one_in(24) || live.posted == static_cast<int32_t>(live.job->tokens.size()))) {
      drop(live);
    } else if (!live.job && one_in(3)) {
      live.job = &jobs_[below(static_cast<int32_t>(jobs_.size()))];
    }
  }

  int32_t take_page() {
    if (free_.empty()) return -1;
    const int32_t page = free_.back();
    free_.pop_back();
    users_[page] = 1;
    return page;
  }

  // A second sequence that shares the full pages of `from` and gets a copy of the one that is begun.
  void fork(Live& from, Live& to, StepDescriptor& step) {
    const int32_t full = from.posted / limits_.page_size;
    Live twin{.job = from.job, .posted = from.posted, .last = from.last};
    for (int32_t i = 0; i < full; ++i) {
      twin.pages.push_back(from.pages[i]);
      ++users_[twin.pages.back()];
    }
    if (from.posted % limits_.page_size) {
      const int32_t page = take_page();
      if (page < 0) {
        for (const int32_t shared : twin.pages) --users_[shared];
        return;
      }
      step.page_copies.push_back({from.pages[full], page});
      twin.pages.push_back(page);
    }
    to = std::move(twin);
  }

  void post() {
    StepDescriptor step;
    Flight flight{};
    std::vector<Live*> touched;
    for (Live& to : slots_) {
      Live& from = slots_[below(limits_.max_slots)];
      if (to.job || !from.job || !from.posted || !one_in(12)) continue;
      fork(from, to, step);
      touched.insert(touched.end(), {&from, &to});
    }
    std::vector<int32_t> order(slots_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::shuffle(order.begin(), order.end(), random_);
    for (const int32_t slot : order) {
      Live& live = slots_[slot];
      if (live.job && below(4) < greed_ && add(slot, live, step, flight)) touched.push_back(&live);
    }
    if (step.tokens.empty()) {  // nothing is posted: no copy is made
      for (std::size_t i = 1; i < touched.size(); i += 2) drop(*touched[i]);
      return;
    }
    step.processors = below(5);
    flight.step = runner_.post(step);
    for (Live* live : touched) live->last = flight.step;
    flights_.push_back(std::move(flight));
  }

  // A chunk of the slot's next tokens; false if there is no room in the step or in the cache.
  bool add(int32_t slot, Live& live, StepDescriptor& step, Flight& flight) {
    const Job& job = *live.job;
    const int32_t left = static_cast<int32_t>(job.tokens.size()) - live.posted;
    const int32_t room = limits_.max_tokens - static_cast<int32_t>(step.tokens.size());
    const int32_t most = std::min(left, room);
    if (most < 1) return false;
    const int32_t count = one_in(2) ? 1 : one_in(2) ? most : 1 + below(most);
    // Behind it what does not follow, as wrong drafts: it must leave no trace.
    const int32_t wrong = std::min({below(4), room - count, limits_.max_length - live.posted - count});
    while (static_cast<int32_t>(live.pages.size()) * limits_.page_size < live.posted + count + wrong) {
      const int32_t page = take_page();
      if (page < 0) return false;
      live.pages.push_back(page);
    }
    for (; live.told < static_cast<int32_t>(live.pages.size()); ++live.told)
      step.page_deltas.push_back({slot, live.told, live.pages[live.told]});
    const auto first = static_cast<int32_t>(step.tokens.size());
    step.sequences.push_back({slot, first, count + wrong, live.posted});
    for (int32_t i = 0; i < count; ++i) {
      const int32_t position = live.posted + i;
      const bool feeds_back = i == 0 && live.sampled > 0 && live.sampled == position && !one_in(4);
      step.tokens.push_back(feeds_back ? kFeedbackToken : job.tokens[position]);
    }
    for (int32_t i = 0; i < wrong; ++i) step.tokens.push_back(below(limits_.vocabulary));
    int32_t sampled = live.sampled;
    for (int32_t i = 0; i < count; ++i) {
      if (static_cast<int32_t>(step.rows.size()) == limits_.max_rows) break;
      const int32_t position = live.posted + i;
      const bool samples = position + 1 >= job.prompt;
      if (one_in(samples ? 4 : 2)) continue;
      StepRow row = row_of(job, first + i, slot, samples ? kWantToken | kWantLogprob : kWantLogits);
      if (one_in(3)) row.flags |= kWantLogits;
      if (samples && i + 1 < count) row.flags |= kTentative;
      row.bias_first = static_cast<int32_t>(step.bias.size());
      row.bias_count = static_cast<int32_t>(job.bias.size());
      step.bias.insert(step.bias.end(), job.bias.begin(), job.bias.end());
      row.mask_first = static_cast<int32_t>(step.masks.size());
      row.mask_words = static_cast<int32_t>(job.mask.size());
      step.masks.insert(step.masks.end(), job.mask.begin(), job.mask.end());
      step.rows.push_back(row);
      flight.rows.push_back({&job, position, row.flags});
      if ((row.flags & (kWantToken | kTentative)) == kWantToken) sampled = position + 1;
    }
    live.sampled = sampled;
    live.posted += count;
    return true;
  }

  void take() {
    const StepResult result = wait_for(runner_);
    const Flight flight = std::move(flights_.front());
    flights_.pop_front();
    if (result.step != flight.step || result.rows.size() != flight.rows.size())
      wrong_ = "a step is out of order";
    for (std::size_t r = 0; r < flight.rows.size() && wrong_.empty(); ++r)
      compare(flight.rows[r], result.rows[r]);
    std::erase_if(retiring_, [&](const std::pair<uint64_t, int32_t>& page) {
      if (page.first > flight.step) return false;
      if (--users_[page.second] == 0)
        free_.insert(free_.begin() + below(static_cast<int32_t>(free_.size()) + 1), page.second);
      return true;
    });
  }

  void compare(const Expected& e, const RowResult& got) {
    const RowResult& want = e.job->rows[e.position];
    const auto what = [&](const char* part) {
      return std::string(part) + " of job " + std::to_string(e.job - jobs_.data()) + " after token " +
             std::to_string(e.position);
    };
    if ((e.flags & kWantLogits) &&
        (got.logits.size() != want.logits.size() ||
         std::memcmp(got.logits.data(), want.logits.data(), want.logits.size() * sizeof(float)) != 0))
      wrong_ = what("logits");
    if ((e.flags & kWantToken) && got.token != want.token) wrong_ = what("token");
    if ((e.flags & kWantLogprob) && got.logprob != want.logprob) wrong_ = what("logprob");
  }

  StepRunner& runner_;
  const RunnerLimits limits_;
  const std::vector<Job>& jobs_;
  std::mt19937 random_;
  int32_t depth_ = 1, greed_ = 1;  // steps in flight; of 4 sequences, how many take part in a step
  std::vector<int32_t> free_;
  std::vector<int32_t> users_;                          // by page
  std::vector<std::pair<uint64_t, int32_t>> retiring_;  // (last step that touches it, page)
  std::vector<Live> slots_;
  std::deque<Flight> flights_;
  std::string wrong_;
};

}  // namespace ark::test
