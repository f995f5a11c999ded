#include "server/schedule/lookup.h"

#include <algorithm>
#include <bit>

namespace ark::schedule {
namespace {

constexpr int32_t kBefore = 8, kBehind = 32;  // tokens that an edit may have moved the text by
constexpr double kRate = 1.0 / 16;            // of learning

// 0 and 1, 2, 4, 8, 16 tokens on.
std::size_t class_of(int32_t length) {
  return static_cast<std::size_t>(std::bit_width(static_cast<uint32_t>(length | 1))) - 1;
}

}  // namespace

Lookup::Lookup(std::span<const int32_t> expected) : expected_(static_cast<int32_t>(expected.size())) {
  for (const int32_t token : expected) append(token);
  append(kNone);
}

void Lookup::follow(std::span<const int32_t> tokens, int32_t prompt) {
  const auto size = static_cast<int32_t>(tokens.size());
  for (auto i = static_cast<int32_t>(text_.size()) - expected_ - 1; i < size; ++i) {
    bool is_hit = false;
    if (i >= prompt && place_.at != kNone) {
      is_hit = text_[place_.at] == tokens[i];
      double& share = hits_[place_.is_near][class_of(place_.length)];
      share += kRate * (is_hit - share);
      if (!is_hit) lost_ = place_.at;
    }
    append(tokens[i]);
    const bool goes_on = is_hit && text_[place_.at + 1] != kNone;
    place_ = goes_on ? Place{place_.at + 1, std::min(place_.length + 1, kLongest), place_.is_near} : Place{};
    if (i + 1 == prompt && expected_ > 0)
      place_ = {0, kLongest, false};  // it begins as the client says
    else if (i + 1 >= prompt && (place_.length < kLengths.back() || (expected_ > 0 && !is_expected())))
      place_ = std::max(place_, find(), [](const Place& a, const Place& b) { return a.length < b.length; });
  }
}

int32_t Lookup::token(int32_t i) const {
  if (place_.at == kNone) return kNone;
  if (place_.at < expected_) return text_[std::min(place_.at + i, expected_)];
  // What repeats itself goes on doing so.
  return text_[place_.at + i % (static_cast<int32_t>(text_.size()) - place_.at)];
}

double Lookup::chance(int32_t i) const {
  return hits_[place_.is_near][class_of(std::min(place_.length + i, kLongest))];
}

void Lookup::append(int32_t token) {
  text_.push_back(token);
  const auto last = static_cast<int32_t>(text_.size()) - 1;
  if (ends_[0].size() >= 2 * text_.size()) return note_ends(last);
  for (auto& ends : ends_) ends.assign(std::bit_ceil(4 * text_.size() + 64), kNone);
  for (int32_t end = 0; end <= last; ++end) note_ends(end);
}

void Lookup::note_ends(int32_t end) {
  for (std::size_t n = 0; n < kLengths.size(); ++n) {
    if (end + 1 < kLengths[n]) continue;
    uint64_t hash = 0;
    for (int32_t i = end - kLengths[n] + 1; i <= end; ++i)
      hash = (hash ^ static_cast<uint32_t>(text_[i])) * 0x9E3779B97F4A7C15u;
    int32_t& found = ends_[n][static_cast<std::size_t>(hash >> 32) & (ends_[n].size() - 1)];
    earlier_[n] = found;
    // What the client expects is found first.
    if (found == kNone || found >= expected_ || end < expected_ || common_length(found, end) < kLengths[n])
      found = end;
  }
}

// How many tokens up to `end` are the same as those up to `last`.
int32_t Lookup::common_length(int32_t end, int32_t last) const {
  int32_t length = 0;
  while (length < kLongest && length <= end && text_[last - length] != kNone &&
         text_[end - length] == text_[last - length])
    ++length;
  return length;
}

// The place whose end is longest, where in an expected text enough is all; of equal ones the nearest to the last wrong
// guess, then the latest.
Lookup::Place Lookup::find() const {
  const auto last = static_cast<int32_t>(text_.size()) - 1;
  Place best;
  const auto look = [&](int32_t end, int32_t least, bool is_near) {
    if (end < 0 || end >= last || text_[end + 1] == kNone) return;
    int32_t length = common_length(end, last);
    if (end < expected_ && length >= kLengths.back()) length = kLongest + 1;
    if (length >= least && length > best.length) best = {end + 1, length, is_near};
  };
  for (int32_t by = 0; by <= kBehind && lost_ != kNone; ++by) {
    look(lost_ + by, 1, true);
    if (by <= kBefore) look(lost_ - by, 1, true);
  }
  for (std::size_t n = kLengths.size(); n-- > 0;) look(earlier_[n], kLengths[n], false);
  return best;
}

}  // namespace ark::schedule
