// Convolutions: products of the weights and, a block at a time, of what each output sees of the image; where few
// outputs share a group's inputs, sums of shifted planes.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/ir/kernels/common.h"
#include "base/ir/kernels/window.h"
#include "base/ir/keys.h"
#include "engine/cpu/vector_kernels/vector_kernels.h"

namespace ark::vector_kernels {
namespace {

using kernels::product, kernels::strides_of, kernels::Index, kernels::Odometer;

constexpr int64_t kFewOutputs = 4;  // of a group: a product of so few rows costs less than what it is made of
constexpr std::size_t kMostAxes = 6;

struct Sizes {
  kernels::Window w;
  int64_t images, groups, outputs, inputs, taps, in, out;  // outputs and inputs: channels of one group
  explicit Sizes(const KernelCall& call)
      : w(kernels::window_of(
            call, Dims(call.inputs[1].dims.begin() + 2, call.inputs[1].dims.begin() + call.inputs[1].rank))),
        images(call.outputs[0].dims[0]),
        groups(call.attributes->get_or(key::kGroup, 1)),
        outputs(call.outputs[0].dims[1] / groups),
        inputs(call.inputs[1].dims[1]),
        taps(product(w.kernel)),
        in(product(w.in)),
        out(product(w.out)) {}
  int64_t depth() const { return inputs * taps; }
  const float* image(const KernelCall& call, int64_t i, int64_t group) const {
    return call.inputs[0].as<float>() + (i * groups + group) * inputs * in;
  }
  const float* bias(const KernelCall& call) const {
    return kernels::has_input(call, 2) ? call.inputs[2].as<float>() : nullptr;
  }
};

// Every stride-th of n elements, by shuffles where every other one is asked for.
void copy_strided(float* to, const float* from, int64_t stride, int64_t n) {
  using Four [[gnu::vector_size(16)]] = float;
  int64_t i = 0;
  for (; stride == 2 && i + 4 < n; i += 4) {  // what is behind the last element may not be there
    Four low, high;
    std::memcpy(&low, from + 2 * i, sizeof low);
    std::memcpy(&high, from + 2 * i + 4, sizeof high);
    const Four even = __builtin_shufflevector(low, high, 0, 2, 4, 6);
    std::memcpy(to + i, &even, sizeof even);
  }
  for (; i < n; ++i) to[i] = from[i * stride];
}

// ---- by sums of shifted planes

// The inputs of some output rows (of the first axis), padded, and cut by stride: an element that output o reads by
// some tap lies in the plane of that tap's phase, as many places behind o in all of them.
struct Planes {
  Index shift{};                                       // of the axes: places that the last tap reads ahead
  Index length{};                                      // of each axis of a plane
  Index pitch{};                                       // how far apart its places are
  int64_t plane = 0, phases = 1, rows = 0, parts = 0;  // of output rows; in how many parts these are cut
  int64_t groups = 1, bundles = 1;                     // groups of one tile, and how many such there are
  bool fits = false;

  explicit Planes(const Sizes& s) {
    const kernels::Window& w = s.w;
    if (w.spatial > kMostAxes) return;
    double row = static_cast<double>(s.inputs);  // as a double: numbers of the file
    for (std::size_t a = 0; a < w.spatial; ++a) {
      shift[a] = (w.kernel[a] - 1) * w.dilation[a] / w.stride[a];
      length[a] = w.out[a] + shift[a];
      row *= static_cast<double>(w.stride[a]) * static_cast<double>(a ? length[a] : 1);
    }
    const double most =
        static_cast<double>(Room::kPlane) / std::max(row, 1.0) - static_cast<double>(shift[0]);
    if (!(most >= 1) || s.depth() > Room::kPlane / 4) return;
    rows = std::min<int64_t>(w.out[0], static_cast<int64_t>(most));
    parts = (w.out[0] + rows - 1) / rows;
    rows = (w.out[0] + parts - 1) / parts;
    length[0] = rows + shift[0];
    plane = 1;
    for (std::size_t a = w.spatial; a-- > 0; plane *= length[a]) pitch[a] = plane, phases *= w.stride[a];
    // A tile reads the call anew: what is small shares one.
    constexpr int64_t kBundles = 16;
    groups = std::clamp<int64_t>(kernels::kTileElements / std::max<int64_t>(plane * phases * s.depth(), 1), 1,
                                 std::max<int64_t>(s.groups / kBundles, 1));
    bundles = (s.groups + groups - 1) / groups;
    fits = is_worth_it(s);
  }

  // Places from the first output to the last one, of so many rows of the first axis.
  int64_t summed(const kernels::Window& w, int64_t of_rows) const {
    int64_t places = 1;
    for (std::size_t a = 0; a < w.spatial; ++a) places += ((a ? w.out[a] : of_rows) - 1) * pitch[a];
    return places;
  }

 private:
  // What is filled and summed up is not many times what outputs ask for: where a row or few rows are short beside what
  // taps reach, it is.
  bool is_worth_it(const Sizes& s) const {
    constexpr int64_t kMost = 8;
    const int64_t wanted = s.outputs * s.depth() * rows * (s.out / s.w.out[0]);
    return s.inputs * phases * plane + s.outputs * s.depth() * summed(s.w, rows) <= kMost * wanted;
  }
};

// One channel's planes for output rows from `first` on.
void fill_planes(const kernels::Window& w, const Planes& p, int64_t first, const float* channel, float* to) {
  const std::size_t last = w.spatial - 1;
  const Index in = strides_of(w.in);
  Odometer phase(w.stride, {}, 0);
  Dims outer(p.length.begin(), p.length.begin() + static_cast<std::ptrdiff_t>(last));
  const int64_t rows = product(outer), length = p.length[last], stride = w.stride[last];
  for (int64_t f = 0; f < p.phases; ++f, phase.next()) {
    Odometer row(outer, {}, 0);
    for (int64_t r = 0; r < rows; ++r, row.next(), to += length) {
      int64_t base = 0, start = phase.index()[last] - w.begin[last] + (last == 0 ? first * stride : 0);
      bool inside = true;
      for (std::size_t a = 0; a < last; ++a) {
        const int64_t q = row.index()[a] + (a == 0 ? first : 0);
        const int64_t at = q * w.stride[a] + phase.index()[a] - w.begin[a];
        inside = inside && at >= 0 && at < w.in[a];
        base += inside ? at * in[a] : 0;
      }
      // Places q of this row read element start + q * stride.
      const int64_t low = std::min(length, start < 0 ? (-start + stride - 1) / stride : 0),
                    high = start >= w.in[last] ? 0 : std::min(length, (w.in[last] - 1 - start) / stride + 1);
      if (!inside || high <= low) {
        std::fill_n(to, length, 0.f);
        continue;
      }
      std::fill_n(to, low, 0.f);
      const float* from = channel + base + start;
      if (stride == 1)
        std::memcpy(to + low, from + low, static_cast<std::size_t>(high - low) * sizeof(float));
      else
        copy_strided(to + low, from + low * stride, stride, high - low);
      std::fill_n(to + high, length - high, 0.f);
    }
  }
}

// The output channels of one group in some rows, where all its inputs' planes have been filled.
class ShiftedRows {
 public:
  ShiftedRows(const Sizes& s, const Planes& p, int64_t first)
      : s_(s), p_(p), first_(first), rows_(s.w.out.begin(), s.w.out.end() - 1), width_(s.w.out.back()) {
    const int64_t count = std::min(p.rows, s.w.out[0] - first);
    if (rows_.empty())
      width_ = count;
    else
      rows_[0] = count;
    length_ = p.summed(s.w, count);
    for (std::size_t a = 0; a < rows_.size(); ++a) steps_[a] = p.pitch[a];
    const Index phase_pitch = strides_of(s.w.stride);
    for (int64_t c = 0; c < s.inputs; ++c) {
      Odometer tap(s.w.kernel, {}, 0);
      for (int64_t t = 0; t < s.taps; ++t, tap.next()) {
        int64_t shift = c * p.phases * p.plane;
        for (std::size_t a = 0; a < s.w.spatial; ++a) {
          const int64_t ahead = tap.index()[a] * s.w.dilation[a];
          shift += ahead / s.w.stride[a] * p.pitch[a] + ahead % s.w.stride[a] * phase_pitch[a] * p.plane;
        }
        shifts_.push_back(shift);
      }
    }
  }

  void run(const KernelCall& call, int64_t image, int64_t group) const {
    const Room& r = room();
    for (int64_t c = 0; c < s_.inputs; ++c)
      fill_planes(s_.w, p_, first_, s_.image(call, image, group) + c * s_.in,
                  r.plane + c * p_.phases * p_.plane);
    const int64_t lines = product(rows_);
    for (int64_t o = 0; o < s_.outputs; ++o) {
      const int64_t channel = group * s_.outputs + o;
      vectors().shifted_sum({.x = r.plane,
                             .shifts = shifts_.data(),
                             .factors = call.inputs[1].as<float>() + channel * s_.depth(),
                             .terms = s_.depth(),
                             .bias = s_.bias(call) ? s_.bias(call)[channel] : 0,
                             .out = r.flat,
                             .n = length_});
      float* out = call.outputs[0].as<float>() + (image * s_.groups * s_.outputs + channel) * s_.out +
                   first_ * (s_.out / s_.w.out[0]);
      if (length_ == lines * width_) {
        std::copy_n(r.flat, length_, out);
        continue;
      }
      Odometer line(rows_, {steps_}, 0);
      for (int64_t l = 0; l < lines; ++l, line.next(), out += width_)
        std::copy_n(r.flat + line.offset(0), width_, out);
    }
  }

 private:
  const Sizes& s_;
  const Planes& p_;
  const int64_t first_;
  Dims rows_;  // of the output, without its last axis
  int64_t width_, length_ = 0;
  Index steps_{};
  std::vector<int64_t> shifts_;
};

void shifted_tile(const KernelCall& call, const Sizes& s, const Planes& p, int64_t tile) {
  const int64_t part = tile % p.parts, first = tile / p.parts % p.bundles * p.groups,
                image = tile / p.parts / p.bundles;
  if (part * p.rows >= s.w.out[0]) return;
  const ShiftedRows rows(s, p, part * p.rows);
  for (int64_t g = first; g < std::min(s.groups, first + p.groups); ++g) rows.run(call, image, g);
}

// ---- by products

// What some outputs (columns) see of an image, a row for each channel and tap.
class Seen {
 public:
  Seen(const Sizes& s, const float* image, const float* end, int64_t first, int64_t count)
      : s_(s), w_(s.w), image_(image), end_(end), in_(strides_of(s.w.in)), columns_(count) {
    const std::size_t last = w_.spatial - 1;
    const int64_t width = w_.out[last];
    const Dims outer(w_.out.begin(), w_.out.end() - 1);
    Odometer at(outer, {}, first / width);
    for (int64_t column = 0; column < count;) {
      Line line;
      line.begin = (first + column) % width;
      line.end = std::min({width, line.begin + count - column, line.begin + kPanel - column % kPanel});
      line.place = column / kPanel * Room::kPanelRoom + column % kPanel;
      for (std::size_t a = 0; a < last; ++a) line.start[a] = at.index()[a] * w_.stride[a] - w_.begin[a];
      column += line.end - line.begin;
      if (line.end == width) at.next();
      lines_.push_back(line);
    }
    is_plain_ = s.taps == 1;
    for (std::size_t a = 0; a < w_.spatial; ++a)
      is_plain_ = is_plain_ && w_.stride[a] == 1 && w_.begin[a] == 0 && w_.out[a] <= w_.in[a] &&
                  (a == 0 || w_.out[a] == w_.in[a]);
    first_ = first;
  }

  void fill(int64_t k, int64_t count, float* to) const {
    if (is_plain_) return copy_panels(image_ + k * s_.in + first_, s_.in, count, columns_, end_, to);
    Odometer tap(w_.kernel, {}, k % s_.taps);
    int64_t channel = k / s_.taps, t = k % s_.taps;
    for (int64_t i = 0; i < count; ++i, tap.next()) {
      fill_row(image_ + channel * s_.in, tap.index(), to + i * kPanel);
      if (++t == s_.taps) t = 0, ++channel;
    }
  }

 private:
  struct Line {  // outputs [begin, end) of one row, in one panel
    int64_t begin, end, place;
    std::array<int64_t, kMostAxes> start{};  // of the other axes: what tap 0 reads
  };

  void fill_row(const float* plane, const Index& tap, float* row) const {
    const std::size_t last = w_.spatial - 1;
    const int64_t stride = w_.stride[last], start = tap[last] * w_.dilation[last] - w_.begin[last];
    // Outputs of a row that read inside of the image.
    const auto steps = [&](int64_t n) {
      return stride == 1 ? n : n / stride;
    };  // a division takes as long as a row
    const int64_t low = start < 0 ? steps(-start + stride - 1) : 0,
                  high = start < w_.in[last] ? steps(w_.in[last] - 1 - start) + 1 : 0;
    for (const Line& line : lines_) {
      const int64_t width = line.end - line.begin;
      float* const to = row + line.place;
      int64_t base = start;
      bool inside = true;
      for (std::size_t a = 0; a < last; ++a) {
        const int64_t at = line.start[a] + tap[a] * w_.dilation[a];
        inside = inside && at >= 0 && at < w_.in[a];
        base += inside ? at * in_[a] : 0;
      }
      const int64_t from = std::max(line.begin, low), until = std::min(line.end, high);
      if (!inside || until <= from) {
        std::fill_n(to, width, 0.f);
      } else {
        if (from > line.begin) std::fill_n(to, from - line.begin, 0.f);
        const float* source = plane + base + from * stride;
        float* into = to + from - line.begin;
        if (stride == 1)
          copy_run(into, source, until - from, end_);
        else
          copy_strided(into, source, stride, until - from);
        if (until < line.end) std::fill_n(to + until - line.begin, line.end - until, 0.f);
      }
    }
  }

  const Sizes& s_;
  const kernels::Window& w_;
  const float *image_, *end_;
  const Index in_;
  const int64_t columns_;
  int64_t first_ = 0;
  bool is_plain_ = false;
  std::vector<Line> lines_;
};

void product_tile(const KernelCall& call, const Sizes& s, int64_t tile) {
  const Cut cut(s.images * s.groups, s.outputs, s.out);
  const Cut::Part part = cut.part(tile % cut.parts());
  const int64_t group = tile / cut.parts() % s.groups, image = tile / cut.parts() / s.groups,
                channel = group * s.outputs + part.row;
  const float* end = call.inputs[0].as<float>() + call.inputs[0].size();
  const Seen seen(s, s.image(call, image, group), end, part.column, part.columns);
  multiply({call.inputs[1].as<float>() + channel * s.depth(), s.depth(), 1}, part.rows, s.depth(),
           part.columns, s.bias(call) ? s.bias(call) + channel : nullptr,
           call.outputs[0].as<float>() + (image * s.groups * s.outputs + channel) * s.out + part.column,
           s.out, [&](int64_t k, int64_t count, float* to) { seen.fill(k, count, to); });
}

bool can_convolve(const KernelCall& call) {
  return is_f32(call) && call.inputs[0].rank >= 3 && call.inputs[0].rank <= static_cast<int>(kMostAxes) + 2;
}

int64_t conv_grid(const KernelCall& call) {
  if (!can_convolve(call)) return find_kernel(Op::kConv)->grid(call);
  const Sizes s(call);
  if (s.outputs <= kFewOutputs)
    if (const Planes planes(s); planes.fits) return s.images * planes.bundles * planes.parts;
  return s.images * s.groups * Cut(s.images * s.groups, s.outputs, s.out).parts();
}

void conv_tile(const KernelCall& call, int64_t tile) {
  if (!can_convolve(call)) return find_kernel(Op::kConv)->tile(call, tile);
  const Sizes s(call);
  if (s.outputs <= kFewOutputs)
    if (const Planes planes(s); planes.fits) return shifted_tile(call, s, planes, tile);
  product_tile(call, s, tile);
}

}  // namespace

void register_conv(std::vector<Kernel>& by_op) {
  Kernel& kernel = by_op[static_cast<std::size_t>(Op::kConv)];
  kernel.grid = conv_grid, kernel.tile = conv_tile;
}

}  // namespace ark::vector_kernels
