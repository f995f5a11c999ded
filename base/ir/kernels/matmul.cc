// numpy's matmul with transposes; f32 storage types accumulate in f32 along ascending k.
#include "base/ir/kernels/matmul.h"

#include <algorithm>
#include <utility>

#include "base/ir/einsum.h"
#include "base/ir/kernels/common.h"
#include "base/ir/keys.h"

namespace ark::kernels {

Product product_of(const KernelCall& call) {
  TensorView a = call.inputs[0], b = call.inputs[1];
  Product p{};
  if (a.rank == 0 || b.rank == 0) misfit("MatMul of a scalar");
  p.a_vector = a.rank == 1;
  p.b_vector = b.rank == 1;
  const auto ar = static_cast<std::size_t>(a.rank), br = static_cast<std::size_t>(b.rank);
  const bool ta = call.attributes->get_or(key::kTransA, 0) != 0 && !p.a_vector,
             tb = call.attributes->get_or(key::kTransB, 0) != 0 && !p.b_vector;
  p.m = p.a_vector ? 1 : a.dims[ar - (ta ? 1 : 2)];
  p.k = a.dims[ar - (ta ? 2 : 1)];
  p.n = p.b_vector ? 1 : b.dims[br - (tb ? 2 : 1)];
  const int64_t bk = p.b_vector ? b.dims[0] : b.dims[br - (tb ? 1 : 2)];
  if (p.k != bk) misfit("MatMul of " + dims_text(a.shape()) + " and " + dims_text(b.shape()));
  p.a_row = ta ? 1 : p.k;
  p.a_column = ta ? p.m : 1;
  p.b_row = tb ? 1 : p.n;
  p.b_column = tb ? p.k : 1;
  const auto batch_view = [](TensorView v, std::size_t rank) {
    v.rank = static_cast<int>(rank < 2 ? 0 : rank - 2);
    return v;
  };
  const TensorView ab = batch_view(a, ar), bb = batch_view(b, br);
  p.batch = broadcast(ab.shape(), bb.shape());
  p.a_strides = broadcast_strides(ab, p.batch);
  p.b_strides = broadcast_strides(bb, p.batch);
  for (int64_t& stride : p.a_strides) stride *= p.m * p.k;  // a batch step passes a whole matrix
  for (int64_t& stride : p.b_strides) stride *= p.k * p.n;
  return p;
}

namespace {

constexpr int64_t kRowsPerTile = 16, kColumnsPerTile = 256;

int64_t row_tiles(const Product& p) { return (p.m + kRowsPerTile - 1) / kRowsPerTile; }
int64_t column_tiles(const Product& p) { return (p.n + kColumnsPerTile - 1) / kColumnsPerTile; }
int64_t matmul_grid(const KernelCall& call) {
  const Product p = product_of(call);
  return product(p.batch) * row_tiles(p) * column_tiles(p);
}

// One row of a times columns [n0, n0 + width) of b into sum.
template <typename C>
void row_times_columns(const TensorView& b, const C* row, int64_t b_base, const Product& p, int64_t n0,
                       int64_t width, C* scratch, C* sum) {
  std::fill(sum, sum + width, C{});
  if (p.b_column == 1) {
    for (int64_t k = 0; k < p.k; ++k) {
      const C* values = scratch;
      if (std::is_same_v<C, float> && b.dtype == DType::kF32)
        values = reinterpret_cast<const C*>(b.as<float>() + b_base + k * p.b_row + n0);
      else
        load(b, b_base + k * p.b_row + n0, width, scratch);
      const C x = row[k];
      for (int64_t j = 0; j < width; ++j) sum[j] += x * values[j];
    }
    return;
  }
  for (int64_t j = 0; j < width; ++j) {  // b is stored transposed: dot products over contiguous k, 16 lanes
    const C* values = scratch;
    if (std::is_same_v<C, float> && b.dtype == DType::kF32)
      values = reinterpret_cast<const C*>(b.as<float>() + b_base + (n0 + j) * p.b_column);
    else
      load(b, b_base + (n0 + j) * p.b_column, p.k, scratch);
    C lanes[16]{};
    int64_t k = 0;
    for (; k + 16 <= p.k; k += 16)
      for (int64_t l = 0; l < 16; ++l) lanes[l] += row[k + l] * values[k + l];
    C total{};
    for (; k < p.k; ++k) total += row[k] * values[k];
    for (const C lane : lanes) total += lane;
    sum[j] = total;
  }
}

void matmul_tile(const KernelCall& call, int64_t tile) {
  const TensorView &a = call.inputs[0], &b = call.inputs[1], &y = call.outputs[0];
  const Product p = product_of(call);
  const int64_t columns = column_tiles(p), rows = row_tiles(p);
  const int64_t n0 = tile % columns * kColumnsPerTile, m0 = tile / columns % rows * kRowsPerTile,
                batch = tile / columns / rows;
  const int64_t width = std::min(kColumnsPerTile, p.n - n0);
  const Odometer at(p.batch, {p.a_strides, p.b_strides}, batch);
  with_compute_type(y.dtype, [&](auto type) {
    using C = decltype(type);
    std::vector<C> row(static_cast<std::size_t>(p.k)),
        scratch(static_cast<std::size_t>(std::max(p.k, kColumnsPerTile)));
    C sum[kColumnsPerTile];
    for (int64_t m = m0; m < std::min(p.m, m0 + kRowsPerTile); ++m) {
      const int64_t a_base = at.offset(0) + m * p.a_row;
      if (p.a_column == 1)
        load(a, a_base, p.k, row.data());
      else
        for (int64_t k = 0; k < p.k; ++k) row[k] = load_one<C>(a, a_base + k * p.a_column);
      row_times_columns<C>(b, row.data(), at.offset(1), p, n0, width, scratch.data(), sum);
      store(y, (batch * p.m + m) * p.n + n0, width, sum);
    }
  });
}

// Inputs of Op::kExpertMatMul by position; matrices from kFirst on.
enum ExpertInput : std::size_t { kX, kExperts, kShares, kFirst };

int64_t expert_grid(const KernelCall& call) {
  const TensorView& experts = call.inputs[kExperts];
  return product(experts.shape().first(static_cast<std::size_t>(experts.rank - 1)));
}

// One row of experts.
void expert_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[kX], &experts = call.inputs[kExperts], &y = call.outputs[0];
  const int64_t width = experts.dims[experts.rank - 1], k = x.dims[x.rank - 1], n = y.dims[y.rank - 1];
  const bool is_one_row = x.rank == experts.rank, is_summed = has_input(call, kShares);
  const auto count = static_cast<int64_t>(call.inputs.size() - kFirst);
  std::vector<std::pair<int64_t, int64_t>> order;  // (expert, place)
  for (int64_t j = 0; j < width; ++j) order.emplace_back(load_one<int64_t>(experts, tile * width + j), j);
  if (is_summed) std::sort(order.begin(), order.end());
  with_compute_type(y.dtype, [&](auto type) {
    using C = decltype(type);
    Product p{.k = k, .b_row = 1, .b_column = k};
    std::vector<C> row(static_cast<std::size_t>(k)), scratch(row.size()), sum(static_cast<std::size_t>(n)),
        all(sum.size());
    for (const auto& [expert, j] : order) {
      std::fill(sum.begin(), sum.end(), C{});
      load(x, (is_one_row ? tile : tile * width + j) * k, k, row.data());
      if (expert >= 0 && expert < count)
        row_times_columns<C>(call.inputs[kFirst + static_cast<std::size_t>(expert)], row.data(), 0, p, 0, n,
                             scratch.data(), sum.data());
      if (!is_summed) {
        store(y, (tile * width + j) * n, n, sum.data());
        continue;
      }
      const C share = load_one<C>(call.inputs[kShares], tile * width + j);
      for (int64_t i = 0; i < n; ++i) all[i] += share * sum[i];
    }
    if (is_summed) store(y, tile * n, n, all.data());
  });
}

// Einsum by the definition: loops over all labels, summing what is not in the output.
struct Einsum {
  std::vector<std::string> terms;
  std::size_t kept;    // labels of the output
  std::string labels;  // output's first, then the summed ones
  Dims sizes;          // per label
};
Einsum parse_einsum(const KernelCall& call) {
  std::vector<int64_t> ranks;
  for (const TensorView& in : call.inputs) ranks.push_back(in.rank);
  EinsumLabels read = einsum_labels(call.attributes->get(key::kEquation), ranks);
  Einsum e{std::move(read.operands), read.result.size(), std::move(read.result), {}};
  for (const std::string& t : e.terms)
    for (char c : t)
      if (e.labels.find(c) == std::string::npos) e.labels += c;
  e.sizes.assign(e.labels.size(), 1);
  for (std::size_t k = 0; k < e.terms.size(); ++k)
    for (std::size_t i = 0; i < e.terms[k].size(); ++i) {
      int64_t& size = e.sizes[e.labels.find(e.terms[k][i])];
      const int64_t d = call.inputs[k].dims[i];
      if (size != 1 && d != 1 && size != d) misfit("Einsum: sizes of one label differ");
      if (d != 1) size = d;
    }
  if (e.labels.size() > 8) misfit("Einsum with more than 8 labels");
  return e;
}
constexpr int64_t kEinsumOutputs = 256;  // of one tile

int64_t einsum_grid(const KernelCall& call) {
  return (call.outputs[0].size() + kEinsumOutputs - 1) / kEinsumOutputs;
}

void einsum_tile(const KernelCall& call, int64_t tile) {
  const Einsum e = parse_einsum(call);
  const TensorView& y = call.outputs[0];
  std::vector<Index> strides;
  for (std::size_t k = 0; k < e.terms.size(); ++k) {
    const Index own = strides_of(call.inputs[k].shape());
    Index s{};
    for (std::size_t i = 0; i < e.terms[k].size(); ++i)
      if (call.inputs[k].dims[i] != 1) s[e.labels.find(e.terms[k][i])] += own[i];
    strides.push_back(s);
  }
  const Dims summed(e.sizes.begin() + static_cast<std::ptrdiff_t>(e.kept), e.sizes.end());
  const int64_t count = product(summed), begin = tile * kEinsumOutputs,
                end = std::min(y.size(), begin + kEinsumOutputs);
  if (begin >= end) return;
  // The last summed label by itself: two operands of f32, as most are, walk along it by pointers.
  const auto is_f32 = [](const TensorView& x) { return x.dtype == DType::kF32; };
  const bool walks =
      count > 0 && !summed.empty() && e.terms.size() == 2 && std::ranges::all_of(call.inputs, is_f32);
  with_compute_type(y.dtype, [&](auto type) {
    using C = decltype(type);
    const int64_t run = walks ? summed.back() : 1;
    Odometer at(walks ? std::span(e.sizes).first(e.sizes.size() - 1) : std::span(e.sizes), strides,
                begin * (count / run));
    for (int64_t i = begin; i < end; ++i) {
      C sum{};
      for (int64_t j = 0; j < count; j += run, at.next()) {
        if (walks) {
          const std::size_t last = e.sizes.size() - 1;
          const float *a = call.inputs[0].as<float>() + at.offset(0),
                      *b = call.inputs[1].as<float>() + at.offset(1);
          for (int64_t t = 0; t < run; ++t)
            sum += static_cast<C>(a[t * strides[0][last]] * b[t * strides[1][last]]);
          continue;
        }
        C term{1};
        for (std::size_t k = 0; k < e.terms.size(); ++k) term *= load_one<C>(call.inputs[k], at.offset(k));
        sum += term;
      }
      store_one<C>(y, i, sum);
    }
  });
}

}  // namespace

void register_matmul(std::vector<Kernel>& into) {
  into.push_back({Op::kMatMul, by_rule, matmul_grid, matmul_tile});
  into.push_back({Op::kExpertMatMul, by_rule, expert_grid, expert_tile});
  into.push_back({Op::kEinsum, by_rule, einsum_grid, einsum_tile});
}

}  // namespace ark::kernels
