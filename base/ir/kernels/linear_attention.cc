// Attention whose past is one matrix a head (linear attention, gated or by the delta rule), token by token.
// Schlag et al., "Linear Transformers Are Secretly Fast Weight Programmers" (2021); Yang et al., "Gated Delta
// Networks" (2024).
#include <cmath>

#include "base/ir/kernels/common.h"
#include "base/ir/keys.h"

namespace ark::kernels {
namespace {

// Inputs by position.
struct LinearInput {
  enum : std::size_t { kQuery, kKey, kValue, kState, kDecay, kRate };
};

struct LinearSizes {
  int64_t batch, steps, query_heads, key_heads, heads, key_dim, value_dim, output_heads;
  explicit LinearSizes(const KernelCall& call)
      : batch(call.inputs[LinearInput::kQuery].dims[0]),
        steps(call.inputs[LinearInput::kQuery].dims[1]),
        query_heads(call.inputs[LinearInput::kQuery].dims[2]),
        key_heads(call.inputs[LinearInput::kKey].dims[2]),
        heads(call.inputs[LinearInput::kValue].dims[2]),
        key_dim(call.inputs[LinearInput::kQuery].dims[3]),
        value_dim(call.inputs[LinearInput::kValue].dims[3]),
        output_heads(std::max(query_heads, heads)) {}
};

// One head's state [key_dim, value_dim], and what a token does with it.
template <typename C>
class LinearState {
 public:
  LinearState(int64_t key_dim, int64_t value_dim)
      : state_(static_cast<std::size_t>(key_dim * value_dim)), width_(value_dim) {}

  C* data() { return state_.data(); }
  int64_t size() const { return static_cast<int64_t>(state_.size()); }

  // By a factor each row, or one for all.
  void decay(const std::vector<C>& logarithms) {
    for (int64_t i = 0, rows = size() / std::max<int64_t>(width_, 1); i < rows; ++i) {
      const C factor = std::exp(logarithms[logarithms.size() == 1 ? 0 : static_cast<std::size_t>(i)]);
      for (int64_t j = 0; j < width_; ++j) row(i)[j] *= factor;
    }
  }

  // out = S^T x
  void ask(const std::vector<C>& x, std::vector<C>& out) const {
    std::fill(out.begin(), out.end(), C{});
    for (std::size_t i = 0; i < x.size(); ++i) {
      const C* const values = state_.data() + static_cast<int64_t>(i) * width_;
      for (int64_t j = 0; j < width_; ++j) out[static_cast<std::size_t>(j)] += x[i] * values[j];
    }
  }

  // S += x (outer) value
  void add(const std::vector<C>& x, const std::vector<C>& value) {
    for (std::size_t i = 0; i < x.size(); ++i)
      for (int64_t j = 0; j < width_; ++j)
        row(static_cast<int64_t>(i))[j] += x[i] * value[static_cast<std::size_t>(j)];
  }

 private:
  C* row(int64_t i) { return state_.data() + i * width_; }

  std::vector<C> state_;
  int64_t width_;
};

template <typename C>
void run_head(const KernelCall& call, int64_t tile) {
  const LinearSizes s(call);
  const int64_t b = tile / s.heads, h = tile % s.heads;
  const TensorView &q = call.inputs[LinearInput::kQuery], &k = call.inputs[LinearInput::kKey],
                   &v = call.inputs[LinearInput::kValue];
  LinearState<C> state(s.key_dim, s.value_dim);
  const int64_t place = (b * s.heads + h) * state.size();
  if (has_input(call, LinearInput::kState))
    load(call.inputs[LinearInput::kState], place, state.size(), state.data());
  const bool decays = has_input(call, LinearInput::kDecay), by_error = has_input(call, LinearInput::kRate);
  const int64_t decay_width = decays ? call.inputs[LinearInput::kDecay].dims[3] : 0,
                rates = by_error ? call.inputs[LinearInput::kRate].dims[2] : 0;
  const auto size = [](int64_t n) { return static_cast<std::size_t>(n); };
  std::vector<C> key(size(s.key_dim)), query(size(s.key_dim)), value(size(s.value_dim)),
      answer(size(s.value_dim)), logarithms(size(decay_width));
  const C scale = static_cast<C>(call.attributes->get(key::kScale));
  const int64_t outputs_each = s.output_heads / s.heads, first = h * outputs_each;
  for (int64_t t = 0; t < s.steps; ++t) {
    const int64_t token = b * s.steps + t;
    load(k, (token * s.key_heads + h * s.key_heads / s.heads) * s.key_dim, s.key_dim, key.data());
    load(v, (token * s.heads + h) * s.value_dim, s.value_dim, value.data());
    if (decays) {
      load(call.inputs[LinearInput::kDecay], (token * s.heads + h) * decay_width, decay_width,
           logarithms.data());
      state.decay(logarithms);
    }
    if (by_error) {
      const C rate = load_one<C>(call.inputs[LinearInput::kRate], token * rates + (rates == 1 ? 0 : h));
      state.ask(key, answer);
      for (std::size_t j = 0; j < value.size(); ++j) value[j] = rate * (value[j] - answer[j]);
    }
    state.add(key, value);
    for (int64_t i = first; i < first + outputs_each; ++i) {
      load(q, (token * s.query_heads + i * s.query_heads / s.output_heads) * s.key_dim, s.key_dim,
           query.data());
      state.ask(query, answer);
      for (C& a : answer) a *= scale;
      store(call.outputs[0], (token * s.output_heads + i) * s.value_dim, s.value_dim, answer.data());
    }
  }
  if (call.outputs.size() > 1 && call.outputs[1].present())
    store(call.outputs[1], place, state.size(), state.data());
}

std::vector<OutputType> linear_shapes(const KernelCall& call) {
  for (const TensorView& x : call.inputs)
    if (x.present() && !is_floating(x.dtype)) misfit("linear attention computes on floating point numbers");
  return by_rule(call);
}

int64_t linear_grid(const KernelCall& call) {
  const LinearSizes sizes(call);
  return sizes.batch * sizes.heads;
}

void linear_tile(const KernelCall& call, int64_t tile) {
  if (call.inputs[LinearInput::kQuery].dtype == DType::kF64)
    run_head<double>(call, tile);
  else
    run_head<float>(call, tile);
}

}  // namespace

void register_linear_attention(std::vector<Kernel>& into) {
  into.push_back({Op::kLinearAttention, linear_shapes, linear_grid, linear_tile});
}

}  // namespace ark::kernels
