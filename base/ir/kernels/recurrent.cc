// Recurrent layers: one direction of a few rows a tile, step by step. What the input adds to the gates of all steps is
// a product of its own before.
#include "base/ir/kernels/recurrent.h"

#include "base/ir/kernels/common.h"
#include "base/ir/kernels/pointwise_loop.h"
#include "base/ir/keys.h"
#include "base/ir/pointwise_host.h"

namespace ark::kernels {
namespace {

constexpr int64_t kRecurrentRows = 4;  // of one tile: they share the weights in cache

// Inputs by position.
struct RecurrentInput {
  enum : std::size_t { kGates, kWeights, kLengths, kHidden, kHiddenBias, kCellState = 4, kPeepholes };
};

struct LayerSizes {
  int64_t steps, rows, directions, gates, hidden;  // gates: all of a row, G * H
  explicit LayerSizes(const KernelCall& call)
      : steps(call.inputs[RecurrentInput::kGates].dims[0]),
        rows(call.inputs[RecurrentInput::kGates].dims[1]),
        directions(call.inputs[RecurrentInput::kGates].dims[2]),
        gates(call.inputs[RecurrentInput::kGates].dims[3]),
        hidden(call.inputs[RecurrentInput::kWeights].dims[2]) {}
  int64_t row_tiles() const { return (rows + kRecurrentRows - 1) / kRecurrentRows; }
};

template <typename C>
struct Activation {
  Op op = Op::kCount;  // of those that RecurrentParts know
  PointwiseLoop<C> apply = nullptr;
  double p = 0, q = 0;
};

template <typename C>
Activation<C> activation_named(const std::string& name, double p, double q) {
  Activation<C> found{Op::kCount, nullptr, p, q};
  if (name == "Affine")
    found.apply = [](C* x, const C*, int64_t n, double a, double b) {
      for (int64_t i = 0; i < n; ++i) x[i] = static_cast<C>(a) * x[i] + static_cast<C>(b);
    };
  const Op op = op_from_name(name);
  const pointwise::Row* row = pointwise::row_of(op);
  if (row && row->arity == 1 && pointwise::is_fusible(*row))
    found.op = op, found.apply = pointwise_loop<C>(op);
  if (!found.apply) misfit("a recurrent layer with the activation '" + escaped(name, 40) + "'");
  return found;
}

template <typename C>
C dot(const C* a, const C* b, int64_t n) {
  C lanes[16]{}, sum{};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int64_t l = 0; l < 16; ++l) lanes[l] += a[i + l] * b[i + l];
  for (; i < n; ++i) sum += a[i] * b[i];
  for (const C lane : lanes) sum += lane;
  return sum;
}

// One sequence at one step: rows of matrices that neighbours share.
template <typename C>
struct SequenceState {
  int64_t row, length;
  C *h, *c, *gates, *inner;  // inner: what kGru multiplies or gets for its hidden gate
};

// The weights of one direction, and what a step does with them.
template <typename C>
class RecurrentCell {
 public:
  using State = SequenceState<C>;

  RecurrentCell(const KernelCall& call, const LayerSizes& sizes, int64_t direction,
                const RecurrentParts& parts)
      : op_(call.op), h_(sizes.hidden), gates_(sizes.gates), parts_(parts) {
    const TensorView& weights = call.inputs[RecurrentInput::kWeights];
    const int64_t count = sizes.gates * h_;
    if (std::is_same_v<C, float> && weights.dtype == DType::kF32) {
      weights_ = reinterpret_cast<const C*>(weights.as<float>() + direction * count);
    } else {
      own_weights_ = part(weights, direction, count);
      weights_ = own_weights_.data();
    }
    if constexpr (std::is_same_v<C, float>) {
      if (parts.add_product) {  // [h, gates] then
        constexpr int64_t kVector = 16;
        turned_row_ = (sizes.gates + kVector - 1) / kVector * kVector;
        turned_.resize(static_cast<std::size_t>(h_ * turned_row_ + kVector));
        parts.transpose(weights_, h_, sizes.gates, h_, turned_.data(), turned_row_);
      }
    }
    if (op_ == Op::kGru && has_input(call, RecurrentInput::kHiddenBias))
      hidden_bias_ = part(call.inputs[RecurrentInput::kHiddenBias], direction, h_);
    if (op_ == Op::kLstm && has_input(call, RecurrentInput::kPeepholes))
      peepholes_ = part(call.inputs[RecurrentInput::kPeepholes], direction, 3 * h_);
    const Attributes& a = *call.attributes;
    const auto& names = a.get(key::kActivations);
    const auto& parameters = a.get(key::kActivationParameters);
    const std::size_t each = names.size() / static_cast<std::size_t>(sizes.directions);
    for (std::size_t i = 0; i < each; ++i) {
      const std::size_t at = static_cast<std::size_t>(direction) * each + i;
      activations_[i] = activation_named<C>(names.at(at), parameters.at(2 * at), parameters.at(2 * at + 1));
    }
    clip_ = static_cast<C>(a.get_or(key::kClip, 0));
    linear_before_reset_ = a.get_or(key::kLinearBeforeReset, 0) != 0;
    input_forget_ = a.get_or(key::kInputForget, 0) != 0;
  }

  // Gates hold what the input adds; afterwards h (and c) are those behind the step.
  void step(std::span<State*> states) const {
    if (op_ != Op::kGru) {
      add_products(states, 0, op_ == Op::kLstm ? 4 * h_ : h_, &State::h, &State::gates, 0);
      for (State* s : states) op_ == Op::kLstm ? lstm(*s) : rnn(*s);
      return;
    }
    add_products(states, 0, 2 * h_, &State::h, &State::gates, 0);
    for (State* s : states) {
      activate(0, s->gates, 2 * h_);
      if (linear_before_reset_)
        for (int64_t i = 0; i < h_; ++i) s->inner[i] = hidden_bias_.empty() ? C{} : hidden_bias_[i];
      else
        for (int64_t i = 0; i < h_; ++i) s->inner[i] = s->gates[h_ + i] * s->h[i];
    }
    if (linear_before_reset_)
      add_products(states, 2 * h_, 3 * h_, &State::h, &State::inner, 2 * h_);
    else
      add_products(states, 2 * h_, 3 * h_, &State::inner, &State::gates, 0);
    for (State* s : states) gru(*s);
  }

 private:
  static std::vector<C> part(const TensorView& of, int64_t direction, int64_t count) {
    std::vector<C> values(static_cast<std::size_t>(count));
    load(of, direction * count, count, values.data());
    return values;
  }

  void add_products(std::span<State*> states, int64_t begin, int64_t end, C* State::*from, C* State::*into,
                    int64_t first) const {
    if constexpr (std::is_same_v<C, float>) {
      if (parts_.add_product) {
        const int64_t into_row = into == &State::gates ? gates_ : h_;
        for (std::size_t i = 0, next; i < states.size(); i = next) {  // neighbours at once
          for (next = i + 1; next < states.size() && states[next]->row == states[next - 1]->row + 1;) ++next;
          parts_.add_product(states[i]->*from, h_, static_cast<int64_t>(next - i), h_, turned_.data() + begin,
                             turned_row_, end - begin, states[i]->*into + begin - first, into_row);
        }
        return;
      }
    }
    for (int64_t g = begin; g < end; ++g)
      for (State* s : states) (s->*into)[g - first] += dot(weights_ + g * h_, s->*from, h_);
  }

  void activate(int which, C* x, int64_t n) const {
    if (clip_ > 0)
      for (int64_t i = 0; i < n; ++i) x[i] = x[i] > clip_ ? clip_ : x[i] < -clip_ ? -clip_ : x[i];
    apply(which, x, n);
  }
  void apply(int which, C* x, int64_t n) const {
    const Activation<C>& by = activations_[which];
    if constexpr (std::is_same_v<C, float>)
      if (parts_.apply && by.op != Op::kCount) return parts_.apply(by.op, x, n, by.p, by.q);
    by.apply(x, nullptr, n, by.p, by.q);
  }

  void rnn(State& s) const {
    activate(0, s.gates, h_);
    std::copy_n(s.gates, h_, s.h);
  }

  void gru(State& s) const {
    const C *z = s.gates, *r = z + h_;
    C* hidden = s.gates + 2 * h_;
    if (linear_before_reset_)
      for (int64_t i = 0; i < h_; ++i) hidden[i] += r[i] * s.inner[i];
    activate(1, hidden, h_);
    for (int64_t i = 0; i < h_; ++i) s.h[i] = (1 - z[i]) * hidden[i] + z[i] * s.h[i];
  }

  void lstm(State& s) const {
    C *in = s.gates, *out = in + h_, *forget = out + h_, *cell = forget + h_;
    peep(s, in, 0);
    activate(0, in, h_);
    if (input_forget_) {
      for (int64_t i = 0; i < h_; ++i) forget[i] = 1 - in[i];
    } else {
      peep(s, forget, 2);
      activate(0, forget, h_);
    }
    activate(1, cell, h_);
    for (int64_t i = 0; i < h_; ++i) s.c[i] = forget[i] * s.c[i] + in[i] * cell[i];
    peep(s, out, 1);
    activate(0, out, h_);
    std::copy_n(s.c, h_, s.h);
    apply(2, s.h, h_);
    for (int64_t i = 0; i < h_; ++i) s.h[i] *= out[i];
  }

  // What the cell's state adds to one gate of input, output, forget.
  void peep(const State& s, C* gate, int64_t which) const {
    if (peepholes_.empty()) return;
    for (int64_t i = 0; i < h_; ++i) gate[i] += peepholes_[which * h_ + i] * s.c[i];
  }

  Op op_;
  int64_t h_, gates_;
  const RecurrentParts& parts_;
  std::vector<C> own_weights_, hidden_bias_, peepholes_;
  std::vector<float> turned_;  // the weights as parts multiply them
  int64_t turned_row_ = 0;
  const C* weights_ = nullptr;
  Activation<C> activations_[3];
  C clip_{};
  bool linear_before_reset_ = false, input_forget_ = false;
};

template <typename C>
void run_direction(const KernelCall& call, const LayerSizes& sizes, int64_t direction, int64_t first,
                   const RecurrentParts& parts) {
  const int64_t h = sizes.hidden, last = std::min(sizes.rows, first + kRecurrentRows);
  const bool backwards = direction == 1 || call.attributes->get(key::kDirection) == "reverse";
  const RecurrentCell<C> cell(call, sizes, direction, parts);
  const auto length_of = [&](int64_t row) {
    return has_input(call, RecurrentInput::kLengths)
               ? load_one<int64_t>(call.inputs[RecurrentInput::kLengths], row)
               : sizes.steps;
  };
  // A sequence without steps ends with zeros, as in ONNX Runtime, not with its initial state.
  const auto initial = [&](std::size_t input, int64_t row, C* state) {
    if (has_input(call, input) && length_of(row) > 0)
      load(call.inputs[input], (direction * sizes.rows + row) * h, h, state);
  };
  const auto wanted = [&](std::size_t i) { return i < call.outputs.size() && call.outputs[i].present(); };
  const auto y_at = [&](int64_t t, int64_t row) {
    return ((t * sizes.directions + direction) * sizes.rows + row) * h;
  };

  const auto rows_of = [&](int64_t n) {
    return std::vector<C>(static_cast<std::size_t>((last - first) * n));
  };
  std::vector<C> hidden = rows_of(h), cells = rows_of(h), gates = rows_of(sizes.gates), inner = rows_of(h);
  std::vector<SequenceState<C>> all;
  for (int64_t row = first; row < last; ++row) {
    const int64_t r = row - first;
    all.push_back({row, length_of(row), hidden.data() + r * h, cells.data() + r * h,
                   gates.data() + r * sizes.gates, inner.data() + r * h});
    initial(RecurrentInput::kHidden, row, all.back().h);
    if (call.op == Op::kLstm) initial(RecurrentInput::kCellState, row, all.back().c);
  }
  const std::vector<C> zeros(static_cast<std::size_t>(h));
  std::vector<SequenceState<C>*> active;
  for (int64_t step = 0; step < sizes.steps; ++step) {
    active.clear();
    for (SequenceState<C>& s : all) {
      if (step >= s.length) {
        if (wanted(0)) store(call.outputs[0], y_at(step, s.row), h, zeros.data());
        continue;
      }
      const int64_t t = backwards ? s.length - 1 - step : step;
      load(call.inputs[RecurrentInput::kGates],
           ((t * sizes.rows + s.row) * sizes.directions + direction) * sizes.gates, sizes.gates, s.gates);
      active.push_back(&s);
    }
    cell.step(active);
    for (const SequenceState<C>* s : active)
      if (wanted(0)) store(call.outputs[0], y_at(backwards ? s->length - 1 - step : step, s->row), h, s->h);
  }
  for (const SequenceState<C>& s : all) {
    if (wanted(1)) store(call.outputs[1], (direction * sizes.rows + s.row) * h, h, s.h);
    if (wanted(2)) store(call.outputs[2], (direction * sizes.rows + s.row) * h, h, s.c);
  }
}

std::vector<OutputType> recurrent_shapes(const KernelCall& call) {
  std::vector<OutputType> types = by_rule(call);
  if (!is_floating(call.inputs[RecurrentInput::kGates].dtype))
    misfit("a recurrent layer computes on floating point numbers");
  const int64_t steps = call.inputs[RecurrentInput::kGates].dims[0];
  if (has_input(call, RecurrentInput::kLengths) && call.inputs[RecurrentInput::kLengths].data)
    for (int64_t i = 0; i < call.inputs[RecurrentInput::kLengths].size(); ++i)
      if (const int64_t n = load_one<int64_t>(call.inputs[RecurrentInput::kLengths], i); n < 0 || n > steps)
        misfit("sequence_lens has " + std::to_string(n) + " of " + std::to_string(steps) + " steps");
  return types;
}

int64_t recurrent_grid(const KernelCall& call) {
  const LayerSizes sizes(call);
  return sizes.directions * sizes.row_tiles();
}

}  // namespace

void recurrent_tile(const KernelCall& call, int64_t tile, const RecurrentParts& parts) {
  const LayerSizes sizes(call);
  const int64_t direction = tile / sizes.row_tiles(), first = tile % sizes.row_tiles() * kRecurrentRows;
  if (call.inputs[RecurrentInput::kGates].dtype == DType::kF64)
    run_direction<double>(call, sizes, direction, first, parts);
  else
    run_direction<float>(call, sizes, direction, first, parts);
}

void register_recurrent(std::vector<Kernel>& into) {
  for (const Op op : {Op::kRnn, Op::kGru, Op::kLstm})
    into.push_back({op, recurrent_shapes, recurrent_grid,
                    [](const KernelCall& call, int64_t tile) { recurrent_tile(call, tile, {}); }});
}

}  // namespace ark::kernels
