// What may follow a sequence's tokens: what followed when they last went like this.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ark::schedule {

// Looks in the sequence itself, and in a text that its client expects. A token costs the same however long these are.
//
// It has an opinion of the next token whether anybody acts on it or not, and so learns from every token what its
// opinions are worth before one costs anything.
class Lookup {
 public:
  static constexpr int32_t kNone = -1;  // no token

  explicit Lookup(std::span<const int32_t> expected);

  // `tokens`: all of the sequence, of which the first `prompt` were not generated.
  void follow(std::span<const int32_t> tokens, int32_t prompt);

  // The i-th token from here, kNone where there is no guess; and how likely it is if all before it come.
  int32_t token(int32_t i) const;
  double chance(int32_t i) const;
  // Whether the guesses are from the expected text.
  bool is_expected() const { return place_.at >= 0 && place_.at < expected_; }

 private:
  static constexpr int32_t kLongest = 16;                     // tokens that places are compared by
  static constexpr std::array<int32_t, 2> kLengths = {2, 6};  // of the ends that are found anywhere

  struct Place {
    int32_t at = kNone;    // in text_: what comes next, if this goes on as that did
    int32_t length = 0;    // tokens before it that are the same, as far as they are compared
    bool is_near = false;  // close to where the last guess went wrong: behind an edit
  };
  void append(int32_t token);
  void note_ends(int32_t end);
  int32_t common_length(int32_t end, int32_t last) const;
  Place find() const;

  std::vector<int32_t> text_;  // the expected text, kNone, the sequence
  const int32_t expected_;
  // By the hash of so many tokens: where they ended last, or in the expected text. A collision loses one.
  std::array<std::vector<int32_t>, kLengths.size()> ends_;
  std::array<int32_t, kLengths.size()> earlier_{};  // where the newest ends came before
  Place place_;
  int32_t lost_ = kNone;  // where the last wrong guess was from
  // The share of guesses that came true lately, of places anywhere and near, by classes of Place::length; first what is
  // likely, so that the first guesses are neither all nor none.
  std::array<std::array<double, 5>, 2> hits_{{{0.2, 0.35, 0.5, 0.7, 0.85}, {0.35, 0.6, 0.75, 0.85, 0.9}}};
};

}  // namespace ark::schedule
