#include "engine/cpu/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "engine/cpu/philox.h"
#include "engine/cpu/simd/table.h"
#include "tests/engine/panels.h"

namespace ark::test {
namespace {

std::vector<float> random_logits(std::size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> v(n);
  for (float& x : v) x = normal(random);
  return v;
}

RowResult sample(const std::vector<float>& logits, const StepRow& row, int64_t position = 0,
                 const std::vector<int32_t>& history = {},
                 const std::vector<std::pair<int32_t, float>>& bias = {},
                 const std::vector<uint32_t>& mask = {}) {
  return sample_row(logits, row, history, position, std::span<const std::pair<int32_t, float>>(bias), mask);
}

StepRow row_of(SamplingParams sampling, uint32_t flags = kWantToken) {
  StepRow row;
  row.flags = flags;
  row.sampling = sampling;
  return row;
}

TEST(Philox, EqualsThePublishedVectors) {  // Random123's kat_vectors
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Sampler, GreedyTakesTheLowestOfEquals) {
  std::vector<float> logits(50, 0);
  logits[20] = logits[33] = 4;
  EXPECT_EQ(sample(logits, row_of({.temperature = 0})).token, 20);
  EXPECT_EQ(sample(logits, row_of({.temperature = 0}), 0, {}, {{33, 1.f}}).token, 33);
  EXPECT_EQ(sample(logits, row_of({.temperature = 0}), 0, {}, {{20, -100.f}}).token, 33);
}

TEST(Sampler, PicksFromTheMaskOnly) {
  std::vector<float> logits(50, 0);
  logits[20] = 4, logits[33] = 3, logits[40] = 5;
  StepRow row = row_of({.temperature = 0}, kWantToken | kWantLogprob);
  row.top = 5;
  const std::vector<uint32_t> two = {1u << 3, 1u << (33 % 32)}, short_one = {1u << 20};
  const RowResult best = sample(logits, row, 0, {}, {}, two);
  EXPECT_EQ(best.token, 33);
  EXPECT_NEAR(best.logprob, -std::log1p(std::exp(-3.0)), 1e-6) << "of what may come";
  ASSERT_EQ(best.top.size(), 2u) << "what may not come is not told";
  EXPECT_EQ(best.top[1].first, 3);
  EXPECT_EQ(sample(logits, row, 0, {}, {}, short_one).token, 20) << "what is beyond the words may not come";
  EXPECT_EQ(sample(logits, row, 0, {}, {{3, 50.f}}, two).token, 3);
  EXPECT_EQ(sample(logits, row, 0, {}, {}, {0u}).token, -1) << "nothing may come";
  row.sampling = {.temperature = 1, .top_k = 1};
  EXPECT_EQ(sample(logits, row, 0, {}, {}, two).token, 33) << "filters see what may come";
}

TEST(Sampler, PicksNothingWhereALogitIsNaNOrInfinity) {
  constexpr uint32_t kAll = kWantToken | kWantLogprob;
  for (const float bad : {NAN, INFINITY, -INFINITY})
    for (const SamplingParams& p : {SamplingParams{.temperature = 0}, {.temperature = 1}, {.top_k = 3}}) {
      EXPECT_EQ(sample(std::vector<float>(50, bad), row_of(p)).token, -1) << bad;
      std::vector<float> one(50, 0);
      one[7] = bad;
      StepRow row = row_of(p, kAll);
      row.top = 5;
      const RowResult result = sample(one, row);
      const bool is_mask = bad == -INFINITY;  // no choice among others
      EXPECT_EQ(result.token == -1, !is_mask) << bad;
      EXPECT_EQ(std::isnan(result.logprob), !is_mask) << bad;
      EXPECT_EQ(result.top.empty(), !is_mask) << bad;
    }
}

TEST(Sampler, TellsOfNaNWhereOnlyATokenOfThePromptIsScored) {
  std::vector<float> logits(50, 0);
  logits[7] = NAN;
  StepRow row = row_of({}, kWantLogprob);
  row.target = 3;
  EXPECT_TRUE(std::isnan(sample(logits, row).logprob));
}

// Frequencies over many positions against softmax: chi-square with its 1e-6 quantile.
void expect_distribution(const std::vector<float>& logits, const SamplingParams& p,
                         const std::vector<double>& exact) {
  constexpr int kDraws = 20000;
  std::vector<int> counts(logits.size());
  for (int i = 0; i < kDraws; ++i) ++counts[sample(logits, row_of(p), i).token];
  double chi = 0;
  int cells = -1;
  for (std::size_t t = 0; t < exact.size(); ++t) {
    if (exact[t] == 0) {
      EXPECT_EQ(counts[t], 0) << t;
      continue;
    }
    const double expected = exact[t] * kDraws;
    chi += (counts[t] - expected) * (counts[t] - expected) / expected;
    ++cells;
  }
  EXPECT_LE(chi, cells + 4.8 * std::sqrt(2.0 * cells) + 16) << "cells " << cells;
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature,
                            const std::vector<bool>& keep) {
  std::vector<double> p(logits.size());
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) sum += p[i] = keep[i] ? std::exp(logits[i] / temperature) : 0;
  for (double& x : p) x /= sum;
  return p;
}

TEST(Sampler, DrawsFromTheSoftmax) {
  const std::vector<float> logits = {0, 1, 2, 0.5f, -1, 1.5f, 0.2f};
  expect_distribution(logits, {.temperature = 0.7f, .seed = 5},
                      softmax(logits, 0.7, std::vector<bool>(7, true)));
}

TEST(Sampler, FiltersKeepExactlyTheirSets) {
  const std::vector<float> logits = {0, 1, 2, 0.5f, -1, 1.5f, 0.2f};
  expect_distribution(logits, {.top_k = 2, .seed = 1},
                      softmax(logits, 1, {false, false, true, false, false, true, false}));
  // Sorted probabilities: 0.395, 0.239, 0.145, 0.088, ...: three reach 0.7.
  expect_distribution(logits, {.top_p = 0.7f, .seed = 2},
                      softmax(logits, 1, {false, true, true, false, false, true, false}));
  // exp(l - 2) >= 0.2: l >= 0.39.
  expect_distribution(logits, {.min_p = 0.2f, .seed = 3},
                      softmax(logits, 1, {false, true, true, true, false, true, false}));
}

TEST(Sampler, TopPEqualsAFullSort) {
  const auto logits = random_logits(3000, 9);
  std::vector<std::size_t> order(logits.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
  const auto p = softmax(logits, 1, std::vector<bool>(logits.size(), true));
  std::vector<bool> kept(logits.size());
  double sum = 0;
  for (std::size_t i = 0; sum < 0.9; ++i) sum += p[order[i]], kept[order[i]] = true;
  for (int i = 0; i < 300; ++i) {
    const int32_t token = sample(logits, row_of({.top_p = 0.9f, .seed = 4}), i).token;
    EXPECT_TRUE(kept[token]) << token;
  }
}

TEST(Sampler, PenaltiesFollowTheirDefinitions) {
  const std::vector<float> logits = {2, -1, 1, 0.5f, 0.25f, 0};
  const std::vector<int32_t> history = {0, 1, 2, 2, 3};
  StepRow row = row_of(
      {.temperature = 0, .presence_penalty = 0.5f, .frequency_penalty = 0.25f, .repetition_penalty = 2},
      kWantToken);
  row.prompt_length = 2;
  row.top = 6;
  const RowResult result = sample(logits, row, 5, history);
  // prompt: 0, 1; generated: 2, 2, 3.
  const std::map<int32_t, double> changed = {{0, 1},    {1, -2}, {2, 0.5 - 0.5 - 0.5}, {3, 0.25 - 0.25 - 0.5},
                                             {4, 0.25}, {5, 0}};
  double sum = 0;
  for (const auto& [t, l] : changed) sum += std::exp(l);
  ASSERT_EQ(result.top.size(), 6u);
  EXPECT_EQ(result.token, 0);
  for (std::size_t i = 0; i < result.top.size(); ++i) {
    EXPECT_TRUE(std::fabs(result.top[i].second - (changed.at(result.top[i].first) - std::log(sum))) <= 1e-6);
    EXPECT_LE(result.top[i].second, result.top[i ? i - 1 : 0].second);
  }
}

TEST(Sampler, ReportsTheLogprobOfTargetOrToken) {
  const auto logits = random_logits(1000, 3);
  double sum = 0;
  for (float l : logits) sum += std::exp(static_cast<double>(l));
  StepRow row = row_of({.seed = 6}, kWantToken | kWantLogprob);
  RowResult result = sample(logits, row, 4);
  EXPECT_TRUE(std::fabs(result.logprob - (logits[result.token] - std::log(sum))) <= 1e-5);
  row.target = 17;
  result = sample(logits, row, 4);
  EXPECT_TRUE(std::fabs(result.logprob - (logits[17] - std::log(sum))) <= 1e-5);
}

// What whole rows are looked at with, by every instruction set: equal bits, no token left out that may win, few others.
TEST(Sampler, EveryInstructionSetFindsTheSameTokens) {
  for (const std::size_t n : {1u, 15u, 64u, 65u, 1'000u, 5'003u}) {
    std::vector<float> logits = random_logits(n, static_cast<uint32_t>(n));
    if (n > 20) logits[n / 2] = -INFINITY;
    const float largest = *std::ranges::max_element(logits), least = largest - 3;
    const auto count = static_cast<int64_t>(n);
    double sum = 0;
    std::vector<int32_t> near, winners;
    constexpr float kScale = 1.25f, kBest = 0.5f;
    for (std::size_t t = 0; t < n; ++t) {
      const double d = (logits[t] - largest) * double{kScale};
      const uint32_t bits = philox4x32({static_cast<uint32_t>(t) / 4, 70'000, 3, 0}, {5, 9})[t % 4];
      if (d - std::log(-std::log((bits + 0.5) * 0x1p-32)) >= kBest)
        winners.push_back(static_cast<int32_t>(t));
      if (logits[t] >= least) near.push_back(static_cast<int32_t>(t));
      sum += std::exp(d);
    }
    const double first = simd::table_of(Isa::kScalar).exps(logits.data(), count, largest, kScale, nullptr);
    EXPECT_TRUE(std::fabs(first - sum) <= 1e-5 * sum) << n;
    std::vector<int32_t> found_first;
    for (const Isa isa : isas()) {
      const simd::Table& kernels = simd::table_of(isa);
      std::vector<float> exps(n, NAN);
      EXPECT_EQ(kernels.exps(logits.data(), count, largest, kScale, exps.data()), first) << kernels.name;
      for (std::size_t t = 0; t < n; ++t)
        EXPECT_TRUE(std::fabs(exps[t] - std::exp((logits[t] - largest) * double{kScale})) <= 1e-6 * exps[t])
            << t;
      std::vector<int32_t> ids(n), found(n);
      std::vector<uint32_t> words(n);
      ids.resize(static_cast<std::size_t>(kernels.at_least(logits.data(), count, least, ids.data())));
      EXPECT_EQ(ids, near) << kernels.name;
      found.resize(static_cast<std::size_t>(
          kernels.noisy({logits.data(), 0, count, largest, kScale, kBest, (uint64_t{3} << 32) + 70'000,
                         (uint64_t{9} << 32) + 5, found.data(), words.data()})));
      for (std::size_t i = 0; i < found.size(); ++i) {
        const auto t = static_cast<uint32_t>(found[i]);
        EXPECT_EQ(words[i], philox4x32({t / 4, 70'000, 3, 0}, {5, 9})[t % 4]) << kernels.name;
      }
      EXPECT_TRUE(std::ranges::includes(found, winners)) << kernels.name;
      EXPECT_LE(found.size(), 2 * winners.size() + 4) << kernels.name;
      if (isa == Isa::kScalar) found_first = found;
      EXPECT_EQ(found, found_first) << kernels.name;
    }
  }
}

TEST(Sampler, AnyTemperaturePicksWhatExactScoresDo) {
  const auto logits = random_logits(9'000, 4);
  for (const float temperature : {1e-30f, 1e-12f, 1e-6f, 0.01f, 1.f, 100.f, 1e30f}) {
    for (int64_t position = 0; position < 20; ++position) {
      double best = -INFINITY;
      int32_t token = 0;
      for (uint32_t t = 0; t < logits.size(); ++t) {
        const uint32_t bits = philox4x32({t / 4, static_cast<uint32_t>(position), 0, 0}, {11, 0})[t % 4];
        const double score = logits[t] * (1.0 / temperature) - std::log(-std::log((bits + 0.5) * 0x1p-32));
        if (score > best) best = score, token = static_cast<int32_t>(t);
      }
      EXPECT_EQ(sample(logits, row_of({.temperature = temperature, .seed = 11}), position).token, token)
          << temperature;
    }
  }
}

TEST(Sampler, NoiseDependsOnSeedAndPositionOnly) {
  const auto logits = random_logits(500, 8);
  const auto token = [&](uint64_t seed, int64_t position) {
    return sample(logits, row_of({.seed = seed}), position).token;
  };
  EXPECT_EQ(token(1, 2), token(1, 2));
  int differ = 0;
  for (int i = 0; i < 50; ++i) differ += token(1, i) != token(2, i);
  EXPECT_GT(differ, 25);
}

}  // namespace
}  // namespace ark::test
