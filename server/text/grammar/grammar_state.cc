#include "server/text/grammar/grammar_state.h"

#include <algorithm>

namespace ark::text {

GrammarState::GrammarState(Grammar::Ptr grammar, std::shared_ptr<const TokenTrie> trie,
                           std::vector<std::int32_t> visible_specials)
    : grammar_(std::move(grammar)),
      trie_(std::move(trie)),
      visible_specials_(std::move(visible_specials)),
      masks_(grammar_->masks(trie_, nullptr)),
      position_(masks_->start()) {}

bool GrammarState::allowed(std::span<std::uint32_t> mask) {
  renew();
  masks_->fill(position_, mask);
  for (const std::int32_t token : visible_specials_)
    if (token >= 0 && static_cast<std::size_t>(token) / 32 < mask.size() &&
        masks_->after(position_, token).state != grammar::Automaton::kDead)
      mask[token / 32] |= std::uint32_t{1} << token % 32;
  return std::any_of(mask.begin(), mask.end(), [](std::uint32_t word) { return word != 0; });
}

bool GrammarState::accept(std::int32_t token) {
  if (trie_->is_special(token) && std::ranges::find(visible_specials_, token) == visible_specials_.end())
    return false;
  renew();
  const auto next = masks_->after(position_, token);
  if (next.state == grammar::Automaton::kDead) return false;
  position_ = next;
  return true;
}

// Others may have filled what they share.
void GrammarState::renew() {
  if (!masks_->is_full()) return;
  const auto fresh = grammar_->masks(trie_, masks_.get());
  position_ = fresh->adopt(*masks_, position_);
  masks_ = fresh;
}

}  // namespace ark::text
