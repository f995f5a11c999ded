// Dense attention of plain graphs and rotary embedding. Softmax in double: this is the oracle of the paged one.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/ir/attention_operands.h"
#include "base/ir/kernels/common.h"
#include "base/ir/keys.h"

namespace ark::kernels {
namespace {

using enum attention::Operand;

constexpr int64_t kFar = int64_t{1} << 40;  // beyond any place: lengths are numbers that anybody may send

struct Sizes {
  int64_t batch, heads, queries, dim, kv_heads, keys, value_dim, past, total;
};
Sizes sizes_of(const KernelCall& call) {
  const TensorView &q = call.inputs[kQ], &k = call.inputs[kK], &v = call.inputs[kV];
  if (q.rank != 4 || k.rank != 4 || v.rank != 4) misfit("Attention wants [B, H, S, D] operands");
  Sizes s{q.dims[0], q.dims[1], q.dims[2], q.dims[3], k.dims[1], k.dims[2], v.dims[3], 0, 0};
  for (const std::size_t i : {kK, kV, kPastK, kPastV})
    if (has_input(call, i)) check_same_type(q, call.inputs[i]);
  if (has_input(call, kPastK)) s.past = call.inputs[kPastK].dims[2];
  if (k.dims[0] != s.batch || v.dims[0] != s.batch || v.dims[1] != s.kv_heads || v.dims[2] != s.keys ||
      k.dims[3] != s.dim || s.kv_heads == 0 || s.heads % s.kv_heads)
    misfit("Attention: query " + dims_text(q.shape()) + ", key " + dims_text(k.shape()) + " and value " +
           dims_text(v.shape()) + " do not fit");
  if (has_input(call, kPastK)) {
    const TensorView &pk = call.inputs[kPastK], &pv = call.inputs[kPastV];
    if (dims_of(pk) != Dims{s.batch, s.kv_heads, s.past, s.dim} ||
        dims_of(pv) != Dims{s.batch, s.kv_heads, s.past, s.value_dim})
      misfit("Attention: past key or value does not fit the new ones");
  }
  s.total =
      has_input(call, kTotal) ? scalar<int64_t>(call, kTotal, "the number of all keys") : s.past + s.keys;
  return s;
}

// How many of `tokens` a buffer of `room` rows holds that evicts what the window left behind (base/ir/ops.h).
int64_t resident(int64_t tokens, int64_t room, int64_t window) {
  if (tokens <= room) return tokens;
  const int64_t step = room - window + 1;
  return step > 0 ? tokens - step * ((tokens - room - 1) / step + 1) : room;
}

// Tokens of batch row b before the new ones, and how many of the first of them no buffer holds any more.
struct Past {
  int64_t tokens = 0, gone = 0;
};
Past past_of(const KernelCall& call, const Sizes& s, int64_t b) {
  if (!has_input(call, kPastK)) return {};
  if (!has_input(call, kLengths)) return {s.past};
  const int64_t before = std::max<int64_t>(load_one<int64_t>(call.inputs[kLengths], b) - s.keys, 0);
  const Attributes& a = *call.attributes;
  if (!a.get_or(key::kEvicts, 0)) return {std::min(before, s.past)};
  const int64_t window = a.get_or(key::kWindow, 0);
  if (before > s.past && s.past < window)
    misfit("Attention: a cache of " + std::to_string(s.past) + " tokens for a window of " +
           std::to_string(window));
  return {before, before - resident(before, s.past, window)};
}

// What only the kernel reads: a bias that broadcasts to the scores, a length for each batch row.
void check_attention(const KernelCall& call, const Sizes& s) {
  if (has_input(call, kBias))
    check_broadcasts(call.inputs[kBias], Dims{s.batch, s.heads, s.queries, s.total}, "the bias");
  if (has_input(call, kLengths) && call.inputs[kLengths].size() != s.batch)
    misfit("Attention: lengths " + dims_text(call.inputs[kLengths].shape()) + " for a batch of " +
           std::to_string(s.batch));
  if (has_input(call, kSinks) && dims_of(call.inputs[kSinks]) != Dims{s.heads})
    misfit("Attention: sinks " + dims_text(call.inputs[kSinks].shape()) + " for " + std::to_string(s.heads) +
           " heads");
  for (int64_t b = 0; b < s.batch && has_input(call, kTotal); ++b)
    if (const int64_t used = past_of(call, s, b).tokens + s.keys; used > s.total)
      misfit("Attention: " + std::to_string(used) + " keys in row " + std::to_string(b) + ", but " +
             std::to_string(s.total) + " in all");
}
std::vector<OutputType> attention_shapes(const KernelCall& call) {
  check_attention(call, sizes_of(call));
  return by_rule(call);
}
int64_t attention_grid(const KernelCall& call) { return call.inputs[kQ].dims[0] * call.inputs[kQ].dims[1]; }

// All keys (or values) of one kv head as rows of doubles: valid past, then new.
std::vector<double> rows_of(const KernelCall& call, std::size_t fresh, std::size_t past_input, int64_t head,
                            int64_t past, int64_t keys, int64_t dim) {
  std::vector<double> rows(static_cast<std::size_t>((past + keys) * dim));
  if (past)
    load(call.inputs[past_input], head * call.inputs[past_input].dims[2] * dim, past * dim, rows.data());
  if (keys) load(call.inputs[fresh], head * keys * dim, keys * dim, rows.data() + past * dim);
  return rows;
}

// present = the valid past, then the new rows, then zeros; of the past and the new ones together only what stays.
void write_present(const KernelCall& call, std::size_t output, std::size_t fresh, std::size_t past_input,
                   int64_t head, const Past& before, int64_t keys) {
  if (call.outputs.size() <= output || !call.outputs[output].present()) return;
  const TensorView &y = call.outputs[output], &k = call.inputs[fresh];
  const int64_t row = y.dims[3] * element_bytes(y), total = y.dims[2];
  if (row == 0 || total == 0) return;
  std::byte* to = y.data + head * total * row;
  std::memset(to, 0, static_cast<std::size_t>(total * row));
  const int64_t held = before.tokens - before.gone;
  int64_t left = 0;  // of the rows in hand, how many of the first ones go
  if (call.attributes->get_or(key::kEvicts, 0)) {
    const int64_t tokens = before.tokens + keys;
    left = held + keys -
           std::min(resident(tokens, total, call.attributes->get_or(key::kWindow, 0)), held + keys);
  }
  const int64_t old = std::max<int64_t>(held - left, 0), fresh_left = std::max<int64_t>(left - held, 0);
  if (old)
    std::memcpy(to, call.inputs[past_input].data + (head * call.inputs[past_input].dims[2] + left) * row,
                static_cast<std::size_t>(old * row));
  if (keys > fresh_left)
    std::memcpy(to + old * row, k.data + (head * keys + fresh_left) * row,
                static_cast<std::size_t>((keys - fresh_left) * row));
}

void attention_tile(const KernelCall& call, int64_t tile) {
  const Sizes s = sizes_of(call);
  check_attention(call, s);
  const Attributes& a = *call.attributes;
  const int64_t b = tile / s.heads, h = tile % s.heads, group = s.heads / s.kv_heads,
                head = b * s.kv_heads + h / group;
  const Past before = past_of(call, s, b);
  // Key j of those at hand stands at position gone + j.
  const int64_t gone = before.gone, held = before.tokens - gone, keys = held + s.keys;
  if (h % group == 0) {
    write_present(call, attention::kPresentK, kK, kPastK, head, before, s.keys);
    write_present(call, attention::kPresentV, kV, kPastV, head, before, s.keys);
  }
  if (!call.outputs[0].present()) return;
  const std::vector<double> k = rows_of(call, kK, kPastK, head, held, s.keys, s.dim);
  const std::vector<double> v = rows_of(call, kV, kPastV, head, held, s.keys, s.value_dim);
  const bool causal = a.get_or(key::kCausal, 0) != 0, clean = a.get_or(key::kCleanNan, 0) != 0,
             limited = has_input(call, kLengths);
  const int64_t window = a.get_or(key::kWindow, 0),
                length =
                    limited ? std::clamp(load_one<int64_t>(call.inputs[kLengths], b), -kFar, kFar) : keys;
  // Position of query 0; negative where more queries than valid keys are given: such queries see nothing.
  const int64_t first = limited && !has_input(call, kPastK) ? length - s.queries : before.tokens;
  const double scale = a.get_or(key::kScale, 1 / std::sqrt(static_cast<double>(s.dim))),
               cap = a.get_or(key::kSoftcap, 0);
  const Dims score_dims{s.batch, s.heads, s.queries, s.total};
  const bool biased = has_input(call, kBias);
  const Index bias_strides = biased ? broadcast_strides(call.inputs[kBias], score_dims) : Index{};
  const bool selects = biased && call.inputs[kBias].dtype == DType::kBool;
  std::vector<double> q(static_cast<std::size_t>(s.dim)), score(static_cast<std::size_t>(keys)),
      bias(score.size()), out(static_cast<std::size_t>(s.value_dim));
  constexpr double kMasked = -std::numeric_limits<double>::infinity();
  double sink = kMasked;
  if (has_input(call, kSinks)) load(call.inputs[kSinks], h, 1, &sink);
  for (int64_t i = 0; i < s.queries; ++i) {
    load(call.inputs[kQ], (tile * s.queries + i) * s.dim, s.dim, q.data());
    if (biased)
      load_broadcast(call.inputs[kBias], score_dims, bias_strides, (tile * s.queries + i) * s.total + gone,
                     keys, bias.data());
    double top = sink, sum = 0;
    for (int64_t j = 0; j < keys; ++j) {
      double& x = score[j];
      x = 0;
      for (int64_t d = 0; d < s.dim; ++d) x += q[d] * k[j * s.dim + d];
      x *= scale;
      if (cap != 0) x = cap * std::tanh(x / cap);
      const int64_t distance = first + i - (gone + j);
      if ((causal && distance < 0) || (window > 0 && distance >= window) ||
          (limited && !causal && gone + j >= length))
        x = kMasked;
      if (biased) x = selects ? (bias[j] != 0 ? x : kMasked) : x + bias[j];
      top = std::max(top, x);
    }
    std::fill(out.begin(), out.end(), 0);
    if (sink != kMasked) sum = std::exp(sink - top);
    for (int64_t j = 0; j < keys; ++j) {
      const double p = std::exp(score[j] - top);
      sum += p;
      for (int64_t d = 0; d < s.value_dim; ++d) out[d] += p * v[j * s.value_dim + d];
    }
    const bool nothing = top == kMasked;
    for (double& x : out) x = nothing && clean ? 0 : x / sum;
    store(call.outputs[0], (tile * s.queries + i) * s.value_dim, s.value_dim, out.data());
  }
}

// The axes of x that have positions: all but the heads' and the last. Checks all operands of Rotary against x.
Dims rotary_lead(const KernelCall& call) {
  const TensorView &x = call.inputs[0], &cos = call.inputs[1], &sin = call.inputs[2];
  if (cos.rank < 2 || x.rank < 2) misfit("Rotary wants x of rank >= 2 and tables [L, R/2]");
  const int64_t head_axis = norm_axis(call.attributes->get_or(key::kHeadAxis, x.rank - 2), x.rank),
                dim = x.dims[x.rank - 1], rotated = call.attributes->get_or(key::kRotaryDim, dim);
  if (dims_of(cos) != dims_of(sin) || rotated < 0 || rotated > dim ||
      cos.size() != cos.dims[0] * (rotated / 2) || (cos.dims[0] == 0 && x.size() > 0))
    misfit("Rotary of " + std::to_string(rotated) + " of " + dims_text(x.shape()) + " with tables " +
           dims_text(cos.shape()) + " and " + dims_text(sin.shape()));
  Dims lead;
  for (int64_t i = 0; i + 1 < x.rank; ++i)
    if (i != head_axis) lead.push_back(x.dims[i]);
  check_broadcasts(call.inputs[3], lead, "positions");
  return lead;
}
std::vector<OutputType> rotary_shapes(const KernelCall& call) {
  rotary_lead(call);
  return like_first(call);
}
// x without its head axis and last axis, flattened, gives the rows that positions broadcast to.
void rotary_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &cos = call.inputs[1], &sin = call.inputs[2],
                   &positions = call.inputs[3], &y = call.outputs[0];
  const auto rank = static_cast<std::size_t>(x.rank);
  const auto head_axis =
      static_cast<std::size_t>(norm_axis(call.attributes->get_or(key::kHeadAxis, x.rank - 2), x.rank));
  const int64_t dim = x.dims[rank - 1], half = call.attributes->get_or(key::kRotaryDim, dim) / 2,
                length = cos.dims[0];
  const bool interleaved = call.attributes->get_or(key::kInterleaved, 0) != 0;
  const Index strides = broadcast_strides(positions, rotary_lead(call));
  const int64_t rows = dim ? x.size() / dim : 0, per_tile = 64;
  std::vector<float> row(static_cast<std::size_t>(dim)), c(static_cast<std::size_t>(half)),
      s(static_cast<std::size_t>(half));
  const Dims row_dims(x.dims.begin(), x.dims.begin() + static_cast<std::ptrdiff_t>(rank) - 1);
  if (tile * per_tile >= rows) return;
  Odometer at(row_dims, {}, tile * per_tile);
  for (int64_t r = tile * per_tile; r < std::min(rows, (tile + 1) * per_tile); ++r, at.next()) {
    int64_t where = 0;
    for (std::size_t i = 0, k = 0; i + 1 < rank; ++i)
      if (i != head_axis) where += at.index()[i] * strides[k++];
    const int64_t position = load_one<int64_t>(positions, where);
    if (position < 0 || position >= length)
      misfit("Rotary: position " + std::to_string(position) + " is out of range for tables of " +
             std::to_string(length) + " rows");
    load(cos, position * half, half, c.data());
    load(sin, position * half, half, s.data());
    load(x, r * dim, dim, row.data());
    for (int64_t j = 0; j < half; ++j) {
      float &u = row[interleaved ? 2 * j : j], &w = row[interleaved ? 2 * j + 1 : j + half];
      const float cu = c[j], su = s[j], u0 = u, w0 = w;
      u = u0 * cu - w0 * su;
      w = w0 * cu + u0 * su;
    }
    store(y, r * dim, dim, row.data());
  }
}
int64_t rotary_grid(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const int64_t dim = x.dims[x.rank - 1];
  return dim ? (x.size() / dim + 63) / 64 : 0;
}

}  // namespace

void register_attention(std::vector<Kernel>& into) {
  into.push_back({Op::kAttention, attention_shapes, attention_grid, attention_tile});
  into.push_back({Op::kRotary, rotary_shapes, rotary_grid, rotary_tile});
}

}  // namespace ark::kernels
