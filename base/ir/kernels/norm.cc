// Normalizations; statistics in double, one row (or group) a task.
#include <cmath>

#include "base/ir/kernels/common.h"
#include "base/ir/keys.h"

namespace ark::kernels {
namespace {

std::size_t norm_begin(const KernelCall& call) {
  return static_cast<std::size_t>(norm_axis(call.attributes->get_or(key::kAxis, -1), call.inputs[0].rank));
}
int64_t row_grid(const KernelCall& call) { return product(call.inputs[0].shape().first(norm_begin(call))); }

// The scale or bias of a normalized row, one element for each of it: broadcasts over the normalized axes, further ones
// in front are ones.
std::vector<double> row_factors(const KernelCall& call, std::size_t input, double fallback) {
  const auto dims = call.inputs[0].shape().subspan(norm_begin(call));
  std::vector<double> out(product(dims), fallback);
  if (!has_input(call, input)) return out;
  TensorView s = call.inputs[input];
  while (s.rank > static_cast<int>(dims.size()) && s.dims[0] == 1) {
    std::copy(s.dims.begin() + 1, s.dims.end(), s.dims.begin());
    --s.rank;
  }
  check_broadcasts(s, dims, "scale or bias");
  load_broadcast(s, dims, broadcast_strides(s, dims), 0, static_cast<int64_t>(out.size()), out.data());
  return out;
}

// Takes the mean away, if asked to. It, and the inverse of the deviation.
std::pair<double, double> centred(std::vector<double>& row, const KernelCall& call, bool has_mean) {
  const auto n = static_cast<double>(row.size());
  double mean = 0, square = 0;
  for (double v : row) mean += has_mean ? v : 0;
  mean /= n;
  for (double& v : row) v -= mean, square += v * v;
  return {mean, 1 / std::sqrt(square / n + call.attributes->get_or(key::kEpsilon, 1e-5))};
}

void row_norm_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const std::size_t axis = norm_begin(call);
  const bool rms = call.op == Op::kRmsNorm;
  const int64_t n = product(x.shape().subspan(axis));
  std::vector<double> row(static_cast<std::size_t>(n));
  load(x, tile * n, n, row.data());
  const auto [mean, inverse] = centred(row, call, !rms);
  const std::vector<double> scale = row_factors(call, 1, 1), bias = row_factors(call, 2, 0);
  for (std::size_t j = 0; j < row.size(); ++j) row[j] = row[j] * inverse * scale[j] + bias[j];
  store(y, tile * n, n, row.data());
  if (call.outputs.size() > 1 && call.outputs[1].present()) store_one(call.outputs[1], tile, mean);
  if (call.outputs.size() > 2 && call.outputs[2].present()) store_one(call.outputs[2], tile, inverse);
}

int64_t groups_of(const KernelCall& call) {
  return call.attributes->get_or(key::kGroups, call.inputs[0].dims[1]);
}
int64_t group_grid(const KernelCall& call) { return call.inputs[0].dims[0] * groups_of(call); }
// Each of these operands, if it is there, has one element a channel.
void check_channels(const KernelCall& call, std::initializer_list<std::size_t> operands) {
  const TensorView& x = call.inputs[0];
  const int64_t channels = x.rank > 1 ? x.dims[1] : 1;
  for (const std::size_t i : operands)
    if (has_input(call, i) && call.inputs[i].size() != channels)
      misfit("a norm of " + std::to_string(channels) + " channels with an operand " +
             dims_text(call.inputs[i].shape()));
}
void group_norm_tile(const KernelCall& call, int64_t tile) {
  check_channels(call, {1, 2});
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const int64_t groups = groups_of(call), per_group = x.dims[1] / groups;
  const int64_t space = product(x.shape().subspan(2)), n = per_group * space;
  std::vector<double> row(static_cast<std::size_t>(n));
  load(x, tile * n, n, row.data());
  const double inverse = centred(row, call, true).second;
  for (int64_t j = 0; j < n; ++j) {
    const int64_t channel = tile % groups * per_group + j / space;
    const double scale = has_input(call, 1) ? load_one<double>(call.inputs[1], channel) : 1;
    const double bias = has_input(call, 2) ? load_one<double>(call.inputs[2], channel) : 0;
    row[j] = row[j] * inverse * scale + bias;
  }
  store(y, tile * n, n, row.data());
}

void batch_norm_tile(const KernelCall& call, int64_t tile) {
  check_channels(call, {1, 2, 3, 4});
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const int64_t channels = x.rank > 1 ? x.dims[1] : 1, space = x.rank > 2 ? product(x.shape().subspan(2)) : 1;
  const double epsilon = call.attributes->get_or(key::kEpsilon, 1e-5);
  const auto [begin, end] = elements_of(tile, y.size());
  for (int64_t i = begin; i < end; ++i) {
    const int64_t c = i / space % channels;
    const double scale =
        load_one<double>(call.inputs[1], c) / std::sqrt(load_one<double>(call.inputs[4], c) + epsilon);
    store_one<double>(y, i,
                      (load_one<double>(x, i) - load_one<double>(call.inputs[3], c)) * scale +
                          load_one<double>(call.inputs[2], c));
  }
}

std::vector<OutputType> lrn_shapes(const KernelCall& call) {
  if (call.inputs[0].rank < 2 || call.attributes->get(key::kSize) < 1)
    misfit("LRN wants channels and a size");
  return like_first(call);
}
void lrn_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const Attributes& a = *call.attributes;
  const int64_t size = a.get(key::kSize), channels = x.dims[1], space = product(x.shape().subspan(2));
  const double alpha = a.get_or(key::kAlpha, 1e-4), beta = a.get_or(key::kBeta, 0.75),
               bias = a.get_or(key::kBias, 1);
  const auto [begin, end] = elements_of(tile, y.size());
  for (int64_t i = begin; i < end; ++i) {
    const int64_t c = i / space % channels;
    double sum = 0;
    for (int64_t k = std::max<int64_t>(0, c - (size - 1) / 2); k <= std::min(channels - 1, c + size / 2);
         ++k) {
      const double v = load_one<double>(x, i + (k - c) * space);
      sum += v * v;
    }
    store_one<double>(
        y, i, load_one<double>(x, i) / std::pow(bias + alpha / static_cast<double>(size) * sum, beta));
  }
}

}  // namespace

void register_norm(std::vector<Kernel>& into) {
  into.push_back({Op::kLayerNorm, by_rule, row_grid, row_norm_tile});
  into.push_back({Op::kRmsNorm, by_rule, row_grid, row_norm_tile});
  into.push_back({Op::kGroupNorm, by_rule, group_grid, group_norm_tile});
  into.push_back({Op::kBatchNorm, by_rule, grid_by_elements, batch_norm_tile});
  into.push_back({Op::kLrn, lrn_shapes, grid_by_elements, lrn_tile});
}

}  // namespace ark::kernels
