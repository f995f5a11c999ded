// Operators that move elements without looking at them.
#include <numeric>
#include <utility>

#include "base/ir/kernels/common.h"
#include "base/ir/keys.h"

namespace ark::kernels {
namespace {

constexpr int64_t kMostSize = int64_t{1} << 40;  // of one axis: sums and products of two stay in range

// The output's axes as far as strides tell them apart: none of one element, and none that go on as the one before.
struct Axes {
  Dims dims;
  Index strides{};
  Axes(std::span<const int64_t> all, const Index& given) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i] == 1) continue;
      const std::size_t n = dims.size();
      if (n && strides[n - 1] == given[i] * all[i]) {
        dims[n - 1] *= all[i], strides[n - 1] = given[i];
      } else {
        strides[n] = given[i];
        dims.push_back(all[i]);
      }
    }
    if (dims.empty()) dims.push_back(1);
  }
};

// Rows of the output whose elements lie side by side in x, and share its cache lines; no more than a set of the
// first-level cache has lines, which rows of 4 KiB all ask for.
constexpr int64_t kTurned = 8;

// Copies output elements [begin, end) from `base` elements into x plus strides (may be negative or 0).
void strided_copy(const TensorView& x, const TensorView& y, const Index& strides, int64_t base,
                  Span64 range) {
  if (range.begin >= range.end) return;
  const Axes axes(y.shape(), strides);
  const std::size_t last = axes.dims.size() - 1;
  const int64_t length = axes.dims[last], step = axes.strides[last];
  with_bytes(element_bytes(y), [&](auto type) {
    using T = decltype(type);
    const T* const from = x.as<T>() + base;
    T* const to = y.as<T>();
    Odometer row(std::span(axes.dims).first(last), {axes.strides}, range.begin / length);
    for (int64_t i = range.begin; i < range.end;) {
      const int64_t within = i % length, run = std::min(range.end - i, length - within);
      const T* source = from + row.offset(0) + within * step;
      int64_t rows = 1;
      if (step == 1) {
        std::memcpy(to + i, source, static_cast<std::size_t>(run) * sizeof(T));
      } else if (last && axes.strides[last - 1] == 1 && run == length) {
        rows = std::min({kTurned, axes.dims[last - 1] - row.index()[last - 1], (range.end - i) / length});
        const auto turn = [&](int64_t count) {
          for (int64_t j = 0; j < length; ++j)
            for (int64_t r = 0; r < count; ++r) to[i + r * length + j] = source[j * step + r];
        };
        rows == kTurned ? turn(kTurned) : turn(rows);
      } else {
        for (int64_t j = 0; j < run; ++j) to[i + j] = source[j * step];
      }
      i += rows * run;
      for (; rows > 0; --rows) row.next();
    }
  });
}

std::vector<OutputType> reshape_shapes(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  Dims dims = ints(call, key::kShape, 1);
  if (!call.attributes->has(key::kShape)) {  // ONNX's own 0 and -1
    for (std::size_t i = 0; i < dims.size(); ++i)
      if (dims[i] == 0 && !call.attributes->get_or(key::kAllowzero, 0)) {
        if (static_cast<int>(i) >= x.rank)
          misfit("Reshape keeps an axis that " + dims_text(x.shape()) + " does not have");
        dims[i] = x.dims[i];
      }
    if (const auto wild = std::find(dims.begin(), dims.end(), -1); wild != dims.end()) {
      *wild = 1;
      const int64_t rest = product(dims);
      if (rest == 0 || x.size() % rest) misfit("Reshape of " + dims_text(x.shape()) + " cannot resolve -1");
      *wild = x.size() / rest;
    }
  }
  if (product(dims) != x.size()) misfit("Reshape of " + dims_text(x.shape()) + " to " + dims_text(dims));
  return {{x.dtype, dims}};
}
void copy_tile(const KernelCall& call, int64_t tile) {
  const auto [begin, end] = elements_of(tile, call.outputs[0].size());
  const int64_t first = bytes_of(call.outputs[0].dtype, begin), last = bytes_of(call.outputs[0].dtype, end);
  if (last > first)
    std::memcpy(call.outputs[0].data + first, call.inputs[0].data + first,
                static_cast<std::size_t>(last - first));
}

void transpose_tile(const KernelCall& call, int64_t tile) {
  const Index own = strides_of(call.inputs[0].shape());
  const auto& perm = call.attributes->get(key::kPerm);
  Index strides{};
  for (std::size_t i = 0; i < perm.size(); ++i) strides[i] = own[perm[i]];
  strided_copy(call.inputs[0], call.outputs[0], strides, 0, elements_of(tile, call.outputs[0].size()));
}

std::vector<OutputType> expand_shapes(const KernelCall& call) {
  return {{call.inputs[0].dtype, broadcast(call.inputs[0].shape(), ints(call, key::kShape, 1))}};
}
void expand_tile(const KernelCall& call, int64_t tile) {
  strided_copy(call.inputs[0], call.outputs[0], broadcast_strides(call.inputs[0], call.outputs[0].shape()), 0,
               elements_of(tile, call.outputs[0].size()));
}

// Start and step of every axis of x, with ONNX's clamping.
struct Slices {
  Index start{}, step{};
  Dims dims;
};
Slices slices_of(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const Dims starts = ints(call, key::kStarts, 1), ends = ints(call, key::kEnds, 2);
  Dims every(starts.size());
  std::iota(every.begin(), every.end(), 0);
  const Dims axes = ints_operand(call, key::kAxes, 3).value_or(every);
  const Dims steps = ints_operand(call, key::kSteps, 4).value_or(Dims(starts.size(), 1));
  const bool folded = call.attributes->has(key::kStarts);
  Slices s;
  uint64_t seen = 0;  // axes
  s.dims = dims_of(x);
  s.step.fill(1);
  if (ends.size() != starts.size() || axes.size() != starts.size() || steps.size() != starts.size())
    misfit("Slice with bounds of different counts");
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const std::size_t axis = own_axis(axes[i], x);
    if (std::exchange(seen, seen | uint64_t{1} << axis) >> axis & 1) misfit("Slice with an axis twice");
    const int64_t n = x.dims[axis], step = std::clamp(steps[i], -n - 1, n + 1);  // a longer one takes no more
    if (step == 0) misfit("Slice with step 0");
    const auto clamp = [&](int64_t v, int64_t low, int64_t high) {
      if (!folded && v < 0) v = v < -n ? low : v + n;
      return std::clamp(v, low, high);
    };
    const int64_t begin = clamp(starts[i], 0, step > 0 ? n : std::max<int64_t>(n - 1, 0));
    const int64_t end = step > 0 ? clamp(ends[i], 0, n) : clamp(ends[i], -1, n - 1);
    s.start[axis] = begin;
    s.step[axis] = step;
    const int64_t length = step > 0 ? end - begin : begin - end, stride = std::abs(step);
    s.dims[axis] = n == 0 ? 0 : std::max<int64_t>(0, (length + stride - 1) / stride);
  }
  return s;
}
std::vector<OutputType> slice_shapes(const KernelCall& call) {
  return {{call.inputs[0].dtype, slices_of(call).dims}};
}
void slice_tile(const KernelCall& call, int64_t tile) {
  const Slices s = slices_of(call);
  const Index own = strides_of(call.inputs[0].shape());
  Index strides{};
  int64_t base = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(call.inputs[0].rank); ++i) {
    strides[i] = own[i] * s.step[i];
    base += own[i] * s.start[i];
  }
  strided_copy(call.inputs[0], call.outputs[0], strides, base, elements_of(tile, call.outputs[0].size()));
}

// One input (Concat) or output (Split) a tile: blocks [outer][its part of the axis * inner].
void concat_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[tile], &y = call.outputs[0];
  const auto axis = static_cast<std::size_t>(norm_axis(call.attributes->get(key::kAxis), y.rank));
  const int64_t size = element_bytes(y), inner = product(y.shape().subspan(axis + 1)) * size;
  int64_t before = 0;
  for (std::size_t k = 0; k < static_cast<std::size_t>(tile); ++k) before += call.inputs[k].dims[axis];
  const int64_t outer = product(y.shape().first(axis)), row = x.dims[axis] * inner;
  if (row == 0) return;
  for (int64_t o = 0; o < outer; ++o)
    std::memcpy(y.data + (o * y.dims[axis] + before) * inner, x.data + o * row,
                static_cast<std::size_t>(row));
}

// Part sizes along the axis; as many as the node names outputs, used or not.
Dims split_sizes(const KernelCall& call, std::size_t axis) {
  const TensorView& x = call.inputs[0];
  const auto count = static_cast<int64_t>(call.outputs.size());
  Dims sizes;
  if (const auto given = ints_operand(call, key::kSizes, 1))
    sizes = *given;
  else
    for (int64_t left = x.dims[axis], chunk = (left + count - 1) / std::max<int64_t>(count, 1), k = 0;
         k < count; ++k, left -= sizes.back())
      sizes.push_back(std::min(left, chunk));
  const bool outside =
      std::any_of(sizes.begin(), sizes.end(), [&](int64_t n) { return n < 0 || n > x.dims[axis]; });
  if (outside || static_cast<int64_t>(sizes.size()) != count ||
      std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) != x.dims[axis])
    misfit("Split of " + dims_text(x.shape()) + " into parts " + dims_text(sizes));
  return sizes;
}
std::vector<OutputType> split_shapes(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const std::size_t axis = own_axis(call.attributes->get_or(key::kAxis, 0), x);
  std::vector<OutputType> out;
  for (int64_t s : split_sizes(call, axis)) {
    Dims dims = dims_of(x);
    dims[axis] = s;
    out.push_back({x.dtype, dims});
  }
  return out;
}
void split_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[tile];
  if (!y.present()) return;
  const std::size_t axis = own_axis(call.attributes->get_or(key::kAxis, 0), x);
  const Dims sizes = split_sizes(call, axis);
  const int64_t size = element_bytes(x), inner = product(x.shape().subspan(axis + 1)) * size;
  const int64_t before = std::accumulate(sizes.begin(), sizes.begin() + tile, int64_t{0});
  const int64_t outer = product(x.shape().first(axis)), row = y.dims[axis] * inner;
  if (row == 0) return;
  for (int64_t o = 0; o < outer; ++o)
    std::memcpy(y.data + o * row, x.data + (o * x.dims[axis] + before) * inner,
                static_cast<std::size_t>(row));
}

// Pads per axis of x: begin, end.
std::pair<Dims, Dims> pads_of(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const auto rank = static_cast<std::size_t>(x.rank);
  const Dims pads = ints(call, key::kPadding, 1);
  Dims every(rank);
  std::iota(every.begin(), every.end(), 0);
  const Dims axes = ints_operand(call, key::kAxes, 3).value_or(every);
  if (pads.size() != 2 * axes.size())
    misfit("Pad of " + dims_text(x.shape()) + " with pads " + dims_text(pads));
  Dims begin(rank, 0), end(rank, 0);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::size_t axis = own_axis(axes[i], x);
    for (const int64_t amount : {pads[i], pads[i + axes.size()]})
      if (amount < -kMostSize || amount > kMostSize) misfit("Pad by " + std::to_string(amount));
    begin[axis] = pads[i];
    end[axis] = pads[i + axes.size()];
  }
  return {begin, end};
}
std::vector<OutputType> pad_shapes(const KernelCall& call) {
  const auto [begin, end] = pads_of(call);
  Dims dims = dims_of(call.inputs[0]);
  if (has_input(call, 2)) {
    check_scalar(call, 2, "the value of Pad");
    check_same_type(call.inputs[0], call.inputs[2]);
  }
  for (std::size_t i = 0; i < dims.size(); ++i) {
    dims[i] += begin[i] + end[i];
    if (dims[i] < 0) misfit("Pad cuts away more than there is");
  }
  return {{call.inputs[0].dtype, dims}};
}
void pad_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const Dims before = pads_of(call).first;
  const std::string mode = call.attributes->get_or(key::kMode, "constant");
  const Index own = strides_of(x.shape());
  const auto [begin, end] = elements_of(tile, y.size());
  if (begin >= end) return;
  // Which element of an axis of n stands at place j of it, which may lie outside; -1: the value.
  const auto source = [&](int64_t j, int64_t n) -> int64_t {
    if (j >= 0 && j < n) return j;
    if (mode == "constant" || n == 0) return -1;
    if (mode == "edge") return std::clamp<int64_t>(j, 0, n - 1);
    if (mode == "wrap") return (j % n + n) % n;
    if (n == 1) return 0;
    const int64_t period = 2 * (n - 1), at = (j % period + period) % period;
    return at >= n ? period - at : at;
  };
  const std::size_t axes = y.shape().size(), last = axes ? axes - 1 : 0;
  const int64_t length = axes ? y.dims[last] : 1, n = axes ? x.dims[last] : 1,
                ahead = axes ? before[last] : 0;
  with_bytes(element_bytes(y), [&, begin = begin, end = end](auto type) {
    using T = decltype(type);
    const T value = has_input(call, 2) ? *call.inputs[2].as<T>() : T{};
    T* const to = y.as<T>();
    Odometer row(y.shape().first(last), {}, begin / length);
    for (int64_t i = begin; i < end; row.next()) {
      const int64_t first = i % length - ahead, run = std::min(end - i, length - i % length);  // in x's row
      int64_t base = 0;
      bool inside = true;
      for (std::size_t a = 0; a < last; ++a) {
        const int64_t j = source(row.index()[a] - before[a], x.dims[a]);
        inside = inside && j >= 0;
        base += inside ? j * own[a] : 0;
      }
      const T* const from = x.as<T>() + base;
      const auto outside = [&](int64_t j) {
        const int64_t at = inside ? source(j, n) : -1;
        to[i + j - first] = at < 0 ? value : from[at];
      };
      const int64_t low = inside ? std::clamp<int64_t>(0, first, first + run) : first + run,
                    high = inside ? std::clamp<int64_t>(n, low, first + run) : first + run;
      for (int64_t j = first; j < low; ++j) outside(j);
      if (high > low)
        std::memcpy(to + i + low - first, from + low, static_cast<std::size_t>(high - low) * sizeof(T));
      for (int64_t j = high; j < first + run; ++j) outside(j);
      i += run;
    }
  });
}

std::vector<OutputType> tile_shapes(const KernelCall& call) {
  const Dims repeats = ints(call, key::kRepeats, 1);
  Dims dims = dims_of(call.inputs[0]);
  if (repeats.size() != dims.size()) misfit("Tile of " + dims_text(dims) + " by " + dims_text(repeats));
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (repeats[i] < 0) misfit("Tile by a negative count");
    if (dims[i] && repeats[i] > kMostSize / dims[i]) misfit("Tile " + std::to_string(repeats[i]) + " times");
    dims[i] *= repeats[i];
  }
  return {{call.inputs[0].dtype, dims}};
}
void tile_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const Index own = strides_of(x.shape());
  const auto [begin, end] = elements_of(tile, y.size());
  if (begin >= end) return;
  const std::size_t axes = y.shape().size(), last = axes ? axes - 1 : 0;
  const int64_t size = element_bytes(y), length = axes ? y.dims[last] : 1, n = axes ? x.dims[last] : 1;
  Odometer row(y.shape().first(last), {}, begin / length);
  for (int64_t i = begin; i < end; row.next()) {
    int64_t base = 0;
    for (std::size_t a = 0; a < last; ++a) base += row.index()[a] % x.dims[a] * own[a];
    for (const int64_t stop = std::min(end, i - i % length + length); i < stop;) {
      const int64_t at = i % length % n, run = std::min(stop - i, n - at);
      std::memcpy(y.data + i * size, x.data + (base + at) * size, static_cast<std::size_t>(run * size));
      i += run;
    }
  }
}

// DepthToSpace and SpaceToDepth on [N, C, H, W].
void space_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const bool to_space = call.op == Op::kDepthToSpace;
  const int64_t b = call.attributes->get(key::kBlocksize);
  const bool crd = call.attributes->get_or(key::kMode, "DCR") == "CRD";
  const TensorView &deep = to_space ? x : y, &wide = to_space ? y : x;
  const int64_t channels = wide.dims[1];
  copy_elements(call, tile, {}, [&](const Odometer& at) {
    const Index& k = at.index();
    if (to_space) {
      const int64_t bh = k[2] % b, bw = k[3] % b;
      const int64_t c = crd ? (k[1] * b + bh) * b + bw : (bh * b + bw) * channels + k[1];
      return ((k[0] * deep.dims[1] + c) * deep.dims[2] + k[2] / b) * deep.dims[3] + k[3] / b;
    }
    const int64_t c = crd ? k[1] / (b * b) : k[1] % channels, block = crd ? k[1] % (b * b) : k[1] / channels,
                  bh = block / b, bw = block % b;
    return ((k[0] * channels + c) * wide.dims[2] + k[2] * b + bh) * wide.dims[3] + k[3] * b + bw;
  });
}

std::vector<OutputType> reverse_shapes(const KernelCall& call) {
  const TensorView &x = call.inputs[0], &lengths = call.inputs[1];
  const int64_t batch = call.attributes->get_or(key::kBatchAxis, 1),
                time = call.attributes->get_or(key::kTimeAxis, 0);
  if (batch < 0 || batch >= x.rank || time < 0 || time >= x.rank || lengths.size() != x.dims[batch])
    misfit("ReverseSequence of " + dims_text(x.shape()) + " by lengths " + dims_text(lengths.shape()));
  for (int64_t i = 0; i < lengths.size(); ++i)
    if (const int64_t n = load_one<int64_t>(lengths, i); n < 0 || n > x.dims[time])
      misfit("ReverseSequence of " + std::to_string(n) + " of " + std::to_string(x.dims[time]));
  return like_first(call);
}
void reverse_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &lengths = call.inputs[1];
  const int64_t batch = call.attributes->get_or(key::kBatchAxis, 1),
                time = call.attributes->get_or(key::kTimeAxis, 0);
  const Index own = strides_of(x.shape());
  copy_elements(call, tile, {own}, [&](const Odometer& at) {
    const int64_t n = load_one<int64_t>(lengths, at.index()[batch]), t = at.index()[time];
    return at.offset(0) + (t < n ? (n - 1 - 2 * t) * own[time] : 0);
  });
}

int64_t grid_by_inputs(const KernelCall& call) { return static_cast<int64_t>(call.inputs.size()); }
int64_t grid_by_outputs(const KernelCall& call) { return static_cast<int64_t>(call.outputs.size()); }

}  // namespace

void register_movement(std::vector<Kernel>& into) {
  into.push_back({Op::kReshape, reshape_shapes, grid_by_elements, copy_tile});
  into.push_back({Op::kBitCast, by_rule, grid_by_elements, copy_tile});
  into.push_back({Op::kTranspose, by_rule, grid_by_elements, transpose_tile});
  into.push_back({Op::kExpand, expand_shapes, grid_by_elements, expand_tile});
  into.push_back({Op::kSlice, slice_shapes, grid_by_elements, slice_tile});
  into.push_back({Op::kConcat, by_rule, grid_by_inputs, concat_tile});
  into.push_back({Op::kSplit, split_shapes, grid_by_outputs, split_tile});
  into.push_back({Op::kPad, pad_shapes, grid_by_elements, pad_tile});
  into.push_back({Op::kTile, tile_shapes, grid_by_elements, tile_tile});
  into.push_back({Op::kDepthToSpace, by_rule, grid_by_elements, space_tile});
  into.push_back({Op::kSpaceToDepth, by_rule, grid_by_elements, space_tile});
  into.push_back({Op::kReverseSequence, reverse_shapes, grid_by_elements, reverse_tile});
}

}  // namespace ark::kernels
