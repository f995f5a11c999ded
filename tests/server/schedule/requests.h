// Requests to the fake runner, and what comes of them.
#pragma once

#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

#include "server/schedule/ticket.h"
#include "tests/server/schedule/fake_runner.h"

namespace ark::test {

using schedule::Finish, schedule::GenerateRequest, schedule::Ticket, schedule::TokenEvent;

inline RunnerLimits small_limits(int32_t vocabulary = 50) {
  RunnerLimits l;
  l.max_tokens = 16, l.max_rows = 8, l.max_slots = 4, l.max_length = 64, l.page_size = 4, l.pages = 24,
  l.vocabulary = vocabulary;
  return l;
}

struct Outcome {
  Finish how = Finish::kRunning;
  std::vector<int32_t> tokens, prompt;  // of the prompt: those that came with a log-probability
};

// Texts of at most `most` tokens, no running sum of which is a multiple of `modulus`; they may end after each third.
class NoMultiples : public schedule::Constraint {
 public:
  NoMultiples(int32_t modulus, int32_t most) : modulus_(modulus), most_(most) {}

  bool may_come(int32_t token) const { return count_ < most_ && (sum_ + token) % modulus_ != 0; }
  void allowed(std::span<uint32_t> mask) override {
    for (std::size_t t = 0; t < mask.size() * 32; ++t) {
      mask[t / 32] &= ~(uint32_t{1} << t % 32);
      mask[t / 32] |= uint32_t{may_come(static_cast<int32_t>(t))} << t % 32;
    }
  }
  void accept(int32_t token) override {
    ARK_CHECK(may_come(token), "a token that may not come");
    sum_ += token, ++count_;
  }
  bool may_end() const override { return count_ % 3 == 0; }
  bool is_whole() const { return count_ == most_; }

 private:
  const int32_t modulus_, most_;
  int32_t sum_ = 0, count_ = 0;
};

// What the request comes to alone, by the fake runner's definition.
inline Outcome expected_outcome(const GenerateRequest& request, int32_t vocabulary = 50) {
  Outcome out{Finish::kLength, {}, {}};
  std::vector<int32_t> history = request.prompt;
  const auto start = request.constrain ? request.constrain() : nullptr;
  auto* form = static_cast<NoMultiples*>(start.get());
  while (static_cast<int32_t>(out.tokens.size()) < request.max_tokens && out.how == Finish::kLength) {
    const bool long_enough = std::ssize(out.tokens) + 1 >= request.min_tokens;
    const auto ends = [&](int32_t token) { return std::ranges::count(request.end_ids, token) > 0; };
    const auto follows = [&](int32_t token) {
      return !form || (ends(token) ? long_enough && form->may_end() : form->may_come(token));
    };
    out.tokens.push_back(FakeRunner::next(history, vocabulary, follows));
    history.push_back(out.tokens.back());
    if (ends(history.back()) && long_enough)
      out.how = Finish::kStop;
    else if (form && (form->accept(history.back()), form->is_whole()))
      out.how = Finish::kStop;
  }
  if (request.prompt_logprobs) out.prompt.assign(request.prompt.begin() + 1, request.prompt.end());
  return out;
}

// With a few tokens replaced, left out or put in.
inline std::vector<int32_t> edited(const std::vector<int32_t>& tokens, std::mt19937& random) {
  std::vector<int32_t> out;
  for (const int32_t token : tokens) {
    const unsigned how = random() % 20;
    if (how < 2) out.push_back(static_cast<int32_t>(random() % 9));
    if (how > 1 || how == 0) out.push_back(how > 2 ? token : token / 2);
  }
  return out;
}

// Ends, prompts and tokens of every kind; many begin alike.
inline GenerateRequest random_request(std::mt19937& random, int32_t vocabulary = 50) {
  const auto token = [&] { return static_cast<int32_t>(random() % static_cast<unsigned>(vocabulary)); };
  GenerateRequest r;
  for (unsigned i = random() % 2 ? random() % 20 : 0, first = random() % 2; i > 0; --i)  // as others begin
    r.prompt.push_back(static_cast<int32_t>(first + r.prompt.size() % 5));
  for (unsigned i = 0, n = 1 + random() % 30; i < n; ++i) r.prompt.push_back(token());
  r.client = random() % 8 == 0;
  if (random() % 8 == 0) r.cache_salt = "salt";
  r.max_tokens = static_cast<int32_t>(random() % std::min<std::size_t>(30, 64 - r.prompt.size()));
  if (random() % 2) r.end_ids = {token()};
  r.min_tokens = static_cast<int32_t>(random() % 4);
  r.prompt_logprobs = random() % 4 == 0;
  if (random() % 4 == 0) {
    const auto modulus = static_cast<int32_t>(2 + random() % 5),
               most = static_cast<int32_t>(3 + random() % 6 * 3);
    r.constrain = [=] { return std::make_unique<NoMultiples>(modulus, most); };
  }
  r.max_drafts = random() % 8 ? 1 + static_cast<int32_t>(random() % 15) : 0;
  if (random() % 2) r.expected = edited(expected_outcome(r, vocabulary).tokens, random);
  return r;
}

// The fake runner's log-probability of a prompt's token is that token.
inline Outcome collect(Ticket& ticket) {
  Outcome out;
  std::vector<TokenEvent> events;
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
       out.how == Finish::kRunning && std::chrono::steady_clock::now() < end;)
    out.how = ticket.wait(events, std::chrono::milliseconds(100));
  for (const TokenEvent& e : events) {
    if (e.is_prompt) ARK_CHECK(e.logprob == static_cast<float>(e.token), "another token's log-probability");
    (e.is_prompt ? out.prompt : out.tokens).push_back(e.token);
  }
  return out;
}

}  // namespace ark::test
