#include "base/ir/work.h"

#include <cmath>

#include "base/ir/attention_operands.h"
#include "base/ir/einsum.h"
#include "base/ir/keys.h"

namespace ark {
namespace {

constexpr double kElement = 4;   // of a pointwise kernel
constexpr double kSorted = 64;   // one element's share of sorting, or of a search among words
constexpr double kSampled = 64;  // a value between points: their places, weights and sum
constexpr double kRandom = 32;

// As doubles: products of sizes of a hostile file pass 2^63. An axis of none counts as one: a kernel may go through the
// rows of what has 2^40 rows without columns.
double count(std::span<const int64_t> dims) {
  double n = 1;
  for (const int64_t d : dims) n *= static_cast<double>(std::max<int64_t>(d, 1));
  return n;
}
double count(const TensorView& t) { return t.present() ? count(t.shape()) : 0; }

struct Operands {
  const KernelCall& call;

  double in(std::size_t i) const { return i < call.inputs.size() ? count(call.inputs[i]) : 0; }
  double out(std::size_t i = 0) const { return i < call.outputs.size() ? count(call.outputs[i]) : 0; }
  double size(std::size_t input, int axis) const {  // from the end where negative
    if (input >= call.inputs.size()) return 0;
    const TensorView& t = call.inputs[input];
    const int at = axis < 0 ? axis + t.rank : axis;
    return at >= 0 && at < t.rank ? static_cast<double>(t.dims[at]) : 1;
  }
  double out_size(int axis) const {  // 0 while it is not known
    if (call.outputs.empty() || !call.outputs[0].present()) return 0;
    const TensorView& t = call.outputs[0];
    const int at = axis < 0 ? axis + t.rank : axis;
    return at >= 0 && at < t.rank ? static_cast<double>(t.dims[at]) : 1;
  }
  double plane(std::size_t input) const {  // of an image, and a border
    double n = 1;
    for (int a = 2; input < call.inputs.size() && a < call.inputs[input].rank; ++a) n *= size(input, a) + 2;
    return n;
  }
  double all_in() const {
    double n = 0;
    for (std::size_t i = 0; i < call.inputs.size(); ++i) n += in(i);
    return n;
  }
  double all_out() const {
    double n = 0;
    for (std::size_t i = 0; i < call.outputs.size(); ++i) n += out(i);
    return n;
  }
};

double einsum_work(const KernelCall& call) {
  std::vector<int64_t> ranks;
  for (const TensorView& in : call.inputs) ranks.push_back(in.rank);
  const EinsumLabels labels = einsum_labels(call.attributes->get(key::kEquation), ranks);
  std::array<double, 256> sizes{};
  for (std::size_t k = 0; k < labels.operands.size(); ++k)
    for (std::size_t i = 0; i < labels.operands[k].size(); ++i) {
      double& size = sizes[static_cast<unsigned char>(labels.operands[k][i])];
      size = std::max(size, static_cast<double>(call.inputs[k].dims[i]));
    }
  double work = static_cast<double>(call.inputs.size());
  for (const double size : sizes) work *= size > 0 ? size : 1;
  return work;
}

// A row of n: its factors, or three transforms of up to four times as many where n has large ones; and the turns of
// all, for each few rows. What is one-sided has the other half of n, too.
double transform_work(const Operands& o) {
  double n = 1;
  for (int axis = 0; axis < o.call.inputs[0].rank; ++axis)
    n = std::max({n, o.size(0, axis), 2 * o.out_size(axis)});
  return std::max(o.in(0), 2 * o.out()) * (200 + 30 * std::log2(n + 1));
}

double resize_work(const KernelCall& call, const Operands& o) {
  double taps = 4;
  const bool shrinks = call.attributes->get_or(key::kAntialias, 0) != 0;
  for (int axis = 0; axis < call.inputs[0].rank; ++axis) {
    const double from = o.size(0, axis), to = o.out_size(axis);
    if (from != to) taps *= shrinks && to > 0 ? std::max(4.0, 4 * from / to) : 4;
  }
  return o.out() * taps;
}

}  // namespace

double work_of(const KernelCall& call) {
  const Operands o{call};
  const Attributes& a = *call.attributes;
  switch (call.op) {
    case Op::kMatMul:
      return o.out() * o.size(0, call.inputs[0].rank > 1 && a.get_or(key::kTransA, 0) ? -2 : -1);
    case Op::kMatMulInteger:
    case Op::kMatMulNBits:
      return o.out() * o.size(0, -1);
    case Op::kExpertMatMul:  // experts of a row, summed or not
      return o.in(1) * o.size(0, -1) * o.out_size(-1);
    case Op::kEinsum:
      return einsum_work(call);
    case Op::kConv:
    case Op::kConvInteger:
      return o.out() * o.in(1) / std::max(o.size(1, 0), 1.0);
    case Op::kDeformConv:
      return kSampled * o.out() * o.in(1) / std::max(o.size(1, 0), 1.0);
    case Op::kConvTranspose:
      return std::max(o.in(0), o.out()) * o.in(1) / std::max(std::min(o.size(1, 0), o.size(1, 1)), 1.0);
    case Op::kMaxPool:
    case Op::kAveragePool:
      return kElement * o.out() * std::min(count(a.get(key::kKernelShape)), o.plane(0));
    case Op::kLrn:
      return kElement * o.out() * std::min(static_cast<double>(a.get_or(key::kSize, 1)), o.size(0, 1));
    case Op::kAttention: {  // all keys and values of a head are widened once for its queries
      using namespace attention;
      const double keys = o.size(kK, 2) + o.size(kPastK, 2);
      return o.size(kQ, 0) * o.size(kQ, 1) * (o.size(kQ, 2) + 2) * keys * (o.size(kQ, 3) + o.size(kV, 3));
    }
    case Op::kRnn:
    case Op::kGru:
    case Op::kLstm:
      return o.in(0) * (o.size(1, 2) + kElement);
    case Op::kLinearAttention:  // the state is decayed, asked, changed and asked again
      return (o.in(0) + 3 * o.in(2)) * std::max(o.size(1, 3), o.size(2, 3));
    case Op::kNonMaxSuppression:  // each box with all that are kept, twice
      return 2 * kElement * o.in(1) * o.size(1, 2);
    case Op::kRoiAlign: {
      const double ratio = static_cast<double>(a.get_or(key::kSamplingRatio, 0));
      return kElement * o.out() * (ratio > 0 ? ratio * ratio : o.plane(0));
    }
    case Op::kMaxRoiPool:
      return kElement * o.out() * o.plane(0);
    case Op::kGridSample:
      return kSampled * o.out();
    case Op::kTreeEnsemble:  // rows, of which each walks through trees
      return o.size(0, 0) * o.size(2, 0) * std::min(o.in(1), 64.0) + o.all_in();
    case Op::kDft:
      return transform_work(o);
    case Op::kDet:
      return o.in(0) * o.size(0, -1);
    case Op::kTopK:
    case Op::kUnique:
    case Op::kLookup:
      return kSorted * o.all_in();
    case Op::kResize:
      return resize_work(call, o);
    case Op::kRandom:
      return kRandom * o.all_out();
    case Op::kGather:
    case Op::kGatherElements:
    case Op::kGatherND:
    case Op::kSlice:
    case Op::kDims:
      return kElement * o.all_out();  // of what they read from, that alone
    default:
      return kElement * (o.all_in() + o.all_out());
  }
}

double work_of(const Graph& graph, const Node& node, const Attributes& attributes,
               const std::function<int64_t(const Expr&)>& size) {
  const auto views = [&](const std::vector<ValueId>& ids) {
    std::vector<TensorView> all(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      TensorView& v = all[i];
      if (ids[i] == kNoValue) continue;
      const Value& value = graph.value(ids[i]);
      if (!value.shape || value.shape->size() > v.dims.size()) continue;
      v.dtype = value.dtype;
      for (const Expr& e : *value.shape) v.dims[v.rank++] = size(e);
    }
    return all;
  };
  std::vector<TensorView> inputs = views(node.inputs), outputs = views(node.outputs);
  return work_of(KernelCall{node.op, &attributes, inputs, outputs});
}

}  // namespace ark
