#include "tests/importer/decoder/token_interpreter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/ir/keys.h"
#include "importer/fold.h"

namespace ark::test {
namespace {

Tensor like(const Tensor& t) { return Tensor::zeros(DType::kF32, t.dims); }

// Calls f(first element, count, stride) for each run along `axis`.
template <typename F>
void for_rows(const Dims& dims, std::size_t axis, F&& f) {
  int64_t outer = 1, inner = 1;
  for (std::size_t i = 0; i < dims.size(); ++i) (i < axis ? outer : inner) *= i == axis ? 1 : dims[i];
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t i = 0; i < inner; ++i) f(o * dims[axis] * inner + i, dims[axis], inner);
}

Tensor softmax(const Tensor& x, std::size_t axis, bool logarithm) {
  Tensor y = like(x);
  for_rows(x.dims, axis, [&](int64_t first, int64_t n, int64_t stride) {
    double top = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t i = 0; i < n; ++i) top = std::max(top, x.real(first + i * stride));
    for (int64_t i = 0; i < n; ++i) sum += std::exp(x.real(first + i * stride) - top);
    for (int64_t i = 0; i < n; ++i) {
      const double log = x.real(first + i * stride) - top - std::log(sum);
      y.as<float>()[first + i * stride] = static_cast<float>(logarithm ? log : std::exp(log));
    }
  });
  return y;
}

Tensor normalize(const Node& node, const std::vector<Tensor>& in) {
  const Tensor& x = in[0];
  const auto axis = static_cast<std::size_t>(node.attributes.get(key::kAxis));
  const int64_t n = std::accumulate(x.dims.begin() + static_cast<std::ptrdiff_t>(axis), x.dims.end(),
                                    int64_t{1}, std::multiplies<>());
  const double epsilon = node.attributes.get(key::kEpsilon);
  const auto parameter = [&](std::size_t i, int64_t at, double fallback) {
    return i < in.size() && in[i].dtype != DType::kUndefined ? in[i].real(at % in[i].size()) : fallback;
  };
  Tensor y = like(x);
  for (int64_t first = 0; first < x.size(); first += n) {
    double mean = 0, square = 0;
    for (int64_t i = 0; i < n && node.op == Op::kLayerNorm; ++i)
      mean += x.real(first + i) / static_cast<double>(n);
    for (int64_t i = 0; i < n; ++i) square += std::pow(x.real(first + i) - mean, 2) / static_cast<double>(n);
    for (int64_t i = 0; i < n; ++i)
      y.as<float>()[first + i] = static_cast<float>(
          (x.real(first + i) - mean) / std::sqrt(square + epsilon) * parameter(1, i, 1) + parameter(2, i, 0));
  }
  return y;
}

// (x [T, H, D], cos [L, R/2], sin [L, R/2], positions [T])
Tensor rotary(const Node& node, const std::vector<Tensor>& in) {
  const Tensor& x = in[0];
  const int64_t heads = x.dims[1], dim = x.dims[2], half = node.attributes.get(key::kRotaryDim) / 2;
  const bool interleaved = node.attributes.get(key::kInterleaved);
  Tensor y = like(x);
  for (int64_t r = 0; r < x.dims[0] * heads; ++r) {
    const int64_t position = in[3].integer(r / heads);
    for (int64_t d = 0; d < dim; ++d) y.as<float>()[r * dim + d] = static_cast<float>(x.real(r * dim + d));
    for (int64_t i = 0; i < half; ++i) {
      const int64_t a = r * dim + (interleaved ? 2 * i : i),
                    b = r * dim + (interleaved ? 2 * i + 1 : i + half);
      const double c = in[1].real(position * half + i), s = in[2].real(position * half + i);
      y.as<float>()[a] = static_cast<float>(x.real(a) * c - x.real(b) * s);
      y.as<float>()[b] = static_cast<float>(x.real(b) * c + x.real(a) * s);
    }
  }
  return y;
}

// (q [T, H, D], k [T, KH, D], v [T, KH, Dv], slopes [H]?)
Tensor attention(const Node& node, const std::vector<Tensor>& in) {
  const Tensor &q = in[0], &k = in[1], &v = in[2];
  const int64_t tokens = q.dims[0], heads = q.dims[1], dim = q.dims[2], keys = k.dims[1], width = v.dims[2];
  const double scale = node.attributes.get(key::kScale), cap = node.attributes.get(key::kSoftcap);
  const int64_t window = node.attributes.get(key::kWindow);
  Tensor y = Tensor::zeros(DType::kF32, {tokens, heads, width});
  for (int64_t i = 0; i < tokens; ++i)
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t g = h / (heads / keys), first = window ? std::max<int64_t>(0, i - window + 1) : 0;
      Tensor scores = Tensor::zeros(DType::kF32, {i - first + 1});
      for (int64_t j = first; j <= i; ++j) {
        double s = 0;
        for (int64_t d = 0; d < dim; ++d)
          s += q.real((i * heads + h) * dim + d) * k.real((j * keys + g) * dim + d);
        s *= scale;
        if (cap != 0) s = cap * std::tanh(s / cap);
        if (in.size() > 3 && in[3].dtype != DType::kUndefined)
          s += in[3].real(h) * static_cast<double>(j - i);
        scores.as<float>()[j - first] = static_cast<float>(s);
      }
      const Tensor p = softmax(scores, 0, false);
      for (int64_t d = 0; d < width; ++d) {
        double sum = 0;
        for (int64_t j = first; j <= i; ++j) sum += p.real(j - first) * v.real((j * keys + g) * width + d);
        y.as<float>()[(i * heads + h) * width + d] = static_cast<float>(sum);
      }
    }
  return y;
}

Node concrete(const Node& node, int64_t tokens) {
  Node result = node;
  result.attributes.change_sizes([&](const Expr& e) {
    return Expr(e.evaluate({{"tokens", tokens}, {"rows", tokens}}));
  });
  return result;
}

// numpy's matmul with broadcasting and optional transposes.
Tensor matmul(const Node& node, const std::vector<Tensor>& in) {
  const Tensor &a = in[0], &b = in[1];
  const bool ta = node.attributes.get_or(key::kTransA, 0), tb = node.attributes.get_or(key::kTransB, 0);
  const std::size_t ra = a.dims.size(), rb = b.dims.size(), rank = std::max(ra, rb);
  const int64_t m = a.dims[ra - (ta ? 1 : 2)], k = a.dims[ra - (ta ? 2 : 1)], n = b.dims[rb - (tb ? 2 : 1)];
  Dims dims(rank);
  const auto dim = [&](const Tensor& t, std::size_t i) {
    return i + t.dims.size() < rank ? 1 : t.dims[i + t.dims.size() - rank];
  };
  for (std::size_t i = 0; i + 2 < rank; ++i) dims[i] = std::max(dim(a, i), dim(b, i));
  dims[rank - 2] = m, dims[rank - 1] = n;
  Tensor y = Tensor::zeros(DType::kF32, dims);
  const auto matrix = [&](const Tensor& t, int64_t at) {  // of the batch `at` of y, in t
    int64_t result = 0, stride = 1;
    for (std::size_t i = rank - 2; i-- > 0;) {
      result += dim(t, i) == 1 ? 0 : at % dims[i] * stride;
      at /= dims[i];
      stride *= dim(t, i);
    }
    return result;
  };
  for (int64_t at = 0; at < y.size() / (m * n); ++at)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t c = 0; c < k; ++c)
          sum += a.real(matrix(a, at) * m * k + (ta ? c * m + i : i * k + c)) *
                 b.real(matrix(b, at) * k * n + (tb ? j * k + c : c * n + j));
        y.as<float>()[(at * m + i) * n + j] = static_cast<float>(sum);
      }
  return y;
}

// The largest of the last axis, the first among equals.
std::vector<Tensor> top_k(const Node& node, const Tensor& x) {
  const int64_t n = x.dims.back(), k = *node.attributes.get(key::kTopK)[0].constant();
  Dims dims = x.dims;
  dims.back() = k;
  std::vector<Tensor> best{Tensor::empty(DType::kF32, dims), Tensor::empty(DType::kI64, dims)};
  for (int64_t row = 0; row < x.size() / n; ++row) {
    std::vector<int64_t> order(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return x.real(row * n + a) > x.real(row * n + b); });
    for (int64_t i = 0; i < k; ++i) {
      best[0].as<float>()[row * k + i] = static_cast<float>(x.real(row * n + order[i]));
      best[1].as<int64_t>()[row * k + i] = order[i];
    }
  }
  return best;
}

Tensor expert_matmul(const std::vector<Tensor>& in) {
  const Tensor &x = in[0], &experts = in[1], &shares = in[2];
  const int64_t tokens = experts.dims[0], slots = experts.dims[1], k = x.dims.back(), n = in[3].dims[0];
  const bool sums = shares.dtype != DType::kUndefined;
  Tensor y = Tensor::zeros(DType::kF32, sums ? Dims{tokens, n} : Dims{tokens, slots, n});
  for (int64_t at = 0; at < tokens * slots; ++at) {
    const Tensor& w = in[3 + static_cast<std::size_t>(experts.integer(at))];
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i)
        sum += x.real((x.dims.size() == 2 ? at / slots : at) * k + i) * w.real(j * k + i);
      y.as<float>()[(sums ? at / slots : at) * n + j] +=
          static_cast<float>(sums ? shares.real(at) * sum : sum);
    }
  }
  return y;
}

std::vector<Tensor> run(const Graph& graph, const Node& node, const std::vector<Tensor>& in, int64_t tokens) {
  switch (node.op) {
    case Op::kSelectRows:
      return {in[0]};
    case Op::kMatMul:
      return {matmul(node, in)};
    case Op::kExpertMatMul:
      return {expert_matmul(in)};
    case Op::kTopK:
      return top_k(node, in[0]);
    case Op::kPagedAttention:
      return {attention(node, in)};
    case Op::kRotary:
      return {rotary(node, in)};
    case Op::kLayerNorm:
    case Op::kRmsNorm:
      return {normalize(node, in)};
    case Op::kSoftmax:
    case Op::kLogSoftmax:
      return {softmax(in[0], static_cast<std::size_t>(node.attributes.get(key::kAxis)),
                      node.op == Op::kLogSoftmax)};
    default:
      break;
  }
  std::vector<DType> types;
  for (const ValueId id : node.outputs) types.push_back(id == kNoValue ? DType::kF32 : graph.value(id).dtype);
  auto results = evaluate(concrete(node, tokens), in, types);
  if (!results)
    throw Error(Code::kUnsupported, "the token interpreter cannot run " + std::string(name_of(node.op)));
  return std::move(*results);
}

}  // namespace

Tensor run_tokens(const DecoderModel& model, std::span<const int64_t> ids) {
  const Graph& graph = model.tokens;
  const auto tokens = static_cast<int64_t>(ids.size());
  std::map<ValueId, Tensor> values;
  Tensor token_ids = Tensor::empty(DType::kI32, {tokens}), positions = Tensor::empty(DType::kI32, {tokens});
  for (int64_t i = 0; i < tokens; ++i) {
    token_ids.as<int32_t>()[i] = static_cast<int32_t>(ids[i]);
    positions.as<int32_t>()[i] = static_cast<int32_t>(i);
  }
  values[graph.inputs.at(0)] = token_ids;
  values[graph.inputs.at(1)] = positions;
  for (const Node& node : graph.nodes) {
    if (node.removed) continue;
    std::vector<Tensor> in;
    for (const ValueId id : node.inputs) {
      if (id != kNoValue && graph.value(id).constant && !values.count(id))
        values[id] = materialise(*graph.value(id).constant);
      in.push_back(id == kNoValue ? Tensor{} : values.at(id));
    }
    const auto results = run(graph, node, in, tokens);
    for (std::size_t i = 0; i < node.outputs.size(); ++i)
      if (node.outputs[i] != kNoValue) values[node.outputs[i]] = results[i];
  }
  return values.at(graph.outputs.at(0));
}

}  // namespace ark::test
