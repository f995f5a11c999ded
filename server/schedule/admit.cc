#include "server/schedule/admit.h"

#include <algorithm>

#include "base/error.h"
#include "server/schedule/order.h"
#include "server/schedule/prefix.h"

namespace ark::schedule {
namespace {

int32_t or_default(int32_t value, int32_t limit) { return value > 0 ? std::min(value, limit) : limit; }

// Whether those that wait go on waiting for others, as there is nothing else to do.
bool is_held(SchedulerState& state) {
  state.held_until = {};
  if (!state.economy.is_on() || state.waiting.empty() || !state.running.empty()) return false;
  int64_t tokens = 0;
  for (const auto& s : state.waiting) tokens += s->prompt_size();
  const auto hold = state.economy.hold(static_cast<int32_t>(state.waiting.size()),
                                       state.pace.each() * static_cast<double>(tokens));
  if (hold) state.held_until = state.waiting.front()->ticket->record().queued + *hold;
  if (state.held_until > state.now) return true;
  state.held_until = {};
  for (const auto& s : state.waiting)
    state.economy.held(std::chrono::duration<double>(state.now - s->ticket->record().queued).count());
  return false;
}

}  // namespace

SchedulerState::SchedulerState(const RunnerLimits& runner, const SchedulerOptions& given)
    : limits(runner),
      options{or_default(given.max_sequences, runner.max_slots),
              or_default(runner.parts_prompts != 0 ? given.max_batched_tokens : 0, runner.max_tokens),
              given.max_queue,
              given.max_restarts,
              given.prefix_cache && runner.shares_pages != 0,
              given.slo_itl,
              given.shortest_first,
              runner.shares_pages != 0 ? std::min(given.max_drafts, kMostDrafts) : 0,
              given.slo_ttft,
              given.economy},
      pages(runner.pages),
      economy(options.economy,
              {options.slo_ttft, options.slo_itl, runner.processors, options.max_sequences}) {
  for (int32_t slot = options.max_sequences; slot-- > 0;) free_slots.push_back(slot);
}

void check(const GenerateRequest& request, const RunnerLimits& limits) {
  const auto refuse = [](const std::string& why) { throw Error(Code::kInvalidArgument, why); };
  const auto length = static_cast<int64_t>(request.prompt.size()) + request.max_tokens;
  if (request.prompt.empty()) refuse("the prompt is empty; at least one token is needed");
  if (request.max_tokens < 0) refuse("max_tokens is negative");
  if (length > limits.max_length)
    refuse("prompt (" + std::to_string(request.prompt.size()) + " tokens) and max_tokens (" +
           std::to_string(request.max_tokens) + ") together exceed the model's context of " +
           std::to_string(limits.max_length) + " tokens");
  if (length > static_cast<int64_t>(limits.pages) * limits.page_size)
    refuse("prompt and max_tokens need " + std::to_string(length) + " tokens of KV cache, " +
           std::to_string(static_cast<int64_t>(limits.pages) * limits.page_size) +
           " exist; raise --kv-memory or ask for less");
  for (const int32_t token : request.prompt)
    if (token < 0 || token >= limits.vocabulary)
      refuse("token " + std::to_string(token) + " is not in the vocabulary of " +
             std::to_string(limits.vocabulary));
    else if (!limits.is_embedded(token))
      refuse("token " + std::to_string(token) + " has no row in the model's embedding of " +
             std::to_string(limits.embedded) + ": indices element out of data bounds");
  if (request.bias.size() > kMaxBias)
    refuse("logit_bias has " + std::to_string(request.bias.size()) + " entries; the limit is " +
           std::to_string(kMaxBias));
  for (const auto& [token, bias] : request.bias)
    if (token < 0 || token >= limits.vocabulary)
      refuse("logit_bias token " + std::to_string(token) + " is not in the vocabulary of " +
             std::to_string(limits.vocabulary));
}

void give_slots(SchedulerState& state) {
  if (is_held(state)) return;
  const int32_t most = state.pace.most_streams(state.options.slo_itl);
  look_ahead(state);
  give_turns(state);
  while (!state.waiting.empty() && !state.free_slots.empty() && std::ssize(state.running) < most) {
    const auto next = std::ranges::min_element(
        state.waiting, [&](const auto& a, const auto& b) { return goes_before(state, *a, *b); });
    const std::shared_ptr<Sequence> s = *next;
    s->slot = state.free_slots.back();
    state.free_slots.pop_back();
    s->pages_known = 0;
    take_prefix(state, *s);  // so that it is known how much is left
    s->ticket->mark_scheduled();
    state.running.insert(
        std::upper_bound(state.running.begin(), state.running.end(), s,
                         [](const auto& a, const auto& b) { return a->arrival < b->arrival; }),
        s);
    std::erase(state.waiting, s);  // last: who is in neither list when memory fails would never be told
  }
}

}  // namespace ark::schedule
