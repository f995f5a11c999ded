#include "importer/decoder/mask.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "importer/decoder/part_probe.h"
#include "importer/decoder/refusal.h"

namespace ark::decoder {
namespace {

constexpr int64_t kLongText = 256;  // tokens
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Whether biases are equal but for rounding: the file computes them in float32, from numbers of this size.
bool is_near(double a, double b, double size) { return std::abs(a - b) <= 8e-6 * std::abs(size) + 1e-6; }

// Where the element of an operand lies that meets score (b, h, i, j).
struct Strides {
  int64_t b = 0, i = 0, j = 0;
  std::vector<int64_t> head;  // offset of each head
  bool any_head() const {
    return std::any_of(head.begin(), head.end(), [](int64_t o) { return o != 0; });
  }
};

int64_t size_at(const Atom& atom, const Step& step) {
  switch (atom.kind) {
    case AtomKind::kBatch:
      return step.batch;
    case AtomKind::kSequence:
      return step.sequence;
    case AtomKind::kPast:
      return step.past;
    case AtomKind::kContext:
      return step.total();
    case AtomKind::kFeature:
      return atom.size.constant().value();
  }
  return 0;
}

Strides strides_of(const Dims& dims, const Layout& layout, const Step& step, int64_t heads,
                   const Node& node) {
  Strides strides;
  strides.head.assign(static_cast<std::size_t>(heads), 0);
  if (dims.size() > layout.size()) refuse(node, "adds axes to the attention scores");
  int64_t stride = 1, inner_heads = 1;
  for (std::size_t back = 0; back < layout.size(); ++back) {
    const Axis& axis = layout[layout.size() - 1 - back];
    const int64_t dim = back < dims.size() ? dims[dims.size() - 1 - back] : 1;
    int64_t at = stride, full = 1;
    for (auto atom = axis.rbegin(); atom != axis.rend(); ++atom) {
      const int64_t n = size_at(*atom, step), s = dim == 1 ? 0 : at;
      if (atom->kind == AtomKind::kBatch)
        strides.b += s;
      else if (atom->kind == AtomKind::kSequence)
        strides.i += s;
      else if (atom->kind == AtomKind::kContext)
        strides.j += s;
      else {
        for (int64_t h = 0; h < heads; ++h) strides.head[h] += h / inner_heads % n * s;
        inner_heads *= n;
      }
      at *= n;
      full *= n;
    }
    if (dim != 1 && dim != full)
      refuse(node, "an operand of size " + std::to_string(dim) + " meets an axis of size " +
                       std::to_string(full) + " of the attention scores");
    stride *= dim;
  }
  return strides;
}

// The scores after the steps, as alpha * product + beta, at (b, h, i, j) of one step.
struct Grid {
  int64_t batch = 1, heads = 1, sequence = 1, total = 1;
  std::vector<double> alpha, beta;
  std::size_t at(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return static_cast<std::size_t>(
        ((std::min(b, batch - 1) * heads + std::min(h, heads - 1)) * sequence + i) * total + j);
  }
};

struct Operand {
  Tensor values;
  Strides strides;
  double at(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return values.real(strides.b * b + strides.head[h] + strides.i * i + strides.j * j);
  }
};
struct Bound {
  const ScoreStep* step;
  std::optional<Operand> other, third;
};

void apply(const Bound& bound, const Step& now, bool has_past, int64_t b, int64_t h, int64_t i, int64_t j,
           double& alpha, double& beta) {
  const ScoreStep& s = *bound.step;
  const double x = bound.other && s.op != Op::kAttention ? bound.other->at(b, h, i, j) : s.factor;
  switch (s.op) {
    case Op::kMul:
      alpha *= x, beta *= x;
      break;
    case Op::kDiv:
      alpha /= x, beta /= x;
      break;
    case Op::kNeg:
      alpha = -alpha, beta = -beta;
      break;
    case Op::kAdd:
      beta += x;
      break;
    case Op::kSub:
      if (s.scores_first)
        beta -= x;
      else
        alpha = -alpha, beta = x - beta;
      break;
    case Op::kMax:  // a floor under the mask; far below any score
      if (!(x <= kMasked))
        alpha = std::numeric_limits<double>::quiet_NaN();
      else
        beta = std::max(beta, x);
      break;
    case Op::kWhere:
      if ((x != 0) != s.scores_first)
        alpha = 0, beta = bound.third ? bound.third->at(b, h, i, j) : -kInfinity;
      break;
    case Op::kAttention: {
      const int64_t length = bound.other
                                 ? bound.other->values.integer(bound.other->values.size() == 1 ? 0 : b)
                                 : (s.scores_first || !has_past ? now.total() : now.sequence);
      const int64_t position = length - now.sequence + i;
      if (j > position || (s.window > 0 && position - j >= s.window)) alpha = 0, beta = -kInfinity;
      break;
    }
    default:
      alpha = std::numeric_limits<double>::quiet_NaN();
  }
}

class Proof {
 public:
  Proof(const Graph& graph, const Roles& roles, Probe& probe, const std::vector<ScoreStep>& steps,
        int64_t heads, int64_t length, const Node& at)
      : probe_(probe),
        parts_(graph, roles, probe),
        has_past_(roles.has_past),
        steps_(steps),
        heads_(heads),
        length_(length),
        node_(at) {}

  AttentionMask run();

 private:
  // The step as the file can have it. Without caches, `past` tokens are the first ones of a longer step,
  // whose last rows are looked at: they are masked as if the others were cached.
  Step possible(const Step& asked) const {
    if (has_past_) return probe_.possible(asked);
    const Step whole = probe_.possible({asked.batch, asked.total(), 0});
    const int64_t rows = std::min(asked.sequence, whole.sequence);
    return {whole.batch, rows, whole.sequence - rows};
  }
  Tensor read(ValueId id, const ScoreStep& s, const Step& step);
  Operand operand(ValueId id, const ScoreStep& s, const Step& step) {
    Operand o{read(id, s, step), {}};
    if (s.op != Op::kAttention) o.strides = strides_of(o.values.dims, s.layout, step, heads_, *s.node);
    return o;
  }
  Grid grid(const Step& step);
  double scalar(const ScoreStep& s);
  void learn(const Grid& grid, const Step& step);
  void check(const Grid& grid, const Step& step);
  void check_row(const Grid& grid, const Step& step, int64_t b, int64_t h, int64_t i);
  bool first_sees_last();
  bool visible(int64_t position, int64_t j) const {
    return j <= position && (mask_.window == 0 || position - j < mask_.window);
  }

  Probe& probe_;
  PartProbe parts_;
  const bool has_past_;
  const std::vector<ScoreStep>& steps_;
  const int64_t heads_, length_;
  const Node& node_;
  std::size_t first_ = 0;  // the steps before are scale and soft cap
  double alpha_ = 1;       // of every visible score
  AttentionMask mask_;
};

Tensor Proof::read(ValueId id, const ScoreStep& s, const Step& step) {
  if (has_past_ || step.past == 0) return probe_.value(id, step);
  const Step whole{step.batch, step.total(), 0};
  try {
    if (s.op == Op::kAttention) return probe_.value(id, whole);  // lengths, one a sequence
    Box box;
    box.size = parts_.dims(id, whole);
    box.begin.assign(box.size.size(), 0);
    for (std::size_t back = 1; back <= std::min(box.size.size(), s.layout.size()); ++back) {
      const Axis& axis = s.layout[s.layout.size() - back];
      const std::size_t i = box.size.size() - back;
      if (!has_kind(axis, AtomKind::kSequence) || box.size[i] == 1) continue;
      if (axis.size() != 1) refuse(*s.node, "mixes tokens with other axes of the attention scores");
      box.begin[i] = box.size[i] - step.sequence, box.size[i] = step.sequence;
    }
    return parts_.part(id, whole, box);
  } catch (const Refusal& refusal) {
    throw OutOfReach(refusal.node.empty() ? s.node->name : refusal.node, refusal.reason);
  }
}

double Proof::scalar(const ScoreStep& s) {
  if (s.other == kNoValue) return s.factor;
  std::optional<double> scale;
  for (const Step& step : {Step{1, 2, 3}, Step{1, 1, length_ - 1}}) {
    const Tensor t = read(s.other, s, possible(step));
    for (int64_t i = 0; i < t.size(); ++i)
      if (t.real(i) != scale.value_or(t.real(0)))
        refuse(*s.node, "scales attention scores unevenly before a soft cap");
    if (t.size() > 0) scale = t.real(0);
  }
  return scale.value_or(1);
}

Grid Proof::grid(const Step& step) {
  std::vector<Bound> bound;
  bool batch = false, head = false;
  for (std::size_t k = first_; k < steps_.size(); ++k) {
    const ScoreStep& s = steps_[k];
    Bound b{&s, {}, {}};
    if (s.other != kNoValue) b.other = operand(s.other, s, step);
    if (s.third != kNoValue) b.third = operand(s.third, s, step);
    for (const auto& o : {b.other, b.third})
      if (o) batch = batch || o->strides.b != 0, head = head || o->strides.any_head();
    if (s.op == Op::kAttention && s.other != kNoValue) batch = true;
    bound.push_back(std::move(b));
  }
  Grid g{batch ? step.batch : 1, head ? heads_ : 1, step.sequence, step.total(), {}, {}};
  const auto n = static_cast<std::size_t>(g.batch * g.heads * g.sequence * g.total);
  g.alpha.assign(n, 1);
  g.beta.assign(n, 0);
  for (int64_t b = 0; b < g.batch; ++b)
    for (int64_t h = 0; h < g.heads; ++h)
      for (int64_t i = 0; i < g.sequence; ++i)
        for (int64_t j = 0; j < g.total; ++j)
          for (const Bound& s : bound)
            apply(s, step, has_past_, b, h, i, j, g.alpha[g.at(b, h, i, j)], g.beta[g.at(b, h, i, j)]);
  return g;
}

// Window and slopes from the last query of a long step: a hypothesis, to be checked everywhere.
void Proof::learn(const Grid& g, const Step& step) {
  const int64_t i = step.sequence - 1, position = step.past + i;
  int64_t seen = 0;
  while (seen <= position && g.beta[g.at(0, 0, i, position - seen)] > kMasked) ++seen;
  if (seen == 0) throw NotCausal(node_.name, "the mask hides a token from itself");
  mask_.window = seen == position + 1 ? 0 : seen;
  alpha_ = g.alpha[g.at(0, 0, i, position)];
  if (!(std::abs(alpha_) > 0) || !std::isfinite(alpha_)) refuse(node_, "the mask hides every score");
  if (seen == 1) return;
  // Slopes where the biases of a whole window are smallest: what cancels least.
  const Step shortest = possible(step.past > 0 ? Step{1, 1, seen - 1} : Step{1, seen, 0});
  const Grid near = grid(shortest);
  const int64_t row = shortest.sequence - 1, last = shortest.past + row;
  std::vector<float> slopes;
  for (int64_t h = 0; h < heads_; ++h)
    slopes.push_back(static_cast<float>(
        (near.beta[near.at(0, h, row, last)] - near.beta[near.at(0, h, row, last - seen + 1)]) /
        static_cast<double>(seen - 1)));
  if (std::all_of(slopes.begin(), slopes.end(), [](float s) { return s == 0; })) return;
  mask_.slopes = std::move(slopes);
  // Far enough away, a bias hides a key as a mask would: no window ends where the slope goes on.
  const double beyond = g.beta[g.at(0, 0, i, position)] - mask_.slopes[0] * static_cast<double>(seen);
  if (mask_.window != 0 && is_near(g.beta[g.at(0, 0, i, position - seen)], beyond, beyond)) mask_.window = 0;
}

// In a long text. Tokens of a prefix may see each other in a generator too, but not what it generates.
bool Proof::first_sees_last() {
  const Step whole = possible({1, std::min(length_, kLongText), 0});
  const Grid g = grid(whole);
  return whole.past == 0 && g.beta[g.at(0, 0, 0, g.total - 1)] > kMasked;
}

void Proof::check_row(const Grid& g, const Step& step, int64_t b, int64_t h, int64_t i) {
  const int64_t position = step.past + i;
  const auto where = [&](int64_t j) {
    return " (query at position " + std::to_string(position) + ", key " + std::to_string(j) + ", batch row " +
           std::to_string(b) + ", head " + std::to_string(h) + ", " + std::to_string(step.past) + " cached)";
  };
  const double own = g.beta[g.at(b, h, i, position)];
  const double slope = mask_.slopes.empty() ? 0 : mask_.slopes[h];
  const double largest = std::abs(own) + std::abs(slope) * static_cast<double>(position);
  for (int64_t j = 0; j < g.total; ++j) {
    const double alpha = g.alpha[g.at(b, h, i, j)], beta = g.beta[g.at(b, h, i, j)];
    if (!visible(position, j)) {
      if (beta > kMasked && j > position) {
        const std::string why = "the mask is not causal: a later token is seen" + where(j);
        if (!has_past_ && first_sees_last()) throw FillsBlanks(node_.name, why);
        throw NotCausal(node_.name, why);
      }
      if (!(beta <= kMasked) || std::isnan(alpha))
        throw NotCausal(node_.name, "the mask is not causal: a key that should be hidden is seen" + where(j));
    } else if (const double bias = own + slope * static_cast<double>(j - position);
               !is_near(beta, bias, largest)) {
      if (beta <= kMasked) refuse(node_, "the mask hides a key that a causal mask shows" + where(j));
      // Far away it may be that 16 bits round it.
      throw OutOfReach(node_.name, "the bias on attention scores is not linear in the distance" + where(j));
    } else if (!(std::abs(alpha - alpha_) <= 1e-6 * std::abs(alpha_))) {
      refuse(node_, "attention scores are scaled differently from place to place" + where(j));
    }
  }
}

void Proof::check(const Grid& g, const Step& step) {
  for (int64_t b = 0; b < g.batch; ++b)
    for (int64_t h = 0; h < g.heads; ++h)
      for (int64_t i = 0; i < g.sequence; ++i) check_row(g, step, b, h, i);
}

AttentionMask Proof::run() {
  double before = 1;
  for (std::size_t k = 0; k < steps_.size(); ++k) {
    const ScoreStep& s = steps_[k];
    if (s.op != Op::kTanh) continue;
    if (mask_.softcap != 0) refuse(*s.node, "caps attention scores twice");
    for (std::size_t m = 0; m < k; ++m) {
      if (steps_[m].op == Op::kMul)
        before *= scalar(steps_[m]);
      else if (steps_[m].op == Op::kDiv && steps_[m].scores_first)
        before /= scalar(steps_[m]);
      else
        refuse(*steps_[m].node, "stands before a soft cap of attention scores, but is no scale");
    }
    mask_.softcap = 1;
    first_ = k + 1;
  }
  const Step longest = possible({1, 1, length_ - 1});
  const Grid g = grid(longest);
  learn(g, longest);
  check(g, longest);
  std::vector<Step> steps{{2, 5, 0},  {1, 1, 0}, {1, 4, 3},           {2, 3, 6},
                          {3, 2, 4},  {2, 7, 1}, {1, 1, length_ / 2}, {1, 3, length_ * 3 / 4},
                          {2, 40, 24}};
  if (!has_past_) steps.push_back({1, std::min(length_, kLongText), 0});
  for (Step step : steps) {
    step = possible(step);
    if (step.total() <= length_) check(grid(step), step);
  }
  if (mask_.softcap != 0)
    mask_.softcap = alpha_, mask_.scale = before * alpha_;
  else
    mask_.scale = alpha_;
  if (!(mask_.scale > 0) || !(mask_.softcap >= 0)) refuse(node_, "attention scores change their sign");
  return mask_;
}

}  // namespace

AttentionMask prove_mask(const Graph& graph, const Roles& roles, Probe& probe,
                         const std::vector<ScoreStep>& steps, int64_t heads, int64_t length, const Node& at) {
  return Proof(graph, roles, probe, steps, heads, length, at).run();
}

}  // namespace ark::decoder
