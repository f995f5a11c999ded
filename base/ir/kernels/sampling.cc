// Operators that read between the points of a grid: GridSample and DeformConv, over any number of spatial axes.
#include <cmath>

#include "base/ir/kernels/common.h"
#include "base/ir/kernels/window.h"
#include "base/ir/keys.h"

namespace ark::kernels {
namespace {

constexpr int64_t kPlaces = 64;  // output positions of one tile
constexpr std::size_t kMostSpatial = 6;

enum class Interpolation { kNearest, kLinear, kCubic };
enum class Outside { kZeros, kBorder, kReflection };

// Back and forth between two borders; an infinite way ends at the first.
template <typename C>
C reflected(C x, C low, C high) {
  const C range = high - low;
  if (x >= low && x <= high) return x;
  if (!(range > 0) || !std::isfinite(x)) return low;
  const C beyond = x < low ? low - x : x - high, turns = std::trunc(beyond / range),
          rest = beyond - turns * range;
  const bool from_low = (x < low) == (std::fmod(turns, C{2}) == 0);
  return from_low ? low + rest : high - rest;
}

// The points of one axis that a coordinate reads, with weights; outside points have index -1.
template <typename C>
struct AxisTaps {
  int count = 0;
  std::array<int64_t, 4> index{};
  std::array<C, 4> weight{};
};

template <typename C>
int64_t point_at(C x, int64_t size, Outside outside, C low, C high) {
  if (outside == Outside::kReflection) x = std::trunc(reflected(x, low, high));
  // The last point of a long axis may be no C: what is compared with is rounded, what is given back is not.
  if (outside != Outside::kZeros)
    return !(x > 0) ? 0 : x < static_cast<C>(size - 1) ? static_cast<int64_t>(x) : size - 1;
  return x >= 0 && x < static_cast<C>(size) ? static_cast<int64_t>(x) : -1;
}

// NaN reads the first point.
template <typename C>
AxisTaps<C> taps_at(C x, int64_t size, Interpolation how, Outside outside, bool align_corners) {
  const C low = align_corners ? C{0} : C{-0.5},
          high = align_corners ? static_cast<C>(size - 1) : static_cast<C>(size) - C{0.5};
  if (x != x) x = 0;
  if (how == Interpolation::kNearest) x = std::nearbyint(x);
  if (x < low || x > high) {
    if (outside == Outside::kBorder && how != Interpolation::kCubic)
      x = std::clamp<C>(x, 0, static_cast<C>(size - 1));
    if (outside == Outside::kReflection) x = reflected(x, low, high);
  }
  const C first = std::floor(x), t = x - first;
  AxisTaps<C> taps;
  const auto add = [&](C place, C weight) {
    taps.index[taps.count] = point_at(place, size, outside, low, high);
    taps.weight[taps.count++] = weight;
  };
  if (how == Interpolation::kNearest) {
    add(std::trunc(x), 1);
  } else if (how == Interpolation::kLinear) {
    add(first, 1 - t);
    add(first + 1, t);
  } else {  // Keys' kernel with a = -3/4
    constexpr C a{-0.75};
    const auto near = [](C d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
    const auto far = [](C d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
    add(first - 1, far(t + 1));
    add(first, near(t));
    add(first + 1, near(1 - t));
    add(first + 2, far(2 - t));
  }
  return taps;
}

// All points that one place of several axes reads: offsets into a channel's plane, with weights.
template <typename C>
struct Points {
  std::vector<std::pair<int64_t, C>> list;

  void join(std::span<const AxisTaps<C>> axes, std::span<const int64_t> sizes) {
    list.assign(1, {0, C{1}});
    std::vector<std::pair<int64_t, C>> next;
    for (std::size_t a = 0; a < axes.size(); ++a) {
      next.clear();
      for (const auto& [offset, weight] : list)
        for (int k = 0; k < axes[a].count; ++k)
          if (axes[a].index[k] >= 0)
            next.emplace_back(offset * sizes[a] + axes[a].index[k], weight * axes[a].weight[k]);
      list.swap(next);
    }
  }
  C sample(const TensorView& x, int64_t plane) const {
    C sum{};
    for (const auto& [offset, weight] : list) sum += weight * load_one<C>(x, plane + offset);
    return sum;
  }
};

Span64 places_of(int64_t tile, int64_t places) {
  return {tile * kPlaces, std::min(places, (tile + 1) * kPlaces)};
}
int64_t place_tiles(int64_t places) { return (places + kPlaces - 1) / kPlaces; }

int64_t spatial_grid(const KernelCall& call) {
  const TensorView& y = call.outputs[0];
  return y.dims[0] * place_tiles(product(y.shape().subspan(2)));
}

void grid_sample_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &grid = call.inputs[1], &y = call.outputs[0];
  const Attributes& at = *call.attributes;
  const std::string mode = at.get_or(key::kMode, "linear"), padding = at.get_or(key::kPaddingMode, "zeros");
  const Interpolation how = mode == "nearest" ? Interpolation::kNearest
                            : mode == "cubic" ? Interpolation::kCubic
                                              : Interpolation::kLinear;
  const Outside outside = padding == "border"       ? Outside::kBorder
                          : padding == "reflection" ? Outside::kReflection
                                                    : Outside::kZeros;
  const bool align = at.get_or(key::kAlignCorners, 0) != 0;
  const auto sizes = x.shape().subspan(2);
  const int64_t places = product(y.shape().subspan(2)), plane = product(sizes), channels = x.dims[1];
  const int64_t n = tile / place_tiles(places);
  const Span64 here = places_of(tile % place_tiles(places), places);
  with_compute_type(x.dtype, [&](auto type) {
    using C = decltype(type);
    if constexpr (std::is_floating_point_v<C>) {
      std::array<AxisTaps<C>, kMostSpatial> axes;
      Points<C> points;
      for (int64_t p = here.begin; p < here.end; ++p) {
        for (std::size_t a = 0; a < sizes.size(); ++a) {  // the grid names the last axis first
          const auto reversed = static_cast<int64_t>(sizes.size() - 1 - a);
          const C at_grid =
                      load_one<C>(grid, (n * places + p) * static_cast<int64_t>(sizes.size()) + reversed),
                  size = static_cast<C>(sizes[a]);
          const C place = align ? (at_grid + 1) / 2 * (size - 1) : ((at_grid + 1) * size - 1) / 2;
          axes[a] = taps_at(place, sizes[a], how, outside, align);
        }
        points.join({axes.data(), sizes.size()}, sizes);
        for (int64_t c = 0; c < channels; ++c)
          store_one<C>(y, (n * channels + c) * places + p, points.sample(x, (n * channels + c) * plane));
      }
    } else {
      unsupported("GridSample of type " + std::string(name_of(x.dtype)));
    }
  });
}

// A column holds what each channel and tap of one place reads; the weights of an output channel are as long as its
// group's part of it.
void deform_conv_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &weights = call.inputs[1], &offsets = call.inputs[2],
                   &y = call.outputs[0];
  const Window w = window_of(call, {weights.dims.begin() + 2, weights.dims.begin() + weights.rank});
  const int64_t groups = call.attributes->get_or(key::kGroup, 1),
                offset_groups = call.attributes->get_or(key::kOffsetGroup, 1);
  const int64_t channels = x.dims[1], outputs = y.dims[1], places = product(w.out), plane = product(w.in),
                taps = product(w.kernel), spatial = static_cast<int64_t>(w.spatial);
  const int64_t n = tile / place_tiles(places);
  const Span64 here = places_of(tile % place_tiles(places), places);
  with_compute_type(x.dtype, [&](auto type) {
    using C = decltype(type);
    if constexpr (std::is_floating_point_v<C>) {
      const int64_t depth = channels / groups * taps;
      std::vector<C> all(static_cast<std::size_t>(weights.size())),
          column(static_cast<std::size_t>(channels * taps));
      load(weights, 0, weights.size(), all.data());
      std::array<AxisTaps<C>, kMostSpatial> axes;
      Points<C> points;
      Odometer out(w.out, {}, here.begin);
      for (int64_t p = here.begin; p < here.end; ++p, out.next()) {
        for (int64_t g = 0; g < offset_groups; ++g) {
          Odometer tap(w.kernel, {}, 0);
          for (int64_t t = 0; t < taps; ++t, tap.next()) {
            const int64_t first = (n * offset_groups + g) * taps + t;
            for (std::size_t a = 0; a < w.spatial; ++a) {
              const C moved = load_one<C>(offsets, (first * spatial + static_cast<int64_t>(a)) * places + p);
              axes[a] = taps_at(static_cast<C>(w.position(a, out.index()[a], tap.index()[a])) + moved,
                                w.in[a], Interpolation::kLinear, Outside::kZeros, true);
            }
            points.join({axes.data(), w.spatial}, w.in);
            const C share = has_input(call, 4) ? load_one<C>(call.inputs[4], first * places + p) : C{1};
            const int64_t each = channels / offset_groups;
            for (int64_t c = g * each; c < (g + 1) * each; ++c)
              column[c * taps + t] = share * points.sample(x, (n * channels + c) * plane);
          }
        }
        for (int64_t o = 0; o < outputs; ++o) {
          const C *row = all.data() + o * depth, *part = column.data() + o / (outputs / groups) * depth;
          C sum = has_input(call, 3) ? load_one<C>(call.inputs[3], o) : C{};
          for (int64_t k = 0; k < depth; ++k) sum += row[k] * part[k];
          store_one<C>(y, (n * outputs + o) * places + p, sum);
        }
      }
    } else {
      unsupported("DeformConv of type " + std::string(name_of(x.dtype)));
    }
  });
}

}  // namespace

void register_sampling(std::vector<Kernel>& into) {
  into.push_back({Op::kGridSample, by_rule, spatial_grid, grid_sample_tile});
  into.push_back({Op::kDeformConv, by_rule, spatial_grid, deform_conv_tile});
}

}  // namespace ark::kernels
