#include "server/text/added_tokens.h"

#include <algorithm>

#include "server/text/unicode.h"

namespace ark::text {
namespace {

std::size_t previous_begin(std::string_view text, std::size_t at) {
  do --at;
  while (at > 0 && is_continuation(text[at]));
  return at;
}

bool word_before(std::string_view text, std::size_t at) {
  if (at == 0) return false;
  std::size_t begin = previous_begin(text, at);
  return is_word(next_char(text, begin));
}

bool word_after(std::string_view text, std::size_t at) {
  return at < text.size() && is_word(next_char(text, at));
}

std::size_t skip_space_back(std::string_view text, std::size_t at, std::size_t low) {
  while (at > low) {
    const std::size_t begin = previous_begin(text, at);
    std::size_t probe = begin;
    if (begin < low || !is_whitespace(next_char(text, probe))) break;
    at = begin;
  }
  return at;
}

std::size_t skip_space(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    std::size_t next = at;
    if (!is_whitespace(next_char(text, next))) break;
    at = next;
  }
  return at;
}

AddedToken read_token(const JsonView& json, const Normalizer& normalizer, Budget& budget) {
  json.object();
  AddedToken token;
  token.id = Vocabulary::checked_id(json.at("id"));
  token.content = json.at("content").string();
  token.special = json.at("special").boolean_or(false);
  token.single_word = json.at("single_word").boolean_or(false);
  token.lstrip = json.at("lstrip").boolean_or(false);
  token.rstrip = json.at("rstrip").boolean_or(false);
  token.normalized = json.at("normalized").boolean_or(!token.special);
  token.text = token.content;
  if (token.normalized) normalizer.apply(token.text, budget);
  return token;
}

}  // namespace

AddedTokens::AddedTokens(const JsonView& list, const Normalizer& normalizer, Budget& budget) {
  if (list.is_null()) return;
  list.array();
  for (std::size_t i = 0; i < list.size(); ++i) {
    AddedToken token = read_token(list.at(i), normalizer, budget);
    if (token.content.empty() || !ids_.emplace(token.content, token.id).second) continue;
    if (token.special) special_.emplace(token.content, true);
    by_id_[token.id] = tokens_.size();
    if (!token.text.empty()) (token.normalized ? normalized_ : plain_).insert(token.text, tokens_.size());
    tokens_.push_back(std::move(token));
  }
}

const AddedToken* AddedTokens::token(std::int32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

std::optional<std::int32_t> AddedTokens::find_id(std::string_view content) const {
  const auto found = ids_.find(content);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

void AddedTokens::Matcher::insert(std::string_view pattern, std::size_t token) {
  std::int32_t& known = trie_[pattern];
  if (known < 0) known = static_cast<std::int32_t>(token);
  starts_[static_cast<unsigned char>(pattern[0])] = true;
}

std::vector<Section> AddedTokens::Matcher::find(std::string_view text, const AddedTokens& owner,
                                                Budget& budget) const {
  budget.charge_reading(text.size());
  std::vector<Section> sections;
  std::size_t done = 0;  // everything before is in a section
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* longest = nullptr;
    std::size_t begin = at, end = at + 1;
    if (starts_[static_cast<unsigned char>(text[at])])
      budget.charge(trie_.visit_prefixes(text.substr(at), [&](std::size_t length, std::int32_t index) {
        longest = &owner.tokens_[static_cast<std::size_t>(index)];
        end = begin + length;
      }));
    at = end;
    if (!longest) continue;
    const AddedToken& token = *longest;
    if (token.single_word && (word_before(text, begin) || word_after(text, end))) continue;
    // One that starts in the blanks that the token before has swallowed keeps what is left of it.
    begin = std::max(token.lstrip ? skip_space_back(text, begin, done) : begin, done);
    if (token.rstrip) end = skip_space(text, end);
    if (done < begin) sections.push_back({done, begin, std::nullopt});
    sections.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) sections.push_back({done, text.size(), std::nullopt});
  return sections;
}

}  // namespace ark::text
