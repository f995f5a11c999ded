// What stands between query-key products and softmax, folded on indices: causality, windows, scale, soft
// caps, linear biases. Nothing is believed from names or patterns: the mask is evaluated.
#pragma once

#include <vector>

#include "importer/decoder/layout.h"
#include "importer/decoder/probe.h"

namespace ark::decoder {

// At or below: exp() of it is 0 beside any score a model computes. Files write -1e4, which bfloat16 rounds to
// -9984, and scale or sum it; hence the room.
inline constexpr double kMasked = -9000;

// One operation on scores; `other` and `third` are free values of the plain graph.
struct ScoreStep {
  Op op = Op::kIdentity;  // kMul kDiv kAdd kSub kTanh kMax kMin kWhere kNeg, or kAttention for its own causal
                          // rule
  const Node* node = nullptr;
  Layout layout;             // of the scores at that moment
  ValueId other = kNoValue;  // the other operand; the condition of Where; the lengths of kAttention
  ValueId third = kNoValue;  // the other branch of Where; absent: -infinity
  bool scores_first = true;  // operand order; for Where: the branch taken where the condition holds
  double factor = 1;         // of kMul if `other` is absent
  int64_t window = 0;        // of kAttention
};

struct AttentionMask {
  double scale = 1, softcap = 0;
  int64_t window = 0;         // 0: none
  std::vector<float> slopes;  // one a head, empty: no linear bias
};

// Proves that the steps are scale, soft cap, linear bias and a causal (windowed) mask, for `heads` query
// heads. Throws Refusal naming the node otherwise. `length`: tokens that the proof has to reach; OutOfReach
// (part_probe.h) if it can be evaluated for shorter sequences only.
AttentionMask prove_mask(const Graph& graph, const Roles& roles, Probe& probe,
                         const std::vector<ScoreStep>& steps, int64_t heads, int64_t length, const Node& at);

}  // namespace ark::decoder
