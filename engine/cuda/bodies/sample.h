// Samples rows of logits: the device's twin of engine/cpu/sampler.cc. Same order of effects, same noise
// (Philox of seed, position and token), f64 where the CPU has f64; so the same token but where two scores or
// a filter's border differ by less than rounding.
//
// A set of kept tokens is all tokens at or above a key: the logit's order, then the lower id. The key of the
// k-th token, or of the last that top_p keeps, is found digit by digit: each pass over the row counts (or
// adds up) what lies in each of 16 ranges. Sums are integers of 2^-44, so that no order of adding matters.
//
// A block takes a row.
#pragma once

#include "engine/cuda/bodies/keys.h"
#include "engine/cuda/bodies/noise.h"
#include "engine/cuda/step_begin.h"

namespace ark::cuda {

ARK_APART double weight_of(float logit, float largest, float temperature) {
  return exp_f64((static_cast<double>(logit) - largest) / temperature);
}

struct Sample : Quiet {
  const Call& call;
  StepRow row;
  float* logits = nullptr;
  i32 vocabulary = 0;
  float largest = 0;

  ARK_DEVICE explicit Sample(const Call& c) : call(c) {}

  // f(token, logit) for the thread's tokens, in order.
  template <class F>
  ARK_DEVICE void for_logits(F f) const {
    in_turns<4>(
        call.b, 0, vocabulary, [&](i32 t) { return dev::ld_global(logits + t); }, f);
  }

  // ---- logit_bias, the mask and penalties, in place: nobody reads the row's logits afterwards

  ARK_DEVICE void add_bias() const {
    const BiasEntry* entries = record_array<BiasEntry>(call.b, StepArray::kBias) + row.bias_first;
    ARK_ROLLED
    for (i32 i = call.b.thread; i < row.bias_count; i += kConsumers) {
      const i32 token = entries[i].token;
      if (token < 0 || token >= vocabulary) continue;
      bool is_first = true;
      ARK_ROLLED
      for (i32 j = 0; j < i; ++j) is_first &= entries[j].token != token;
      if (!is_first) continue;
      float v = dev::ld_global(logits + token);
      ARK_ROLLED
      for (i32 j = i; j < row.bias_count; ++j) {
        if (entries[j].token == token) v += entries[j].value;
      }
      dev::st_global(logits + token, v);
    }
    consumers_sync();
  }

  ARK_DEVICE void apply_mask() const {
    const u32* words = record_array<u32>(call.b, StepArray::kMasks) + row.mask_first;
    const auto word_of = [&](i32 t) {
      const i32 word = static_cast<i32>(static_cast<u32>(t) / 32);
      return word < row.mask_words ? dev::ld_global(words + word) : 0u;
    };
    in_turns<4>(call.b, 0, vocabulary, word_of, [&](i32 t, u32 word) {
      if ((word >> static_cast<u32>(t) % 32 & 1) == 0) dev::st_global(logits + t, -infinity());
    });
    consumers_sync();
  }

  ARK_DEVICE void apply_penalties(i32 history, u32* counts) const {
    constexpr u32 kSeen = 1u << 30;
    const RankTables& r = *call.b.rank;
    ARK_ROLLED
    for (i32 t = call.b.thread; t < vocabulary; t += kConsumers)
      dev::st_relaxed<dev::Scope::gpu>(counts + t, 0u);
    consumers_sync();
    // Prompt tokens first, so that kSeen is a number that adds: a count of the prompt's in the upper half.
    const i32* table = at<const i32>(r.page_table) + static_cast<i64>(row.slot) * r.pages_per_slot;
    ARK_ROLLED
    for (i32 i = call.b.thread; i < history; i += kConsumers) {
      const i64 page = dev::ld_global(table + i / r.page_size);
      const i32 token = dev::ld_global(at<const i32>(r.page_tokens) + page * r.page_size + i % r.page_size);
      if (token < 0 || token >= vocabulary) continue;
      if (i >= row.prompt_length) {
        dev::atom_add<dev::Scope::gpu>(counts + token, 1u);
      } else {
        u32 seen = dev::ld_relaxed<dev::Scope::gpu>(counts + token);
        while ((seen & kSeen) == 0) {
          const u32 before = dev::atom_cas<dev::Scope::gpu>(counts + token, seen, seen | kSeen);
          if (before == seen) break;
          seen = before;
        }
      }
    }
    consumers_sync();
    ARK_ROLLED
    for (i32 t = call.b.thread; t < vocabulary; t += kConsumers) {
      const u32 count = dev::ld_relaxed<dev::Scope::gpu>(counts + t);
      if (count == 0) continue;
      const u32 generated = count & ~kSeen;
      float v = dev::ld_global(logits + t);
      v = v > 0 ? v / row.sampling.repetition_penalty : v * row.sampling.repetition_penalty;
      v -= row.sampling.frequency_penalty * static_cast<float>(generated);
      if (generated != 0) v -= row.sampling.presence_penalty;
      dev::st_global(logits + t, v);
    }
    consumers_sync();
  }

  // ---- filters

  ARK_DEVICE double weight(float logit) const { return weight_of(logit, largest, row.sampling.temperature); }

  static constexpr double kUnit = 0x1p44;

  // Of a token: 1, or its weight.
  ARK_DEVICE u64 measure(float logit, bool by_weight) const {
    return by_weight ? static_cast<u64>(weight(logit) * kUnit + 0.5) : 1;
  }

  // Scratch, behind reduce()'s: the 16 digits' sums over the block, then [digit][thread] of the threads.
  static constexpr int kDigits = 16;
  static_assert((kConsumerWarps + kDigits + kDigits * kConsumers) * 8 <= static_cast<int>(kFewScratchBytes));
  ARK_DEVICE u64* digit_sums() const { return reinterpret_cast<u64*>(call.b.scratch) + kConsumerWarps; }

  ARK_DEVICE void add_up_digits() const {
    consumers_sync();
    ARK_ROLLED
    for (int digit = call.b.warp; digit < kDigits; digit += kConsumerWarps) {
      const u64* threads = digit_sums() + kDigits + digit * kConsumers;
      u64 sum = 0;
      ARK_ROLLED
      for (int i = call.b.lane; i < kConsumers; i += 32) sum += threads[i];
      ARK_ROLLED
      for (int distance = 16; distance > 0; distance /= 2) sum += dev::shfl_xor(sum, distance);
      if (call.b.lane == 0) digit_sums()[digit] = sum;
    }
    consumers_sync();
  }

  // The least key of the best tokens whose measures add up to `wanted` or more; 0: all together do not. Only
  // tokens from `least` on count.
  ARK_DEVICE u64 key_where(u64 wanted, u64 least, bool by_weight) const {
    const u64* sums = digit_sums();
    u64* own = digit_sums() + kDigits + call.b.thread;
    u64 prefix = 0, above = 0;  // keys that start with prefix; the sum of those beyond
    ARK_ROLLED
    for (int shift = 60; shift >= 0; shift -= 4) {
      ARK_ROLLED
      for (int digit = 0; digit < kDigits; ++digit) own[digit * kConsumers] = 0;
      for_logits([&](i32 t, float logit) {
        const u64 key = key_of(logit, t);
        if (key < least || !(logit > -infinity())) return;
        if (shift < 60 && key >> (shift + 4) != prefix) return;
        own[(static_cast<int>(key >> shift) & 15) * kConsumers] += measure(logit, by_weight);
      });
      add_up_digits();
      int digit = 15;
      ARK_ROLLED
      for (; digit >= 0 && above + sums[digit] < wanted; --digit) above += sums[digit];
      if (digit < 0) return 0;
      prefix = prefix << 4 | static_cast<u64>(digit);
    }
    return prefix;
  }

  // What the kept tokens weigh that top_p asks for.
  ARK_DEVICE u64 wanted_weight(u64 least) const {
    u64 total = 0;
    for_logits([&](i32 t, float logit) {
      if (key_of(logit, t) >= least && logit > -infinity()) total += measure(logit, true);
    });
    total = sum_of(call.b.scratch, total);
    const double wanted = static_cast<double>(row.sampling.top_p) * static_cast<double>(total);
    u64 whole = static_cast<u64>(wanted);
    if (static_cast<double>(whole) < wanted) ++whole;
    return whole == 0 ? 1 : whole;
  }

  // The least key that top_k, then top_p keep.
  ARK_DEVICE u64 filter() const {
    u64 least = 0;
    ARK_ROLLED
    for (int pass = 0; pass < 2; ++pass) {
      const bool by_weight = pass == 1;
      if (by_weight ? row.sampling.top_p >= 1 : row.sampling.top_k <= 0 || row.sampling.top_k >= vocabulary)
        continue;
      const u64 key = key_where(by_weight ? wanted_weight(least) : static_cast<u64>(row.sampling.top_k),
                                least, by_weight);
      if (key > least) least = key;
    }
    return least;
  }

  // ---- the pick

  struct Score {
    double value;
    i32 token;
  };
  ARK_DEVICE static bool is_better(const Score& a, const Score& b) {
    return a.value > b.value || (a.value == b.value && a.token < b.token);
  }

  // argmax of logit / temperature + noise over the kept tokens.
  ARK_DEVICE i32 pick_noisy(i64 position, u64 least) const {
    const double scale = 1.0 / row.sampling.temperature;
    Score best = {-from_bits(0x7ff0000000000000ull), 0};
    ARK_ROLLED
    for (i32 first = call.b.thread * 4; first < vocabulary; first += kConsumers * 4) {
      const PhiloxBlock noise =
          philox(static_cast<u32>(first) / 4, static_cast<u32>(position),
                 static_cast<u32>(static_cast<u64>(position) >> 32), 0, static_cast<u32>(row.sampling.seed),
                 static_cast<u32>(row.sampling.seed >> 32));
      ARK_ROLLED
      for (int i = 0; i < 4; ++i) {
        const i32 t = first + i;
        const u32 bits = i < 2    ? (i == 0 ? noise.words[0] : noise.words[1])
                         : i == 2 ? noise.words[2]
                                  : noise.words[3];
        if (t >= vocabulary) break;
        const float logit = dev::ld_global(logits + t);
        // gumbel(bits) is at most this: most tokens need no logarithm.
        const double base = logit * scale;
        const double bound = (dev::leading_zeros(~bits) + 1) * kLn2;
        if (!(base + bound >= best.value)) continue;
        if (least != 0 && (key_of(logit, t) < least || !(logit > -infinity()))) continue;
        if (row.sampling.min_p > 0 && !(weight(logit) >= row.sampling.min_p)) continue;
        const Score score = {base + gumbel(bits), t};
        if (is_better(score, best)) best = score;
      }
    }
    // Bits whose order is the numbers'; -0 is 0.
    const u64 bits = to_bits(best.value + 0.0), order = bits >> 63 != 0 ? ~bits : bits | u64{1} << 63;
    const bool is_best = largest_of(call.b.scratch, order) == order;
    return token_of(largest_of(call.b.scratch, is_best ? ~static_cast<u32>(best.token) : 0));
  }

  ARK_DEVICE i32 pick(i64 position) {
    const u64 best = best_key(call.b.scratch, logits, vocabulary);
    const i32 token = best >> 32 == 0 ? 0 : token_of(best);
    largest = dev::ld_global(logits + token);
    if (!(largest > -infinity() && largest < infinity())) return -1;  // nothing to choose from
    if (row.sampling.temperature <= 0) return token;
    const bool filtered = row.sampling.top_k > 0 || row.sampling.top_p < 1;
    return pick_noisy(position, filtered ? filter() : 0);
  }

  // ---- what is reported

  // NaN if a logit is, or is infinity.
  ARK_DEVICE double log_sum_exp() const {
    const u64 best = best_key(call.b.scratch, logits, vocabulary);
    if (best >> 32 == 0) return -from_bits(0x7ff0000000000000ull);
    const double top = dev::ld_global(logits + token_of(best));
    if (top == -from_bits(0x7ff0000000000000ull)) return top;
    if (!(top < from_bits(0x7ff0000000000000ull))) return from_bits(0x7ff8000000000000ull);
    double sum = 0;
    for_logits([&](i32, float logit) {
      if (logit > -infinity()) sum += exp_f64(logit - top);
    });
    sum = sum_of(call.b.scratch, sum);
    return top + log_f64(sum);
  }

  // `to` is null where nobody reads it.
  ARK_DEVICE void report(i32 token, RowRecord* to) const {
    if (to == nullptr) return;
    const bool wants = (row.flags & kWantLogprob) != 0;
    i32 count = dev::min(dev::min(row.top, kMaxTop), vocabulary);
    if (count < 0) count = 0;
    const double total = wants || count > 0 ? log_sum_exp() : 0.0;
    const bool has_none = total != total;  // no order, no probabilities
    if (has_none) count = 0;
    const auto logprob = [&](i32 t) { return static_cast<float>(dev::ld_global(logits + t) - total); };
    const i32 of = row.target >= 0 ? row.target : token;
    if (call.b.thread == 0) {
      to->token = token;
      to->logprob = has_none ? nan() : wants && of >= 0 && of < vocabulary ? logprob(of) : 0.0f;
      to->top_count = count;
      to->has_logits = (row.flags & kWantLogits) != 0;
    }
    u64 bound = ~u64{0};
    ARK_ROLLED
    for (i32 i = 0; i < count; ++i) {
      bound = best_key_below(call.b.scratch, logits, vocabulary, bound);
      const bool may_come = bound >> 32 > order_of(-infinity());
      if (call.b.thread == 0 && may_come)
        to->top_tokens[i] = token_of(bound), to->top_logprobs[i] = logprob(token_of(bound));
      if (call.b.thread == 0 && !may_come) to->top_count = i;
      if (!may_come) break;
    }
  }

  ARK_DEVICE void run_row(i64 number) {
    const RankTables& rank = *call.b.rank;
    row = record_array<StepRow>(call.b, StepArray::kRows)[number];
    vocabulary = call.size(call.i.sample.vocabulary);
    logits = at<float>(call.i.sample.logits) + number * vocabulary;
    const i32 position = dev::ld_global(at<const i32>(rank.positions) + row.token) + 1;
    const u64 slot = (call.b.step + 1) % call.b.p.depth;
    const u64 results = call.b.p.mailbox + call.b.p.results + slot * call.b.p.result_bytes;
    RowRecord* to = rank.writes_results != 0 ? at<RowRecord>(results) + number : nullptr;
    if (to != nullptr && (row.flags & kWantLogits) != 0) {
      float* raw = at<float>(results + call.b.p.logits) + number * vocabulary;
      ARK_ROLLED
      for (i32 t = call.b.thread; t < vocabulary; t += kConsumers)
        dev::st_global(raw + t, dev::ld_global(logits + t));
    }
    if (row.bias_count > 0) {
      consumers_sync();  // the raw logits are copied
      add_bias();
    }
    if (row.mask_words > 0) {
      consumers_sync();
      apply_mask();
    }
    if (row.sampling.needs_history()) {
      consumers_sync();
      const i64 room = rank.max_rows <= call.b.p.processors ? number : call.b.processor;
      apply_penalties(position, at<u32>(rank.sample_counts) + room * vocabulary);
    }
    const i32 token = (row.flags & kWantToken) != 0 ? pick(position) : -1;
    if (call.b.thread == 0 && (row.flags & (kWantToken | kTentative)) == kWantToken)
      at<i32>(rank.last_tokens)[row.slot] = token;
    report(token, to);
    consumers_sync();
  }

  ARK_DEVICE static void run(const Call& call, Tiles tiles) {
    Sample body(call);
    for (i64 r = tiles.first; r < tiles.last; ++r) body.run_row(r);
  }
};

}  // namespace ark::cuda
