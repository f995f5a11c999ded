#include "server/text/grammar/grammar_state.h"

#include <algorithm>

namespace ark::text {
namespace {

// Steps of some 50 ns: what a text may cost at once, and each token in the long run.
constexpr std::size_t kMaxStateWork = 4'000'000, kWorkPerToken = 100'000;

}  // namespace

GrammarState::GrammarState(Grammar::Ptr grammar, std::shared_ptr<const TokenTrie> trie,
                           std::vector<std::int32_t> visible_specials)
    : grammar_(std::move(grammar)),
      trie_(std::move(trie)),
      visible_specials_(std::move(visible_specials)),
      masks_(grammar_->masks(trie_, nullptr)),
      work_left_(kMaxStateWork) {
  position_ = masks_->start(work_left_);
}

bool GrammarState::allowed(std::span<std::uint32_t> mask) {
  renew();
  masks_->fill(position_, mask, work_left_);
  for (const std::int32_t token : visible_specials_)
    if (token >= 0 && static_cast<std::size_t>(token) / 32 < mask.size() &&
        masks_->after(position_, token, work_left_).state != grammar::Automaton::kDead)
      mask[token / 32] |= std::uint32_t{1} << token % 32;
  return std::any_of(mask.begin(), mask.end(), [](std::uint32_t word) { return word != 0; });
}

bool GrammarState::accept(std::int32_t token) {
  if (trie_->is_special(token) && std::ranges::find(visible_specials_, token) == visible_specials_.end())
    return false;
  renew();
  const auto next = masks_->after(position_, token, work_left_);
  if (next.state == grammar::Automaton::kDead) return false;
  position_ = next;
  work_left_ = std::min(work_left_ + kWorkPerToken, kMaxStateWork);
  return true;
}

// Others may have filled what they share.
void GrammarState::renew() {
  if (!masks_->is_full()) return;
  const auto fresh = grammar_->masks(trie_, masks_.get());
  position_ = fresh->adopt(*masks_, position_, work_left_);
  masks_ = fresh;
}

}  // namespace ark::text
