#include "server/schedule/batch.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "server/schedule/constrain.h"
#include "server/schedule/order.h"
#include "server/schedule/preempt.h"
#include "server/schedule/prefix.h"
#include "server/schedule/speculate.h"

namespace ark::schedule {
namespace {

// Pages for the first `tokens` tokens, and their entries in the device's table.
bool ensure_pages(SchedulerState& state, Sequence& s, int32_t tokens, StepDescriptor& step,
                  const Flight& building) {
  const int32_t size = state.limits.page_size, needed = (tokens + size - 1) / size;
  while (static_cast<int32_t>(s.pages.size()) < needed) {
    const int32_t page = state.pages.take();
    if (page >= 0) {
      s.pages.push_back(page);
      continue;
    }
    // Pages of finished steps come back by themselves; only when none is on its way, somebody must yield.
    if (state.pages.obtainable() > 0 || !preempt_youngest(state, s, building)) return false;
  }
  for (; s.pages_known < static_cast<int32_t>(s.pages.size()); ++s.pages_known)
    step.page_deltas.push_back({s.slot, s.pages_known, s.pages[s.pages_known]});
  return true;
}

// Adds up to `budget` tokens of `sequence`, and its drafts; none where it gets no pages or rows now.
void add_to_step(SchedulerState& state, const std::shared_ptr<Sequence>& sequence, int32_t budget,
                 StepDescriptor& step, Flight& flight) {
  Sequence& s = *sequence;
  const bool is_new = s.pages.empty();
  share_pages(state, s, false);
  take_prefix(state, s);
  const RunnerLimits& limits = state.limits;
  const int32_t rows_left = limits.max_rows - static_cast<int32_t>(step.rows.size());
  const auto drafts = static_cast<int32_t>(s.drafts.size());
  int32_t count = std::min(s.asked - s.posted + drafts, budget);
  if (s.request.prompt_logprobs) count = std::min(count, rows_left);  // at most one row a token
  if (count <= 0 || (rows_left == 0 && s.posted + count == s.asked)) return;
  if (limits.parts_prompts == 0 && s.posted + count < s.asked + drafts) return;  // the next step has room
  if (!ensure_pages(state, s, s.posted + count, step, flight)) {
    s.waits_for_pages = true;
    // Who cannot begin holds nobody up: pages that others have computed are found again.
    if (is_new) {
      give_back_pages(state, s);
      s.posted = 0;
    }
    return;
  }

  const auto first = static_cast<int32_t>(step.tokens.size());
  step.sequences.push_back({s.slot, first, count, s.posted});
  for (int32_t i = s.posted; i < s.posted + count; ++i)
    step.tokens.push_back(i < static_cast<int32_t>(s.tokens.size()) ? s.tokens[i]
                          : drafts > 0                              ? s.drafts[i - s.asked]
                                                                    : kFeedbackToken);
  StepRow row;
  row.slot = s.slot;
  row.prompt_length = s.prompt_size();
  row.top = std::max(0, s.request.top_logprobs);
  row.sampling = s.request.sampling;
  for (int32_t i = s.posted; i < s.posted + count && s.request.prompt_logprobs; ++i) {
    if (i < s.prompt_rows || i + 1 >= s.prompt_size()) continue;
    row.token = first + i - s.posted;
    row.flags = kWantLogprob;
    row.target = s.tokens[i + 1];
    step.rows.push_back(row);
    flight.rows.emplace_back(sequence, i + 1);
    s.prompt_rows = i + 1;
  }
  const int32_t read = std::max(0, std::min(s.posted + count, s.prompt_size()) - s.posted);
  count_tokens(state, s, read, count - read);
  s.cached += std::max(0, s.posted - s.furthest);
  const int32_t again = std::max(0, std::min(s.posted + count, s.furthest) - s.posted);
  s.posted += count;
  if (s.posted == s.asked + drafts && s.asked < s.target()) {
    row.flags = kWantToken | (s.request.top_logprobs >= 0 ? kWantLogprob : 0u);
    row.target = -1;
    row.bias_first = static_cast<int32_t>(step.bias.size());
    row.bias_count = static_cast<int32_t>(s.request.bias.size());
    step.bias.insert(step.bias.end(), s.request.bias.begin(), s.request.bias.end());
    add_mask(s, step, row);
    flight.is_alone |= is_constrained(s);
    s.drafted_at = s.asked;
    s.drafts_right = 0;
    for (int32_t i = 0; i <= drafts; ++i) {
      row.token = first + count - 1 - drafts + i;
      step.rows.push_back(row);
      if (i < drafts) step.rows.back().flags |= kTentative;
      flight.rows.emplace_back(sequence, s.asked + i);
    }
    ++s.asked;
    if (s.asked == s.prompt_size() + 1) {
      state.counts.prefix_queries += s.prompt_size();
      state.counts.prefix_hits += s.cached;
      s.ticket->mark_cached(s.cached);
    }
  }
  s.furthest = std::max(s.furthest, s.posted);
  share_pages(state, s, true);
  ++s.in_flight;
  flight.members.push_back(sequence);
  flight.parts.push_back(
      {count, again, s.redo, std::exchange(s.waits_for_pages, false), std::exchange(s.fetch_ns, 0)});
  state.counts.prompt_tokens += read;
}

// The oldest that waits for pages comes first, whatever the order: what it has taken from a younger one must not go
// back to that one, which would have to give it again, for ever.
void pages_first(std::vector<std::shared_ptr<Sequence>>& prompts) {
  auto oldest = prompts.end();
  for (auto it = prompts.begin(); it != prompts.end(); ++it)
    if ((*it)->waits_for_pages && (oldest == prompts.end() || (*it)->arrival < (*oldest)->arrival))
      oldest = it;
  if (oldest != prompts.end()) std::rotate(prompts.begin(), oldest, oldest + 1);
}

// Of the sequences that may run.
void fill_step(SchedulerState& state, const auto& may_run, bool may_draft, StepDescriptor& step,
               Flight& flight) {
  if (!state.flights.empty() && state.flights.back().is_alone) return;
  std::vector<std::shared_ptr<Sequence>> decoding, prompts;
  const auto add = [&](const std::shared_ptr<Sequence>& s, int32_t most) {
    const int32_t left = most - static_cast<int32_t>(step.tokens.size());
    if (s->posted == 0 && s->in_flight > 0) return;  // preempted: its last tokens are still to be told
    if (left > 0) add_to_step(state, s, left, step, flight);
  };
  for (const auto& s : state.running) {
    if (!s->can_run() || !may_run(*s)) continue;
    (s->is_decoding() ? decoding : prompts).push_back(s);
  }
  const bool has_drafts = may_draft && prompts.empty() && draft(state, decoding);
  if (has_drafts && !state.flights.empty()) return;  // soon it is known what they follow
  for (const auto& s : decoding)
    if (s->is_decoding())
      add(s, state.options.max_batched_tokens);
    else
      prompts.push_back(s);  // preempted for one before it
  const auto decodes = static_cast<int32_t>(flight.members.size());
  for (StepPart& part : flight.parts) part.prompt = part.again = 0;
  const int32_t drafts = static_cast<int32_t>(step.tokens.size()) - decodes;
  if (!prompts.empty()) {
    int32_t most = state.options.max_batched_tokens;
    if (state.options.slo_itl >= 0 && state.limits.parts_prompts != 0)
      most = std::min(most, decodes + state.pace.prompt_tokens(decodes, most, state.options.slo_itl));
    std::ranges::sort(prompts, [&](const auto& a, const auto& b) { return goes_before(state, *a, *b); });
    pages_first(prompts);
    for (const auto& s : prompts) add(s, most);
  }
  flight.load = {decodes, static_cast<int32_t>(step.tokens.size()) - decodes - drafts, {}, drafts};
  flight.is_alone |= drafts > 0;
}

}  // namespace

void fill_step(SchedulerState& state, StepDescriptor& step, Flight& flight) {
  const Sequence* suspect = nullptr;
  for (const auto& s : state.running)
    if (!suspect && s->is_suspect() && (s->has_work() || s->in_flight > 0)) suspect = s.get();
  const auto is_due = [&](const Sequence& s) { return !suspect || &s == suspect; };
  fill_step(state, is_due, !suspect, step, flight);
  // It may wait for pages of older ones, which then must go on; but nobody whose death in company would prove nothing.
  const auto is_clear = [](const Sequence& s) { return !s.is_suspect(); };
  if (suspect && step.tokens.empty() && state.flights.empty())
    fill_step(state, is_clear, false, step, flight);
}

}  // namespace ark::schedule
