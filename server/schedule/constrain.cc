#include "server/schedule/constrain.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace ark::schedule {
namespace {

// End tokens come where the text may end and nowhere else, also those that have a text.
void set_ends(Sequence& s, bool come) {
  for (const int32_t id : s.request.end_ids) {
    const auto word = static_cast<std::size_t>(id) / 32;
    if (id < 0 || word >= s.mask.size()) continue;
    const uint32_t bit = uint32_t{1} << id % 32;
    s.mask[word] = come ? s.mask[word] | bit : s.mask[word] & ~bit;
  }
}

// Whether the text may go on, as `mask` then says.
bool look_ahead(Sequence& s) {
  s.constraint->allowed(s.mask);
  set_ends(s, false);
  if (std::ranges::none_of(s.mask, [](uint32_t word) { return word != 0; })) return false;
  if (s.generated() + 1 >= s.request.min_tokens && s.constraint->may_end()) set_ends(s, true);
  return true;
}

[[noreturn]] void fail(const char* what) {
  throw Error(Code::kInvalidArgument,
              std::string("no token of the model's vocabulary ") + what + " in the form that is asked for");
}

}  // namespace

void begin_constraint(Sequence& s, int32_t vocabulary) {
  if (!s.request.constrain) return;
  s.constraint = s.request.constrain();
  s.mask.resize((static_cast<std::size_t>(vocabulary) + 31) / 32);
  if (!look_ahead(s)) fail("begins a text");
}

bool follow_constraint(Sequence& s) {
  s.constraint->accept(s.tokens.back());
  if (look_ahead(s)) return false;
  if (!s.constraint->may_end()) fail("continues the text");
  return true;
}

void add_mask(const Sequence& s, StepDescriptor& step, StepRow& row) {
  if (!is_constrained(s)) return;
  row.mask_first = static_cast<int32_t>(step.masks.size());
  row.mask_words = static_cast<int32_t>(s.mask.size());
  step.masks.insert(step.masks.end(), s.mask.begin(), s.mask.end());
}

}  // namespace ark::schedule
