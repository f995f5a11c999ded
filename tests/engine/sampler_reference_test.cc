// The sampler against a plain one in double, with everything drawn at random: parameters, biases, histories.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "engine/cpu/philox.h"
#include "engine/cpu/sampler.h"

namespace ark::test {
namespace {

using Bias = std::vector<std::pair<int32_t, float>>;

struct Case {
  std::vector<float> logits;
  std::vector<int32_t> history;
  Bias bias;
  std::vector<uint32_t> mask;  // none: any token may come
  StepRow row;
  int64_t position = 0;
};

Case random_case(std::mt19937& random) {
  const auto below = [&](uint32_t n) { return random() % n; };
  const auto uniform = [&](double low, double high) {
    return static_cast<float>(low + (high - low) * (random() * 0x1p-32));
  };
  Case c;
  c.logits.resize(2 + below(below(20) ? 400 : 20'000));  // some that take more than a piece
  const auto vocabulary = static_cast<uint32_t>(c.logits.size());
  std::normal_distribution<float> normal(0, 1 + static_cast<float>(below(4)));
  for (float& x : c.logits) x = normal(random);
  if (below(4) == 0)
    for (float& x : c.logits) x = std::round(x);  // ties
  for (uint32_t i = below(40); i > 0; --i) c.history.push_back(static_cast<int32_t>(below(vocabulary)));
  c.position = static_cast<int64_t>(c.history.size());
  for (uint32_t i = below(3) ? 0 : 4; i > 0; --i)
    c.bias.emplace_back(static_cast<int32_t>(below(vocabulary)), uniform(-10, 10));
  if (below(4) == 0) {
    c.mask.resize(1 + below(static_cast<uint32_t>(c.logits.size() + 31) / 32));
    for (uint32_t& word : c.mask) word = static_cast<uint32_t>(random() & random());
    c.mask[0] |= 1;
  }
  SamplingParams& p = c.row.sampling;
  p.temperature = below(5) == 0 ? 0 : uniform(0.2, 2);
  p.top_k = below(2) ? 0 : 1 + static_cast<int32_t>(below(vocabulary + 3));
  p.top_p = below(2) ? 1 : uniform(0.05, 1);
  p.min_p = below(2) ? 0 : uniform(0, 0.5);
  if (below(2)) p.presence_penalty = uniform(-2, 2);
  if (below(2)) p.frequency_penalty = uniform(-2, 2);
  if (below(2)) p.repetition_penalty = uniform(0.5, 2);
  p.seed = (uint64_t{random()} << 32) | random();
  c.row.flags = kWantToken | kWantLogprob;
  c.row.top = static_cast<int32_t>(below(kMaxTop + 1));
  c.row.prompt_length = static_cast<int32_t>(below(static_cast<uint32_t>(c.history.size()) + 1));
  return c;
}

std::vector<double> changed_logits(const Case& c) {
  const SamplingParams& p = c.row.sampling;
  std::vector<double> x(c.logits.begin(), c.logits.end());
  for (const auto& [token, value] : c.bias) x[token] += value;
  for (std::size_t t = 0; t < x.size() && !c.mask.empty(); ++t)
    if (t / 32 >= c.mask.size() || !(c.mask[t / 32] >> t % 32 & 1)) x[t] = -INFINITY;
  for (std::size_t t = 0; t < x.size(); ++t) {
    const auto token = static_cast<int32_t>(t);
    const auto all = std::count(c.history.begin(), c.history.end(), token);
    const auto generated = std::count(c.history.begin() + c.row.prompt_length, c.history.end(), token);
    if (all) x[t] = x[t] > 0 ? x[t] / p.repetition_penalty : x[t] * p.repetition_penalty;
    x[t] -= static_cast<double>(generated) * p.frequency_penalty + (generated ? p.presence_penalty : 0);
  }
  return x;
}

// Every token's rank in the end: -inf where a filter drops it. `doubt`: whether a filter's border or the pick
// itself hangs on less than what f32 can tell.
struct Choice {
  int32_t token = 0;
  bool doubt = false;
};

Choice choose(const Case& c, const std::vector<double>& x) {
  constexpr double kClose = 1e-5;
  const SamplingParams& p = c.row.sampling;
  std::vector<std::size_t> order(x.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return x[a] > x[b]; });
  const auto close = [](double a, double b) { return std::fabs(a - b) < kClose * (1 + std::fabs(a)); };
  if (p.temperature <= 0) {
    const bool tie = x.size() > 1 && x[order[0]] != x[order[1]] && close(x[order[0]], x[order[1]]);
    return {static_cast<int32_t>(order[0]), tie};
  }
  Choice choice;
  std::size_t kept = order.size();
  const auto cut = [&](std::size_t n) {  // between equals the lower id stays; near ones cannot be told apart
    if (n < kept && x[order[n - 1]] != x[order[n]] && close(x[order[n - 1]], x[order[n]]))
      choice.doubt = true;
    kept = std::min(kept, n);
  };
  if (p.top_k > 0) cut(static_cast<std::size_t>(p.top_k));
  const auto weight = [&](std::size_t i) { return std::exp((x[order[i]] - x[order[0]]) / p.temperature); };
  if (p.top_p < 1) {
    double total = 0, sum = 0;
    for (std::size_t i = 0; i < kept; ++i) total += weight(i);
    std::size_t n = 0;
    while (n < kept && sum < p.top_p * total) {
      sum += weight(n++);
      choice.doubt |= close(sum, p.top_p * total);
    }
    cut(n);
  }
  double best = -INFINITY;
  double second = -INFINITY;
  for (std::size_t i = 0; i < kept; ++i) {
    if (p.min_p > 0 && close(weight(i), p.min_p)) choice.doubt = true;
    if (weight(i) < p.min_p) break;
    const auto token = static_cast<uint32_t>(order[i]);
    const auto at = static_cast<uint64_t>(c.position);
    const auto block = philox4x32({token / 4, static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), 0},
                                  {static_cast<uint32_t>(p.seed), static_cast<uint32_t>(p.seed >> 32)});
    const double noise = -std::log(-std::log((block[token % 4] + 0.5) / 4294967296.0));
    const double score = x[order[i]] / p.temperature + noise;
    if (score > best) {
      second = best;
      best = score;
      choice.token = static_cast<int32_t>(token);
    } else {
      second = std::max(second, score);
    }
  }
  choice.doubt |= close(best, second);
  return choice;
}

TEST(SamplerReference, EqualsAPlainSamplerInDouble) {
  std::mt19937 random(17);
  int doubtful = 0;
  constexpr int kCases = 4000;
  for (int n = 0; n < kCases; ++n) {
    const Case c = random_case(random);
    const RowResult got = sample_row(c.logits, c.row, c.history, c.position,
                                     std::span<const std::pair<int32_t, float>>(c.bias), c.mask);
    const std::vector<double> x = changed_logits(c);
    const Choice want = choose(c, x);
    doubtful += want.doubt;
    ASSERT_TRUE(want.doubt || got.token == want.token)
        << "case " << n << ": " << got.token << " instead of " << want.token;
    double sum = 0;
    const double largest = *std::max_element(x.begin(), x.end());
    for (const double v : x) sum += std::exp(v - largest);
    const auto logprob = [&](int32_t t) { return x[t] - largest - std::log(sum); };
    // Each logit carries a few roundings of f32, relative to the largest magnitude that it went through.
    const double bound = 8 * 0x1p-24 * 64;
    ASSERT_TRUE(std::fabs(got.logprob - logprob(got.token)) <= bound) << "case " << n;
    const auto may_come = std::ranges::count_if(x, [](double v) { return v > -INFINITY; });
    ASSERT_EQ(got.top.size(), static_cast<std::size_t>(std::min<int64_t>(c.row.top, may_come)));
    for (const auto& [token, value] : got.top)
      ASSERT_TRUE(std::fabs(value - logprob(token)) <= bound) << "case " << n;
  }
  EXPECT_LT(doubtful, kCases / 20);
}

}  // namespace
}  // namespace ark::test
