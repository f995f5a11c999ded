#include "engine/cpu/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "engine/cpu/philox.h"
#include "engine/cpu/simd/table.h"

namespace ark {
namespace {

// Noise of the tokens 4 i .. 4 i + 3, of which `token` is one.
std::array<uint32_t, 4> noise_block(uint64_t seed, int64_t position, int32_t token) {
  const auto at = static_cast<uint64_t>(position);
  return philox4x32(
      {static_cast<uint32_t>(token) / 4, static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), 0},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

// 1 / temperature; differences times more than this are beyond what any noise makes up for.
float as_f32(double scale) { return static_cast<float>(std::min(scale, 1e30)); }

double gumbel(uint32_t bits) { return -std::log(-std::log((bits + 0.5) * 0x1p-32)); }

// gumbel(bits) <= this: with u = (bits + 1/2) / 2^32, -log(u) >= 1 - u >= 2^-(leading zeros of ~bits + 1).
double gumbel_bound(uint32_t bits) { return (std::countl_zero(~bits) + 1) * std::numbers::ln2; }

// Finds the token with the largest logit / temperature + noise; the lowest id among equals (ids ascend).
class GumbelMax {
 public:
  GumbelMax(const SamplingParams& p, int64_t position)
      : seed_(p.seed), position_(position), scale_(1.0 / p.temperature) {}

  void offer(int32_t token, float logit, uint32_t bits) {
    const double base = logit * scale_;
    if (!(base + gumbel_bound(bits) >= best_)) return;
    const double score = base + gumbel(bits);
    if (score > best_ || (score == best_ && token < token_)) {
      best_ = score;
      token_ = token;
    }
  }
  void offer(int32_t token, float logit) {
    offer(token, logit, noise_block(seed_, position_, token)[static_cast<uint32_t>(token) % 4]);
  }
  // All of them; `likely`, the one with the largest logit, first: few others can come to its score.
  void offer_all(std::span<const float> logits, int32_t likely, const simd::Table& kernels) {
    constexpr int64_t kPiece = 4096;
    int32_t tokens[kPiece];
    uint32_t words[kPiece];
    offer(likely, logits[likely]);
    const float largest = logits[likely];
    for (int64_t first = 0; first < std::ssize(logits); first += kPiece) {
      const int64_t last = std::min(first + kPiece, std::ssize(logits));
      const double top = largest * scale_;
      const double rounding = std::fabs(top) * 1e-15;
      const auto best = static_cast<float>(best_ - top - rounding);
      const int64_t found = kernels.noisy({logits.data(), first, last, largest, as_f32(scale_), best,
                                           static_cast<uint64_t>(position_), seed_, tokens, words});
      for (int64_t i = 0; i < found; ++i) offer(tokens[i], logits[tokens[i]], words[i]);
    }
  }
  int32_t token() const { return token_; }

 private:
  uint64_t seed_;
  int64_t position_;
  double scale_;
  double best_ = -INFINITY;
  int32_t token_ = 0;
};

void apply_mask(std::span<float> logits, std::span<const uint32_t> mask) {
  for (std::size_t first = 0; first < logits.size(); first += 32) {
    const uint32_t word = first / 32 < mask.size() ? mask[first / 32] : 0;
    if (word == ~uint32_t{0}) continue;
    const std::size_t count = std::min<std::size_t>(32, logits.size() - first);
    for (std::size_t i = 0; i < count; ++i)
      if (!(word >> i & 1)) logits[first + i] = -INFINITY;
  }
}

// Repetition over prompt and generated tokens, presence and frequency over generated ones. `counts`: one a token.
void apply_penalties(std::span<float> logits, const StepRow& row, std::span<const int32_t> history,
                     int32_t* counts) {
  constexpr int32_t kSeen = 1 << 30;
  const SamplingParams& p = row.sampling;
  const auto for_each = [&](auto f) {
    for (std::size_t i = 0; i < history.size(); ++i)
      if (const auto token = static_cast<std::size_t>(history[i]); token < logits.size())
        f(token, static_cast<int64_t>(i) >= row.prompt_length);
  };
  for_each([&](std::size_t t, bool) { counts[t] = 0; });
  for_each([&](std::size_t t, bool is_generated) { counts[t] = (counts[t] | kSeen) + is_generated; });
  for_each([&](std::size_t t, bool) {
    if (counts[t] == 0) return;  // it has been here before
    const int32_t generated = std::exchange(counts[t], 0) & ~kSeen;
    logits[t] = logits[t] > 0 ? logits[t] / p.repetition_penalty : logits[t] * p.repetition_penalty;
    logits[t] -= p.frequency_penalty * static_cast<float>(generated);
    if (generated) logits[t] -= p.presence_penalty;
  });
}

struct ByLogit {
  std::span<const float> logits;
  bool operator()(int32_t a, int32_t b) const {
    const float x = logits[a], y = logits[b];
    return x > y || (x == y && a < b);
  }
};

// Moves the `k` best of ids[0, n) to the front, in order.
void front_sorted(int32_t* ids, int64_t n, int64_t k, ByLogit better) {
  if (k < n) std::nth_element(ids, ids + k, ids + n, better);
  std::sort(ids, ids + std::min(k, n), better);
}

// How many of the best tokens top_p keeps; they come to stand in front, in no order. -1: all together do not weigh
// `wanted`.
int64_t keep_top_p(int32_t* ids, int64_t n, double wanted, ByLogit better, const float* weights) {
  double sum = 0;  // of those in front of `first`, which are kept
  int64_t first = 0, last = n;
  while (last - first > 32) {
    const int64_t middle = first + (last - first) / 2;
    std::nth_element(ids + first, ids + middle, ids + last, better);
    double upper = sum;
    for (int64_t i = first; i < middle; ++i) upper += weights[ids[i]];
    if (upper >= wanted) {
      last = middle;
    } else {
      sum = upper;
      first = middle;
    }
  }
  std::sort(ids + first, ids + last, better);
  for (; first < last; ++first)
    if ((sum += weights[ids[first]]) >= wanted) return first + 1;
  return last < n ? last : -1;  // before it they did, added up in another order
}

// A row's logits, of which only those near the largest are ever looked at one by one.
struct Row {
  std::span<const float> logits;
  float largest;  // finite
  int32_t* ids;   // room for all
  const simd::Table& kernels = simd::table_of(best_isa());

  // Writes the ids of tokens whose logits are no more than so much below the largest, never of those that may not come;
  // returns how many.
  int64_t near(double below) const {
    constexpr float kLowest = std::numeric_limits<float>::lowest();
    const double least = std::max<double>(largest - below * (1 + 1e-6), kLowest);
    const float rounded = std::nextafter(static_cast<float>(least), kLowest);  // never up
    return kernels.at_least(logits.data(), std::ssize(logits), rounded, ids);
  }
  // The `k` best come to stand in front, in order; returns how many there are, at most k.
  int64_t best(int64_t k) const {
    int64_t n = 0;
    for (const double below : {4.0, 8.0, 16.0, HUGE_VAL})
      if ((n = near(below)) >= k) break;
    front_sorted(ids, n, k, {logits});
    return std::min(n, k);
  }
};

// The kept tokens of a row that one of the filters changes. Returns how many stand in row.ids. `weights`: room for all.
int64_t filter(const Row& row, const SamplingParams& p, float* weights) {
  const auto vocabulary = std::ssize(row.logits);
  int64_t n = -1;  // all
  if (p.top_k > 0 && p.top_k < vocabulary) n = row.best(p.top_k);
  if (p.top_p >= 1 && p.min_p <= 0) return n;
  double total =
      row.kernels.exps(row.logits.data(), vocabulary, row.largest, as_f32(1.0 / p.temperature), weights);
  if (p.top_p < 1 && n >= 0) {
    total = 0;
    for (int64_t i = 0; i < n; ++i) total += weights[row.ids[i]];
    if (const int64_t kept = keep_top_p(row.ids, n, p.top_p * total, {row.logits}, weights); kept >= 0)
      n = kept;
  } else if (p.top_p < 1) {
    // Those that weigh less than the third of these weigh less than what top_p leaves out, all together.
    for (const double least :
         {0x1p-7, 0x1p-11, (1 - p.top_p) * total / static_cast<double>(vocabulary), 0.0}) {
      n = row.near(-p.temperature * std::log(least));
      if (const int64_t kept = keep_top_p(row.ids, n, p.top_p * total, {row.logits}, weights); kept >= 0) {
        n = kept;
        break;
      }
    }
  }
  if (p.min_p > 0) {
    if (n < 0) n = row.near(-p.temperature * std::log(p.min_p));
    n = std::remove_if(row.ids, row.ids + n, [&](int32_t t) { return weights[t] < p.min_p; }) - row.ids;
  }
  return n;
}

// `ids`, `weights`: room for all.
int32_t pick(std::span<const float> logits, const SamplingParams& p, int64_t position, int32_t* ids,
             float* weights) {
  const simd::Table& kernels = simd::table_of(best_isa());
  const int64_t largest = kernels.argmax(logits.data(), std::ssize(logits));
  if (largest < 0 || !std::isfinite(logits[largest])) return -1;
  if (p.temperature <= 0) return static_cast<int32_t>(largest);
  GumbelMax best(p, position);
  if ((p.top_k <= 0 || p.top_k >= std::ssize(logits)) && p.top_p >= 1 && p.min_p <= 0) {
    best.offer_all(logits, static_cast<int32_t>(largest), kernels);
  } else {
    const int64_t n = filter({logits, logits[largest], ids}, p, weights);
    for (int64_t i = 0; i < n; ++i) best.offer(ids[i], logits[ids[i]]);
  }
  return best.token();
}

void report(std::span<const float> logits, const StepRow& row, int32_t* ids, RowRecord& out) {
  if (!(row.flags & kWantLogprob) && row.top <= 0) return;
  const simd::Table& kernels = simd::table_of(best_isa());
  const int64_t best = kernels.argmax(logits.data(), std::ssize(logits));
  if (best < 0 || logits[best] == INFINITY) {  // no order, no probabilities
    out.logprob = NAN;
    return;
  }
  const float largest = logits[best];
  const double total =
      largest == -INFINITY
          ? largest
          : largest + std::log(kernels.exps(logits.data(), std::ssize(logits), largest, 1, nullptr));
  const auto logprob = [&](int32_t t) { return static_cast<float>(logits[t] - total); };
  const int32_t of = row.target >= 0 ? row.target : out.token;
  if ((row.flags & kWantLogprob) && of >= 0 && static_cast<std::size_t>(of) < logits.size())
    out.logprob = logprob(of);
  if (row.top <= 0 || largest == -INFINITY) return;
  const Row all{logits, largest, ids};
  out.top_count = static_cast<int32_t>(all.best(std::min<int64_t>(row.top, kMaxTop)));
  for (int32_t i = 0; i < out.top_count; ++i) {
    out.top_tokens[i] = ids[i];
    out.top_logprobs[i] = logprob(ids[i]);
  }
}

}  // namespace

int64_t sampler_scratch(int64_t vocabulary) { return 3 * vocabulary; }

RowRecord sample_row(std::span<const float> logits, const StepRow& row, std::span<const int32_t> history,
                     int64_t position, std::span<const BiasEntry> bias, std::span<const uint32_t> mask,
                     std::span<float> scratch) {
  RowRecord out;
  auto* ids = reinterpret_cast<int32_t*>(scratch.data() + logits.size());  // also the penalties' counts
  if (row.sampling.needs_history() || !bias.empty() || !mask.empty()) {
    std::copy(logits.begin(), logits.end(), scratch.begin());
    const std::span<float> changed = scratch.first(logits.size());
    for (const BiasEntry& b : bias) {
      if (b.token >= 0 && static_cast<std::size_t>(b.token) < changed.size()) changed[b.token] += b.value;
    }
    if (!mask.empty()) apply_mask(changed, mask);
    if (row.sampling.needs_history()) apply_penalties(changed, row, history, ids);
    logits = changed;
  }
  if (row.flags & kWantToken)
    out.token = pick(logits, row.sampling, position, ids, scratch.data() + 2 * logits.size());
  report(logits, row, ids, out);
  return out;
}

RowResult sample_row(std::span<const float> logits, const StepRow& row, std::span<const int32_t> history,
                     int64_t position, std::span<const std::pair<int32_t, float>> bias,
                     std::span<const uint32_t> mask) {
  std::vector<BiasEntry> entries;
  for (const auto& [token, value] : bias) entries.push_back({token, value});
  std::vector<float> scratch(static_cast<std::size_t>(sampler_scratch(static_cast<int64_t>(logits.size()))));
  const RowRecord record =
      sample_row(logits, row, history, position, std::span<const BiasEntry>(entries), mask, scratch);
  RowResult result = result_of(record);
  if (row.flags & kWantLogits) result.logits.assign(logits.begin(), logits.end());
  return result;
}

}  // namespace ark
