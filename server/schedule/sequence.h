// One request as the scheduler works on it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "server/schedule/lookup.h"
#include "server/schedule/page_source.h"
#include "server/schedule/ticket.h"

namespace ark::schedule {

struct Sequence {
  GenerateRequest request;
  std::shared_ptr<Ticket> ticket;
  uint64_t arrival = 0;  // order of submission
  int64_t born = 0;      // the client's `served` then (goes_before)

  std::vector<int32_t> tokens;  // prompt, then generated as far as results are known
  int32_t asked = 0;            // tokens that are known once all steps in flight are done; >= tokens.size()
  int32_t posted = 0;  // tokens [0, posted) have been given to steps; the KV cache holds them by then
  // The log-probabilities of what follows prompt positions [0, prompt_rows) were asked for.
  int32_t prompt_rows = 0;
  int32_t in_flight = 0;   // posted steps that are not done and hold this sequence
  uint64_t last_step = 0;  // last step that touches its pages

  std::vector<int32_t> scope;              // whose pages it shares (prefix.h)
  std::unique_ptr<Constraint> constraint;  // null: the text may be any
  std::vector<uint32_t> mask;              // then: what may follow `tokens` (constrain.h)

  int32_t slot = -1;
  std::vector<int32_t> pages;
  int32_t pages_known = 0;     // entries of `pages` that the device's table holds
  int32_t shared = 0;          // entries of `pages` that are published: never written again
  int32_t furthest = 0;        // the most that `posted` has been behind a step
  int32_t cached = 0;          // tokens that others had computed before it came so far
  int32_t found = 0;           // while it waits for a slot: tokens of which pages were there at the last look
  int64_t looked = -1;         // steps before that look; -1: there was none
  Cause redo = Cause::kPages;  // why tokens up to there are computed again
  bool waits_for_pages = false;  // since its last step
  bool has_turn = false;  // late, and of those of its client the one that is served all the same (give_turns)
  bool done = false;      // finished towards the client; rows still in flight are ignored

  // Pages that other servers are asked for (neighbour.h). While they come the sequence is in no step.
  std::unique_ptr<PageFetch> fetch;
  int32_t fetched = 0, fetch_end = 0;  // the page that comes next, and the one behind the last
  bool was_asked = false;              // once in its life
  bool follows = false;                // another one waits for the page that it lacks
  std::chrono::steady_clock::time_point fetch_began{};
  int64_t fetch_ns = 0;  // waited for them since its last step

  // Guesses of what follows; those that a step in flight computes from index `drafted_at` on, whether the client
  // expects them, and how many were right. Then no other step is in flight, and `asked` counts one of its tokens only.
  std::unique_ptr<Lookup> lookup;
  std::vector<int32_t> drafts;
  int32_t drafted_at = 0, drafts_right = 0;
  bool drafts_expected = false;
  bool drafts_asked = false;  // of the draft model
  double agreement = -1;      // how many of that one's guesses come true; below 0: not known

  // How often the runner was lost with a step of this sequence in flight that brought it no further than a few tokens;
  // and with how many tokens it is cleared.
  int32_t losses = 0, cleared_at = 0;

  int32_t prompt_size() const { return static_cast<int32_t>(request.prompt.size()); }
  int32_t generated() const { return static_cast<int32_t>(tokens.size()) - prompt_size(); }
  // Length it may reach at most: prompt + max_tokens.
  int32_t target() const { return prompt_size() + request.max_tokens; }
  // Something is left to post: tokens to sample, or prompt log-probabilities to ask for.
  bool has_work() const {
    return !done && (asked < target() || (request.prompt_logprobs && prompt_rows + 1 < prompt_size()));
  }
  bool waits_for_others() const { return !done && (fetch || follows); }
  bool can_run() const { return has_work() && !waits_for_others(); }
  // To blame, perhaps: it runs alone until that is settled.
  bool is_suspect() const { return !done && losses > 1 && static_cast<int32_t>(tokens.size()) < cleared_at; }
  bool is_decoding() const { return posted + 1 >= asked && posted >= prompt_size(); }
};

}  // namespace ark::schedule
