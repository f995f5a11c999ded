#include "engine/cpu/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>

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
  // All of them, four a block.
  void offer_all(std::span<const float> logits) {
    const auto n = static_cast<int32_t>(logits.size());
    for (int32_t t = 0; t < n; t += 4) {
      const std::array<uint32_t, 4> block = noise_block(seed_, position_, t);
      for (int32_t i = 0; i < 4 && t + i < n; ++i) {
        offer(t + i, logits[t + i], block[i]);
      }
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
  std::memset(counts, 0, logits.size() * sizeof(int32_t));
  for (std::size_t i = 0; i < history.size(); ++i) {
    const auto token = static_cast<std::size_t>(history[i]);
    if (token >= logits.size()) continue;
    counts[token] |= kSeen;
    if (static_cast<int64_t>(i) >= row.prompt_length) ++counts[token];
  }
  for (std::size_t t = 0; t < logits.size(); ++t) {
    if (!counts[t]) continue;
    const int32_t generated = counts[t] & ~kSeen;
    logits[t] = logits[t] > 0 ? logits[t] / p.repetition_penalty : logits[t] * p.repetition_penalty;
    logits[t] -= p.frequency_penalty * static_cast<float>(generated);
    if (generated) logits[t] -= p.presence_penalty;
  }
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

// How many of the best tokens top_p keeps; sorts as far as it must look. `total`: sum of all weights.
template <typename Weight>
int64_t keep_top_p(int32_t* ids, int64_t n, double wanted, ByLogit better, Weight weight) {
  double sum = 0;
  for (int64_t first = 0, sorted = std::min<int64_t>(n, 128); first < n; sorted = std::min(n, sorted * 8)) {
    front_sorted(ids + first, n - first, sorted - first, better);
    for (; first < sorted; ++first) {
      sum += weight(ids[first]);
      if (sum >= wanted) return first + 1;
    }
  }
  return n;
}

// The kept tokens, best first if a filter needs an order. Returns how many stand in `ids`.
int64_t filter(std::span<const float> logits, const SamplingParams& p, float largest, int32_t* ids) {
  const auto vocabulary = static_cast<int64_t>(logits.size());
  const ByLogit better{logits};
  const auto weight = [&](int32_t t) {
    return std::exp((static_cast<double>(logits[t]) - largest) / p.temperature);
  };
  int64_t n = 0;
  for (int64_t t = 0; t < vocabulary; ++t) {
    if (logits[t] > -INFINITY) ids[n++] = static_cast<int32_t>(t);
  }
  if (p.top_k > 0 && p.top_k < n) {
    front_sorted(ids, n, p.top_k, better);
    n = p.top_k;
  }
  if (p.top_p < 1) {
    double total = 0;
    for (int64_t i = 0; i < n; ++i) total += weight(ids[i]);
    n = keep_top_p(ids, n, p.top_p * total, better, weight);
  }
  if (p.min_p > 0) {
    int64_t kept = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (weight(ids[i]) >= p.min_p) ids[kept++] = ids[i];
    }
    n = kept;
  }
  return n;
}

int32_t pick(std::span<const float> logits, const SamplingParams& p, int64_t position, int32_t* ids) {
  const int64_t largest =
      simd::table_of(best_isa()).argmax(logits.data(), static_cast<int64_t>(logits.size()));
  if (largest < 0 || !std::isfinite(logits[largest])) return -1;
  if (p.temperature <= 0) return static_cast<int32_t>(largest);
  GumbelMax best(p, position);
  if (p.top_k <= 0 && p.top_p >= 1 && p.min_p <= 0) {
    best.offer_all(logits);
  } else {
    const int64_t n = filter(logits, p, logits[largest], ids);
    for (int64_t i = 0; i < n; ++i) best.offer(ids[i], logits[ids[i]]);
  }
  return best.token();
}

// log of the sum of exp(logits), ascending order in f64. NaN if a logit is, or is infinity.
double log_sum_exp(std::span<const float> logits) {
  double largest = -INFINITY, sum = 0;
  for (float l : logits) largest = l > largest ? l : largest;
  if (largest == -INFINITY) return largest;
  for (float l : logits) sum += l == -INFINITY ? 0 : std::exp(l - largest);
  return largest + std::log(sum);
}

void report(std::span<const float> logits, const StepRow& row, int32_t* ids, RowRecord& out) {
  if (!(row.flags & kWantLogprob) && row.top <= 0) return;
  const double total = log_sum_exp(logits);
  if (std::isnan(total)) {  // no order, no probabilities
    out.logprob = NAN;
    return;
  }
  const auto logprob = [&](int32_t t) { return static_cast<float>(logits[t] - total); };
  const int32_t of = row.target >= 0 ? row.target : out.token;
  if ((row.flags & kWantLogprob) && of >= 0 && static_cast<std::size_t>(of) < logits.size())
    out.logprob = logprob(of);
  const auto n = static_cast<int64_t>(logits.size());
  out.top_count = static_cast<int32_t>(std::min<int64_t>({row.top, kMaxTop, n}));
  if (out.top_count <= 0) return;
  for (int64_t t = 0; t < n; ++t) ids[t] = static_cast<int32_t>(t);
  front_sorted(ids, n, out.top_count, {logits});
  while (out.top_count > 0 && logits[ids[out.top_count - 1]] == -INFINITY) --out.top_count;
  for (int32_t i = 0; i < out.top_count; ++i) {
    out.top_tokens[i] = ids[i];
    out.top_logprobs[i] = logprob(ids[i]);
  }
}

}  // namespace

int64_t sampler_scratch(int64_t vocabulary) { return 2 * vocabulary; }

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
  if (row.flags & kWantToken) out.token = pick(logits, row.sampling, position, ids);
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
