// Resize by its definition: the output is a separable filter of the input, so each axis has, per output
// index, a few input indices with weights.
#include <cmath>
#include <numeric>

#include "base/ir/kernels/common.h"
#include "base/ir/keys.h"

namespace ark::kernels {
namespace {

struct Tap {
  int64_t index;  // clamped into the axis
  double weight;
};

struct ResizedAxis {
  int64_t in = 1, out = 1;
  double scale = 1;
  float begin = 0, end = 1;  // the part that is resized: tf_crop_and_resize
  bool is_untouched() const { return in == out && scale == 1 && begin == 0 && end == 1; }
};

// (x, scales?, sizes i64?, roi?) {axes, sizes: Shape?, keep_aspect_ratio_policy}
std::vector<ResizedAxis> axes_of(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  std::vector<ResizedAxis> axes(static_cast<std::size_t>(x.rank));
  for (std::size_t i = 0; i < axes.size(); ++i) axes[i] = {x.dims[i], x.dims[i], 1};
  Dims named = call.attributes->get_or(key::kAxes, {});
  if (named.empty()) {
    named.resize(axes.size());
    std::iota(named.begin(), named.end(), 0);
  }
  const std::optional<Dims> sizes = ints_operand(call, key::kSizes, 2);
  const int64_t given = sizes                ? static_cast<int64_t>(sizes->size())
                        : has_input(call, 1) ? call.inputs[1].size()
                                             : 0;
  if (given != static_cast<int64_t>(named.size())) misfit("Resize wants one scale or size an axis");
  const auto count = static_cast<int64_t>(named.size());
  if (has_input(call, 3) && call.inputs[3].size() != 2 * count)
    misfit("Resize wants two borders of its region an axis, not " + std::to_string(call.inputs[3].size()) +
           " in all");
  const std::string policy = call.attributes->get_or(key::kKeepAspectRatioPolicy, "stretch");
  double common = policy == "not_larger" ? std::numeric_limits<double>::infinity() : 0;
  for (std::size_t k = 0; k < named.size(); ++k) {
    ResizedAxis& a = axes[norm_axis(named[k], x.rank)];
    if (has_input(call, 3)) {
      a.begin = static_cast<float>(load_one<double>(call.inputs[3], static_cast<int64_t>(k)));
      a.end = static_cast<float>(load_one<double>(call.inputs[3], count + static_cast<int64_t>(k)));
      if (!std::isfinite(a.begin) || !std::isfinite(a.end)) misfit("Resize of a region that is not finite");
    }
    if (sizes) {
      a.out = (*sizes)[k];
      a.scale = a.in ? static_cast<double>(a.out) / static_cast<double>(a.in) : 1;
      common = policy == "not_larger" ? std::min(common, a.scale) : std::max(common, a.scale);
    } else {
      a.scale = load_one<double>(call.inputs[1], static_cast<int64_t>(k));
      if (!(a.scale > 0 && a.scale < 1e9)) misfit("Resize by a scale that is not positive");
      a.out = static_cast<int64_t>(static_cast<float>(a.in) * static_cast<float>(a.scale));
    }
    if (a.out < 0 || (a.in == 0 && a.out != 0)) misfit("Resize to a size that cannot be");
  }
  if (sizes && policy != "stretch")
    for (const int64_t axis : named) {
      ResizedAxis& a = axes[norm_axis(axis, x.rank)];
      a.scale = common;
      a.out = static_cast<int64_t>(std::floor(common * static_cast<double>(a.in) + 0.5));
    }
  return axes;
}

// Where output index `o` lies on the input's axis: in f32, as ONNX Runtime and PyTorch compute it, since the nearest
// pixel changes with the last bit.
float coordinate(const std::string& mode, const ResizedAxis& axis, int64_t o) {
  const struct { float scale, out; } a{static_cast<float>(axis.scale), static_cast<float>(axis.out)};
  const auto x = static_cast<float>(o), in = static_cast<float>(axis.in);
  if (mode == "asymmetric") return x / a.scale;
  if (mode == "tf_crop_and_resize")
    return a.out > 1 ? axis.begin * (in - 1) + x * (axis.end - axis.begin) * (in - 1) / (a.out - 1)
                     : 0.5f * (axis.begin + axis.end) * (in - 1);
  // Corners by the output's own length, as PyTorch, ONNX Runtime and the standard's text have it. The standard's
  // reference, and so two of its tests, take the length before it is rounded.
  if (mode == "align_corners") return a.out == 1 ? 0 : x * (in - 1) / (a.out - 1);
  if (mode == "pytorch_half_pixel" && !(a.out > 1)) return 0;
  if (mode == "tf_half_pixel_for_nn") return (x + 0.5f) / a.scale;
  const float half = (x + 0.5f) / a.scale - 0.5f;
  if (mode == "half_pixel_symmetric") return in / 2 * (1 - a.out / (a.scale * in)) + half;
  if (mode == "half_pixel" || mode == "pytorch_half_pixel") return half;
  unsupported("Resize with coordinate_transformation_mode " + escaped(mode));
}

double nearest(const std::string& mode, double x) {
  if (mode == "floor") return std::floor(x);
  if (mode == "ceil") return std::ceil(x);
  // What lies in the middle but for rounding lies in the middle, as in ONNX Runtime.
  const double low = std::floor(x);
  if (std::abs(x - low - 0.5) < 1e-6) return mode == "round_prefer_ceil" ? low + 1 : low;
  return std::floor(x + 0.5);
}

// The interpolation kernel at distance d; a: Keys' cubic coefficient.
double kernel_weight(bool cubic, double d, double a) {
  d = std::abs(d);
  if (!cubic) return std::max(0.0, 1 - d);
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

// How a node samples, read once: what each output index of an axis reads.
struct Sampling {
  std::string coordinates, nearest_mode;
  bool is_nearest, is_cubic, excludes, antialiases, has_region;
  double coefficient;
  explicit Sampling(const KernelCall& call)
      : coordinates(call.attributes->get_or(key::kCoordinateTransformationMode, "half_pixel")),
        nearest_mode(call.attributes->get_or(key::kNearestMode, "round_prefer_floor")),
        is_nearest(call.attributes->get_or(key::kMode, "nearest") == "nearest"),
        is_cubic(call.attributes->get_or(key::kMode, "nearest") == "cubic"),
        excludes(call.attributes->get_or(key::kExcludeOutside, 0) != 0),
        antialiases(call.attributes->get_or(key::kAntialias, 0) != 0),
        has_region(has_input(call, 3)),
        coefficient(call.attributes->get_or(key::kCubicCoeffA, -0.75)) {}

  void taps_of(const ResizedAxis& axis, int64_t o, std::vector<Tap>& taps) const {
    taps.clear();
    if (axis.is_untouched()) return taps.push_back({o, 1});
    const double x = coordinate(coordinates, axis, o);
    // No taps: what lies outside is the extrapolation value.
    if (has_region && !(x >= 0 && x <= static_cast<double>(axis.in - 1))) return;
    const auto clamped = [&](double i) {
      return static_cast<int64_t>(std::clamp(i, 0.0, static_cast<double>(axis.in - 1)));
    };
    if (is_nearest) return taps.push_back({clamped(nearest(nearest_mode, x)), 1});
    const double stretch = antialiases ? std::min(1.0, axis.scale) : 1, reach = (is_cubic ? 2 : 1) / stretch;
    double sum = 0;
    for (double i = std::floor(x - reach) + 1; i < x + reach; ++i) {
      if (excludes && (i < 0 || i >= static_cast<double>(axis.in))) continue;
      const double weight = kernel_weight(is_cubic, (i - x) * stretch, coefficient);
      taps.push_back({clamped(i), weight});
      sum += weight;
    }
    for (Tap& tap : taps) tap.weight /= sum;
  }
};

std::vector<OutputType> resize_shapes(const KernelCall& call) {
  Dims dims;
  for (const ResizedAxis& a : axes_of(call)) dims.push_back(a.out);
  return {{call.inputs[0].dtype, dims}};
}

void resize_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const auto [begin, end] = elements_of(tile, y.size());
  if (begin >= end) return;
  const Index own = strides_of(x.shape());
  const std::vector<ResizedAxis> axes = axes_of(call);
  // Whatever the scales that were rounded away.
  if (dims_of(x) == dims_of(y) && !has_input(call, 3))
    return copy_elements(call, tile, {own}, [](const Odometer& at) { return at.offset(0); });
  if (axes.empty()) return store_one(y, 0, load_one<double>(x, 0));
  const Sampling sampling(call);
  const std::size_t last = axes.size() - 1;
  const int64_t length = axes[last].out, width = axes[last].in;
  // Of the last axis' outputs from `origin` on: the taps of output o are along[starts[o - origin]] and on.
  const bool is_part = begin / length == (end - 1) / length;
  const int64_t origin = is_part ? begin % length : 0;
  std::vector<Tap> along, taps;
  std::vector<std::size_t> starts{0};
  for (int64_t o = origin; o < (is_part ? origin + end - begin : length); ++o) {
    sampling.taps_of(axes[last], o, taps);
    along.insert(along.end(), taps.begin(), taps.end());
    starts.push_back(along.size());
  }
  const double outside = call.attributes->get_or(key::kExtrapolationValue, 0.0);
  const bool copies = sampling.is_nearest && !sampling.has_region;
  // The rows of x that a row of the output reads, each with its weight: they are summed up, then sampled along.
  // But of long rows of which little is read, each element by itself.
  const bool picks = static_cast<int64_t>(along.size()) < width / 4;
  std::vector<Tap> rows, wider;
  std::vector<double> from(copies || picks ? 0 : static_cast<std::size_t>(width)), sum(from.size()),
      to(copies ? 0 : static_cast<std::size_t>(std::min(length, end - begin)));
  Odometer row(y.shape().first(last), {}, begin / length);
  for (int64_t i = begin; i < end; row.next()) {
    rows.assign(1, {0, 1});
    for (std::size_t a = 0; a < last; ++a) {
      sampling.taps_of(axes[a], row.index()[a], taps);
      wider.clear();
      for (const Tap& r : rows)
        for (const Tap& tap : taps) wider.push_back({r.index + tap.index * own[a], r.weight * tap.weight});
      rows.swap(wider);
    }
    const int64_t first = i % length, count = std::min(end - i, length - first);
    if (copies) {
      with_bytes(element_bytes(y), [&](auto type) {
        using T = decltype(type);
        const T* const source = x.as<T>() + rows[0].index;
        T* const into = y.as<T>() + i;
        const Tap* const taken = along.data() + first - origin;
        for (int64_t o = 0; o < count; ++o) into[o] = source[taken[o].index];
      });
      i += count;
      continue;
    }
    std::fill(sum.begin(), sum.end(), 0);
    for (const Tap& r : picks ? std::span<const Tap>() : std::span<const Tap>(rows)) {
      load(x, r.index, width, from.data());
      for (std::size_t k = 0; k < from.size(); ++k) sum[k] += r.weight * from[k];
    }
    for (int64_t o = 0; o < count; ++o) {
      const auto place = static_cast<std::size_t>(first - origin + o);
      const std::size_t tap = starts[place], stop = starts[place + 1];
      double value = rows.empty() || tap == stop ? outside : 0;
      for (std::size_t t = tap; t < stop && !rows.empty(); ++t) {
        double read = picks ? 0 : sum[static_cast<std::size_t>(along[t].index)];
        for (const Tap& r : picks ? std::span<const Tap>(rows) : std::span<const Tap>())
          read += r.weight * load_one<double>(x, r.index + along[t].index);
        value += along[t].weight * read;
      }
      to[static_cast<std::size_t>(o)] = value;
    }
    store(y, i, count, to.data());
    i += count;
  }
}

}  // namespace

void register_resize(std::vector<Kernel>& into) {
  into.push_back({Op::kResize, resize_shapes, grid_by_elements, resize_tile});
}

}  // namespace ark::kernels
