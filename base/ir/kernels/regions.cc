// Boxes on images: NonMaxSuppression, RoiAlign, MaxRoiPool.
#include <cmath>
#include <limits>

#include "base/ir/kernels/common.h"
#include "base/ir/keys.h"

namespace ark::kernels {
namespace {

struct Box {
  float y1, x1, y2, x2;
  float area() const { return (y2 - y1) * (x2 - x1); }
};

Box box_at(const TensorView& boxes, int64_t i, bool is_centre) {
  float v[4];
  load(boxes, i * 4, 4, v);
  if (is_centre)  // x, y, width, height
    return {v[1] - v[3] / 2, v[0] - v[2] / 2, v[1] + v[3] / 2, v[0] + v[2] / 2};
  return {std::min(v[0], v[2]), std::min(v[1], v[3]), std::max(v[0], v[2]), std::max(v[1], v[3])};
}

// Boxes without area overlap with nothing.
bool overlaps(const Box& a, const Box& b, float threshold) {
  const float height = std::min(a.y2, b.y2) - std::max(a.y1, b.y1),
              width = std::min(a.x2, b.x2) - std::max(a.x1, b.x1);
  if (!(height > 0) || !(width > 0) || !(a.area() > 0) || !(b.area() > 0)) return false;
  const float common = height * width, joint = a.area() + b.area() - common;
  return joint > 0 && common / joint > threshold;
}

// (image, class, box) of what is kept: by image and class, best first.
std::vector<std::array<int64_t, 3>> suppressed(const KernelCall& call) {
  const TensorView &boxes = call.inputs[0], &scores = call.inputs[1];
  const int64_t most = has_input(call, 2) ? scalar<int64_t>(call, 2, "max_output_boxes_per_class") : 0;
  const float threshold = has_input(call, 3) ? scalar<float>(call, 3, "iou_threshold") : 0;
  if (!(threshold >= 0 && threshold <= 1)) misfit("iou_threshold must lie in [0, 1]");
  const float least = has_input(call, 4) ? scalar<float>(call, 4, "score_threshold")
                                         : -std::numeric_limits<float>::infinity();
  const bool is_centre = call.attributes->get_or(key::kCenterPointBox, 0) != 0;
  const int64_t images = scores.dims[0], classes = scores.dims[1], count = scores.dims[2];
  std::vector<std::array<int64_t, 3>> kept;
  if (most <= 0) return kept;
  std::vector<Box> all, chosen;
  std::vector<std::pair<float, int64_t>> candidates;
  std::vector<float> row(static_cast<std::size_t>(count));
  for (int64_t n = 0; n < images; ++n) {
    all.clear();
    for (int64_t b = 0; b < count; ++b) all.push_back(box_at(boxes, n * count + b, is_centre));
    for (int64_t c = 0; c < classes; ++c) {
      load(scores, (n * classes + c) * count, count, row.data());
      candidates.clear();
      for (int64_t b = 0; b < count; ++b)
        if (row[b] > least || (!has_input(call, 4) && row[b] == row[b])) candidates.emplace_back(-row[b], b);
      std::sort(candidates.begin(), candidates.end());
      chosen.clear();
      for (const auto& [score, b] : candidates) {
        const Box& box = all[b];
        if (static_cast<int64_t>(chosen.size()) >= most) break;
        if (std::any_of(chosen.begin(), chosen.end(),
                        [&](const Box& other) { return overlaps(box, other, threshold); }))
          continue;
        chosen.push_back(box);
        kept.push_back({n, c, b});
      }
    }
  }
  return kept;
}

// The data decide how many are kept, so they are looked for twice: here, and once memory is there.
std::vector<OutputType> suppression_shapes(const KernelCall& call) {
  const TensorView &boxes = call.inputs[0], &scores = call.inputs[1];
  if (boxes.rank != 3 || scores.rank != 3 || boxes.dims[2] != 4 || boxes.dims[0] != scores.dims[0] ||
      boxes.dims[1] != scores.dims[2])
    misfit("NonMaxSuppression of boxes " + dims_text(boxes.shape()) + " and scores " +
           dims_text(scores.shape()));
  return {{DType::kI64, {static_cast<int64_t>(suppressed(call).size()), 3}}};
}
void suppression_tile(const KernelCall& call, int64_t) {
  const auto kept = suppressed(call);
  store(call.outputs[0], 0, static_cast<int64_t>(kept.size()) * 3, kept.empty() ? nullptr : kept[0].data());
}

void check_images(const TensorView& of, int64_t first, int64_t stride, int64_t count, int64_t images) {
  if (!of.data) return;  // the validator asks about sizes alone
  for (int64_t i = 0; i < count; ++i)
    if (const double image = load_one<double>(of, first + i * stride);
        !(image >= 0 && image < static_cast<double>(images)))
      misfit("region " + std::to_string(i) + " is of an image that is not there; there are " +
             std::to_string(images));
}

std::vector<OutputType> roi_align_shapes(const KernelCall& call) {
  std::vector<OutputType> types = by_rule(call);
  check_images(call.inputs[2], 0, 1, call.inputs[2].size(), call.inputs[0].dims[0]);
  return types;
}
std::vector<OutputType> roi_pool_shapes(const KernelCall& call) {
  std::vector<OutputType> types = by_rule(call);
  check_images(call.inputs[1], 0, 5, call.inputs[1].dims[0], call.inputs[0].dims[0]);
  return types;
}

int64_t region_grid(const KernelCall& call) { return call.outputs[0].dims[0]; }

// The points of one axis that one bin samples: two neighbours and the second one's weight. `samples`: how many the bin
// has, of which those outside the image are left out.
template <typename C>
struct BinSamples {
  struct Sample {
    int64_t low, high;
    C fraction;
  };
  double samples = 0;
  std::vector<Sample> inside;

  BinSamples(C start, C bin, int64_t index, int64_t ratio, int64_t size) {
    samples = ratio > 0 ? static_cast<double>(ratio) : std::ceil(static_cast<double>(bin));
    // As many as ONNX Runtime can count. Beyond, the next sample is too near to be another number.
    if (!(samples >= 1 && samples <= INT32_MAX) || size == 0) return;
    const auto at = [&](double i) {
      return start + static_cast<C>(index) * bin +
             (static_cast<C>(i) + C{0.5}) * bin / static_cast<C>(samples);
    };
    const auto end = static_cast<C>(size);
    // From the first that may lie inside: a huge region takes no more steps than the image has points.
    const double step = static_cast<double>(bin) / samples,
                 skipped = std::floor((-1 - static_cast<double>(at(0))) / step) - 1;
    for (double i = step > 0 ? std::clamp(skipped, 0.0, samples) : 0; i < samples; ++i) {
      const C place = at(i);
      if (step > 0 && place > end) break;
      if (!(place >= -1 && place <= end)) continue;
      const C y = std::max(place, C{0});
      const auto low = std::min(static_cast<int64_t>(y), size - 1);
      inside.push_back({low, std::min(low + 1, size - 1), low >= size - 1 ? C{0} : y - static_cast<C>(low)});
    }
  }
};

template <typename C>
void align_region(const KernelCall& call, int64_t region) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const Attributes& at = *call.attributes;
  const int64_t channels = x.dims[1], height = x.dims[2], width = x.dims[3], rows = y.dims[2],
                columns = y.dims[3];
  const bool is_max = at.get_or(key::kMode, "avg") == "max",
             half = at.get_or(key::kCoordinateTransformationMode, "half_pixel") == "half_pixel";
  const auto scale = static_cast<C>(at.get_or(key::kScale, 1));
  const int64_t ratio = at.get_or(key::kSamplingRatio, 0), image = load_one<int64_t>(call.inputs[2], region);
  C roi[4];
  load(call.inputs[1], region * 4, 4, roi);
  for (C& v : roi) v = v * scale - (half ? C{0.5} : C{0});
  C roi_width = roi[2] - roi[0], roi_height = roi[3] - roi[1];
  if (!half) roi_width = std::max(roi_width, C{1}), roi_height = std::max(roi_height, C{1});
  std::vector<BinSamples<C>> across, down;
  for (int64_t i = 0; i < columns; ++i)
    across.emplace_back(roi[0], roi_width / static_cast<C>(columns), i, ratio, width);
  for (int64_t i = 0; i < rows; ++i)
    down.emplace_back(roi[1], roi_height / static_cast<C>(rows), i, ratio, height);
  std::vector<C> plane(static_cast<std::size_t>(height * width));
  for (int64_t c = 0; c < channels; ++c) {
    load(x, (image * channels + c) * height * width, height * width, plane.data());
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t s = 0; s < columns; ++s) {
        const double count = std::max(1.0, down[r].samples * across[s].samples);
        double sum = 0;
        // A sample outside counts as zero.
        bool any = static_cast<double>(down[r].inside.size() * across[s].inside.size()) < count;
        C best = 0;
        for (const auto& v : down[r].inside)
          for (const auto& h : across[s].inside) {
            const C *low = plane.data() + v.low * width, *high = plane.data() + v.high * width;
            const C p[] = {
                (1 - v.fraction) * (1 - h.fraction) * low[h.low], (1 - v.fraction) * h.fraction * low[h.high],
                v.fraction * (1 - h.fraction) * high[h.low], v.fraction * h.fraction * high[h.high]};
            sum += p[0] + p[1] + p[2] + p[3];
            const C top = std::max(std::max(p[0], p[1]), std::max(p[2], p[3]));  // as ONNX defines this mode
            best = any ? std::max(best, top) : top;
            any = true;
          }
        store_one<C>(y, ((region * channels + c) * rows + r) * columns + s,
                     is_max ? best : static_cast<C>(sum / count));
      }
  }
}

void roi_align_tile(const KernelCall& call, int64_t region) {
  if (call.inputs[0].dtype == DType::kF64)
    align_region<double>(call, region);
  else
    align_region<float>(call, region);
}

// First and last point (exclusive) of one bin, within the image.
std::pair<int64_t, int64_t> pooled_span(float low, float high, int64_t bin, int64_t bins, int64_t size) {
  const float start = std::round(low), length = std::max(std::round(high) - start + 1, 1.0f),
              each = length / static_cast<float>(bins);
  const auto clamped = [&](float at) {
    return !(at > 0) ? 0 : at < static_cast<float>(size) ? static_cast<int64_t>(at) : size;
  };
  return {clamped(std::floor(static_cast<float>(bin) * each) + start),
          clamped(std::ceil(static_cast<float>(bin + 1) * each) + start)};
}

void roi_pool_tile(const KernelCall& call, int64_t region) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const int64_t channels = x.dims[1], height = x.dims[2], width = x.dims[3], rows = y.dims[2],
                columns = y.dims[3];
  const auto scale = static_cast<float>(call.attributes->get_or(key::kScale, 1));
  float roi[5];
  load(call.inputs[1], region * 5, 5, roi);
  for (int64_t c = 0; c < channels; ++c) {
    const int64_t plane = (static_cast<int64_t>(roi[0]) * channels + c) * height * width;
    for (int64_t r = 0; r < rows; ++r) {
      const auto [top, bottom] = pooled_span(roi[2] * scale, roi[4] * scale, r, rows, height);
      for (int64_t s = 0; s < columns; ++s) {
        const auto [left, right] = pooled_span(roi[1] * scale, roi[3] * scale, s, columns, width);
        double best = top < bottom && left < right ? -std::numeric_limits<double>::infinity() : 0;
        for (int64_t i = top; i < bottom; ++i)
          for (int64_t j = left; j < right; ++j)
            best = std::max(best, load_one<double>(x, plane + i * width + j));
        store_one<double>(y, ((region * channels + c) * rows + r) * columns + s, best);
      }
    }
  }
}

}  // namespace

void register_regions(std::vector<Kernel>& into) {
  into.push_back({Op::kNonMaxSuppression, suppression_shapes, grid_one, suppression_tile});
  into.push_back({Op::kRoiAlign, roi_align_shapes, region_grid, roi_align_tile});
  into.push_back({Op::kMaxRoiPool, roi_pool_shapes, region_grid, roi_pool_tile});
}

}  // namespace ark::kernels
