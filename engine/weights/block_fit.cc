#include "engine/weights/block_fit.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/dtype.h"

namespace ark {
namespace {

bool same_bits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

// The numbers that round to v, as an interval of doubles; its ends may round elsewhere.
struct Rounding {
  double low, high;
  explicit Rounding(float v) {
    const float inf = std::numeric_limits<float>::infinity();
    low = (static_cast<double>(v) + std::nextafterf(v, -inf)) / 2;
    high = (static_cast<double>(v) + std::nextafterf(v, inf)) / 2;
  }
};

// Relative error of a quotient of two rounded numbers, with room.
constexpr double kSlack = 0x1p-22;

// |value| / scale as a whole number; -1 if it is none.
int whole_quotient(float value, double scale, int most) {
  const double quotient = std::fabs(static_cast<double>(value)) / scale, whole = std::nearbyint(quotient);
  return std::fabs(quotient - whole) <= whole * kSlack && whole <= most ? static_cast<int>(whole) : -1;
}

// Codes around a zero whose largest distance from it is `span`, that of the number `largest`. Of kScales16 the zero is
// their middle and the scale has 16 bits.
bool fit_zeros(std::span<const float> values, int bits, BlockTerms terms, float largest, int span,
               bool keeps_signs, BlockFit& fit, uint8_t* codes) {
  const int most = (1 << bits) - 1;
  const double guess = static_cast<double>(largest) / span;
  double low = 0, high = std::numeric_limits<double>::infinity();
  int least = 0, greatest = 0;
  for (const float v : values) {
    const int distance = whole_quotient(v, guess, most);
    if (distance < 0) return false;
    least = std::min(least, v < 0 ? -distance : 0);
    greatest = std::max(greatest, v > 0 ? distance : 0);
    if (distance == 0) continue;
    const Rounding r(std::fabs(v));
    low = std::max(low, r.low / distance);
    high = std::min(high, r.high / distance);
    if (low > high) return false;
  }
  if (greatest - least > most) return false;
  const bool is_narrow = terms == BlockTerms::kScales16;
  const auto middle = low == 0 ? 1.0f : static_cast<float>((low + high) / 2);
  const float sizes[] = {is_narrow ? rounded_to_f16(middle) : middle, std::nextafterf(middle, 0.0f),
                         std::nextafterf(middle, INFINITY)};
  for (const float size : std::span(sizes).first(is_narrow ? 1 : 3)) {
    for (const float scale : {size, -size}) {  // of the one zeros are positive, of the other negative
      const int below = scale > 0 ? -least : greatest, above = scale > 0 ? greatest : -least;
      const int usual = middle_of(bits);
      const bool is_usual = below <= usual && above < usual;
      if (is_narrow && !is_usual) continue;
      const int zero = is_usual ? usual : below;
      bool all = true;
      for (std::size_t i = 0; i < values.size() && all; ++i) {
        codes[i] = static_cast<uint8_t>(std::lrint(values[i] / static_cast<double>(scale)) + zero);
        all =
            same_bits(static_cast<float>(codes[i] - zero) * scale + (keeps_signs ? -0.0f : 0.0f), values[i]);
      }
      if (!all) continue;
      fit = {scale, static_cast<float>(zero), span};
      return true;
    }
  }
  return false;
}

bool encode(std::span<const float> values, int most, float scale, float offset, uint8_t* codes) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double code =
        scale == 0 ? 0
                   : std::nearbyint((static_cast<double>(values[i]) - offset) / static_cast<double>(scale));
    if (!(code >= 0 && code <= most) ||
        !same_bits(std::fma(static_cast<float>(code), scale, offset), values[i]))
      return false;
    codes[i] = static_cast<uint8_t>(code);
  }
  return true;
}

// Codes from `first` to first + span, of the numbers from `low` to `high`.
bool fit_offsets(std::span<const float> values, int bits, BlockTerms terms, float low, float high, int first,
                 int span, BlockFit& fit, uint8_t* codes) {
  const int most = (1 << bits) - 1;
  const double step = (static_cast<double>(high) - low) / span, start = low - first * step;
  if (terms == BlockTerms::kOffsets16) {
    fit = {rounded_to_f16(static_cast<float>(step)), rounded_to_f16(static_cast<float>(start)), span};
    return std::fabs(fit.scale - step) <= step * 0x1p-8 && encode(values, most, fit.scale, fit.other, codes);
  }
  // How far apart may codes lie, and, that settled, where may code 0 lie?
  double least = 0, greatest = std::numeric_limits<double>::infinity();
  const Rounding bottom(low);
  for (const float v : values) {
    const double steps = std::nearbyint((static_cast<double>(v) - low) / step);
    if (steps == 0) continue;
    const Rounding r(v);
    least = std::max(least, (r.low - bottom.high) / steps);
    greatest = std::min(greatest, (r.high - bottom.low) / steps);
    if (least > greatest) return false;
  }
  const auto middle = static_cast<float>((least + greatest) / 2);
  for (const float scale :
       {static_cast<float>(step), middle, std::nextafterf(middle, 0.0f), std::nextafterf(middle, INFINITY)}) {
    double from = -std::numeric_limits<double>::infinity(), to = std::numeric_limits<double>::infinity();
    for (const float v : values) {
      const double above = (first + std::nearbyint((static_cast<double>(v) - low) / step)) * scale;
      const Rounding r(v);
      from = std::max(from, r.low - above);
      to = std::min(to, r.high - above);
    }
    const float offset = first == 0 ? low : static_cast<float>((from + to) / 2);
    if (from > to || !encode(values, most, scale, offset, codes)) continue;
    fit = {scale, offset, span};
    return true;
  }
  return false;
}

}  // namespace

bool fit_block(std::span<const float> values, int bits, BlockTerms terms, int hint, bool keeps_signs,
               BlockFit& fit, uint8_t* codes) {
  const int most = (1 << bits) - 1;
  float low = values[0], high = values[0];
  for (const float v : values) {
    if (!std::isfinite(v)) return false;
    low = std::min(low, v);
    high = std::max(high, v);
  }
  const float largest = std::max(-low, high);
  const auto with_zeros = [&](BlockFit& to) {
    if (largest == 0) return fit_zeros(values, bits, terms, 1, 1, keeps_signs, to, codes);
    if (hint != 0 && fit_zeros(values, bits, terms, largest, std::abs(hint), keeps_signs, to, codes))
      return true;
    for (int span = 1; span <= most; ++span)
      if (fit_zeros(values, bits, terms, largest, span, keeps_signs, to, codes)) return true;
    return false;
  };
  if (has_zeros(terms)) return with_zeros(fit);
  const bool narrow = terms == BlockTerms::kOffsets16;
  if (low == high) {
    fit = {0, low, hint};
    return (!narrow || rounded_to_f16(low) == low) && encode(values, most, 0, low, codes);
  }
  if (hint > 0 && fit_offsets(values, bits, terms, low, high, 0, hint, fit, codes)) return true;
  for (int span = most; span > 0; span = span > 63 ? span / 2 : span == 63 ? 31 : span - 1) {
    const int firsts = span <= 31 ? std::min(most, 31) - span : 0;
    for (int first = 0; first <= firsts; ++first)
      if (fit_offsets(values, bits, terms, low, high, first, span, fit, codes)) return true;
  }
  // Codes around a zero are such codes too, where the zero's product is a number of that type.
  BlockFit zeros;
  if (!with_zeros(zeros)) return false;
  fit = {zeros.scale, -zeros.other * zeros.scale, -zeros.span};
  if (narrow && (rounded_to_f16(fit.scale) != fit.scale || rounded_to_f16(fit.other) != fit.other))
    return false;
  return encode(values, most, fit.scale, fit.other, codes);
}

}  // namespace ark
