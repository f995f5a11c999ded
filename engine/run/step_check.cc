#include "engine/run/step_check.h"

#include <string>

#include "base/error.h"

namespace ark {
namespace {

void in_range(int64_t value, int64_t end, const char* what) {
  ARK_CHECK(value >= 0 && value < end, std::string("step descriptor: ") + what + " " + std::to_string(value) +
                                           " is not in [0, " + std::to_string(end) + ")");
}

}  // namespace

int64_t count_items(std::span<const StepSequence> sequences, int most) {
  int64_t items = 0;
  for (const StepSequence& s : sequences) items += count_items(s.kv_length, s.count, most);
  return items;
}

void check_step(const StepDescriptor& step, const RunnerLimits& l, int64_t max_items) {
  const auto tokens = static_cast<int64_t>(step.tokens.size());
  ARK_CHECK(tokens > 0, "step descriptor without tokens");
  in_range(tokens, int64_t{l.max_tokens} + 1, "number of tokens");
  in_range(static_cast<int64_t>(step.rows.size()), int64_t{l.max_rows} + 1, "number of rows");
  int64_t next = 0;
  for (const StepSequence& s : step.sequences) {
    in_range(s.slot, l.max_slots, "slot");
    ARK_CHECK(s.first == next && s.count > 0, "step descriptor: sequences do not tile the tokens");
    next += s.count;
    in_range(s.kv_length, l.max_length, "kv_length");
    in_range(int64_t{s.kv_length} + s.count, int64_t{l.max_length} + 1, "length of a sequence");
  }
  ARK_CHECK(next == tokens, "step descriptor: sequences do not cover the tokens");
  ARK_CHECK(count_items(step.sequences, kItemTokens) <= max_items,
            "a step of more attention items than the program was compiled for; the scheduler must split it");
  for (const int32_t t : step.tokens) {
    if (t != kFeedbackToken) in_range(t, l.vocabulary, "token");
  }
  const int64_t pages_per_slot = (int64_t{l.max_length} + l.page_size - 1) / l.page_size;
  for (const PageDelta& d : step.page_deltas) {
    in_range(d.slot, l.max_slots, "slot of a page delta");
    in_range(d.index, pages_per_slot, "index of a page delta");
    in_range(d.page, l.pages, "page of a page delta");
  }
  for (const PageCopy& c : step.page_copies) {
    in_range(c.from, l.pages, "source of a page copy");
    in_range(c.to, l.pages, "target of a page copy");
  }
  for (const StepRow& r : step.rows) {
    in_range(r.token, tokens, "token of a row");
    in_range(r.slot, l.max_slots, "slot of a row");
    in_range(r.bias_first, static_cast<int64_t>(step.bias.size()) + 1, "first bias of a row");
    in_range(int64_t{r.bias_first} + r.bias_count, static_cast<int64_t>(step.bias.size()) + 1,
             "last bias of a row");
    in_range(r.mask_first, static_cast<int64_t>(step.masks.size()) + 1, "first word of a row's mask");
    in_range(int64_t{r.mask_first} + r.mask_words, static_cast<int64_t>(step.masks.size()) + 1,
             "last word of a row's mask");
  }
}

}  // namespace ark
