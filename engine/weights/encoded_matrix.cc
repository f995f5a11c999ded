#include "engine/weights/encoded_matrix.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/ir/quantized.h"
#include "engine/weights/block_fit.h"

// A function of several forms, for CPUs with other vectors, of which the program takes the best; what it calls is
// inlined into each.
#if defined(__clang__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ARK_FOR_EACH_CPU
#else
#define ARK_FOR_EACH_CPU [[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]]
#endif

namespace ark {
namespace {

constexpr int kLanes = 16;          // blocks that are encoded side by side, one of each of as many columns
constexpr int64_t kMostRows = 128;  // of a block
constexpr int64_t kWindow = 512 << 10;  // bytes of the payload that a part holds at a time, about

// A number for each lane. Loops over all lanes are written so that compilers make vectors of them (-O3 in
// CMakeLists.txt).
using Lanes = std::array<float, kLanes>;
using Flags = std::array<uint32_t, kLanes>;  // 0 or ~0

// What each lane's block is encoded by.
struct LaneTerms {
  Lanes scale, other;
};

// Adding it and taking it away rounds |x| < 2^22 to whole numbers.
constexpr float kRounder = 12582912;

}  // namespace

struct EncodedMatrix::Tile {
  int64_t n = 0, block = 0;  // the first column; the number of its blocks
  int rows = 0, lanes = 0;
  alignas(64) float at[kMostRows][kLanes];
  uint8_t codes[kMostRows][kLanes];
  BlockFit fits[kLanes];

  [[gnu::always_inline]] LaneTerms guess(const CodeForm& form, int span) const;
  // Encodes the `open` lanes, and closes those whose numbers come back bit for bit.
  template <BlockTerms kTerms>
  [[gnu::always_inline]] void try_terms(float most, const LaneTerms& terms, const CodeRule& rule,
                                        Flags& open);
  // Encodes the lanes by the rule's hint, and tells which are still open.
  Flags encode_as_most(const CodeForm& form, const CodeRule& rule);
  bool encode_exactly(const CodeForm& form, const CodeRule& rule);
  bool round(const CodeForm& form);
};

// Terms by which most blocks are made: steps between the smallest and the largest number, or around zero.
inline LaneTerms EncodedMatrix::Tile::guess(const CodeForm& form, int span) const {
  Lanes low, high;
  for (int l = 0; l < kLanes; ++l) low[l] = high[l] = at[0][l];
  for (int i = 1; i < rows; ++i) {
    for (int l = 0; l < kLanes; ++l) {
      low[l] = at[i][l] < low[l] ? at[i][l] : low[l];
      high[l] = at[i][l] > high[l] ? at[i][l] : high[l];
    }
  }
  const bool zeros = has_zeros(form.terms), halves = has_halves(form.terms);
  const auto steps = static_cast<float>(std::abs(span)), usual = static_cast<float>(middle_of(form.bits));
  LaneTerms terms;
  for (std::size_t l = 0; l < kLanes; ++l) {
    float scale = (high[l] - low[l]) / steps, other = low[l];
    if (zeros || span < 0) {
      const float extreme = -low[l] > high[l] ? low[l] : high[l];
      // A code that is as far from zero as only the smallest can be is the smallest.
      scale = steps == usual ? -extreme / steps : std::fabs(extreme) / steps;
      if (halves) scale = rounded_to_f16(scale);
      other = zeros ? usual : -usual * scale;
    }
    terms.scale[l] = halves ? rounded_to_f16(scale) : scale;
    terms.other[l] = halves ? rounded_to_f16(other) : other;
  }
  return terms;
}

template <BlockTerms kTerms>
inline void EncodedMatrix::Tile::try_terms(float most, const LaneTerms& terms, const CodeRule& rule,
                                           Flags& open) {
  constexpr bool kZeros = has_zeros(kTerms);
  Lanes inverse;
  for (int l = 0; l < kLanes; ++l) inverse[l] = terms.scale[l] == 0 ? 0 : 1 / terms.scale[l];
  const float signed_zero = rule.keeps_signs ? -0.0f : 0.0f;
  Flags same = open;
  for (int i = 0; i < rows; ++i) {
    std::array<uint8_t, kLanes> whole;
    for (int l = 0; l < kLanes; ++l) {
      const float v = at[i][l], other = terms.other[l], scale = terms.scale[l];
      const float steps = ((kZeros ? v : v - other) * inverse[l] + kRounder) - kRounder;
      const float code = kZeros ? steps + other : steps;
      // Of f16 terms an exact product.
      float back = kZeros ? (code - other) * scale + signed_zero : code * scale + other;
      if (kTerms == BlockTerms::kOffsets) back = std::fma(code, scale, other);
      const bool is_code = code >= 0 && code <= most;
      same[l] &= std::bit_cast<uint32_t>(back) == std::bit_cast<uint32_t>(v) && is_code ? ~0u : 0u;
      whole[l] = static_cast<uint8_t>(static_cast<int>(is_code ? code : 0));
    }
    for (int l = 0; l < kLanes; ++l) codes[i][l] = open[l] ? whole[l] : codes[i][l];
  }
  for (int l = 0; l < lanes; ++l)
    if (same[l]) fits[l] = {terms.scale[l], terms.other[l], rule.hint};
  for (int l = 0; l < kLanes; ++l) open[l] &= ~same[l];
}

namespace {

bool is_any(const Flags& flags) {
  return std::any_of(flags.begin(), flags.end(), [](uint32_t flag) { return flag != 0; });
}

}  // namespace

ARK_FOR_EACH_CPU Flags EncodedMatrix::Tile::encode_as_most(const CodeForm& form, const CodeRule& rule) {
  Flags open;
  for (int l = 0; l < kLanes; ++l) open[l] = l < lanes ? ~0u : 0u;
  if (rule.hint == 0) return open;
  const auto most = static_cast<float>((1 << form.bits) - 1);
  LaneTerms terms = guess(form, rule.hint);
  if (form.terms == BlockTerms::kOffsets16) {
    try_terms<BlockTerms::kOffsets16>(most, terms, rule, open);
  } else if (form.terms == BlockTerms::kScales16) {
    try_terms<BlockTerms::kScales16>(most, terms, rule, open);
  } else {
    const Lanes first = terms.scale;
    for (const float towards : {NAN, 0.0f, INFINITY}) {  // the quotient of rounded numbers, its neighbours
      for (int l = 0; !std::isnan(towards) && l < kLanes; ++l)
        terms.scale[l] = std::nextafterf(first[l], std::copysign(towards, first[l]));
      if (form.terms == BlockTerms::kZeros)
        try_terms<BlockTerms::kZeros>(most, terms, rule, open);
      else
        try_terms<BlockTerms::kOffsets>(most, terms, rule, open);
      if (!is_any(open)) break;
    }
  }
  return open;
}

bool EncodedMatrix::Tile::encode_exactly(const CodeForm& form, const CodeRule& rule) {
  const Flags open = encode_as_most(form, rule);
  if (!is_any(open)) return true;
  for (int l = 0; l < lanes; ++l) {
    if (!open[l]) continue;
    float values[kMostRows];
    uint8_t column[kMostRows];
    for (int i = 0; i < rows; ++i) values[i] = at[i][l];
    const std::span block_of_lane(values, static_cast<std::size_t>(rows));
    if (!fit_block(block_of_lane, form.bits, form.terms, rule.hint, rule.keeps_signs, fits[l], column))
      return false;
    for (int i = 0; i < rows; ++i) codes[i][l] = column[i];
  }
  return true;
}

ARK_FOR_EACH_CPU bool EncodedMatrix::Tile::round(const CodeForm& form) {
  const auto most = static_cast<float>((1 << form.bits) - 1);
  const LaneTerms terms = guess(form, form.bits == 8 ? -127 : static_cast<int>(most));
  Flags finite;
  Lanes zero, start;
  for (int l = 0; l < kLanes; ++l) {
    finite[l] = std::isfinite(terms.scale[l]) && std::isfinite(terms.other[l]) ? ~0u : 0u;
    zero[l] = has_zeros(form.terms) ? terms.other[l] : 0;
    start[l] = terms.other[l] - zero[l];
    fits[l] = {terms.scale[l], terms.other[l], 0};
  }
  for (int i = 0; i < rows; ++i) {
    for (int l = 0; l < kLanes; ++l) {
      const float scale = terms.scale[l];
      const float code = scale == 0 ? zero[l] : std::nearbyint((at[i][l] - start[l]) / scale) + zero[l];
      finite[l] &= std::isfinite(code) ? ~0u : 0u;
      const float least = code > 0 ? code : 0;  // NaN, too, is 0
      codes[i][l] = static_cast<uint8_t>(static_cast<int>(least < most ? least : most));
    }
  }
  return std::all_of(finite.begin(), finite.begin() + lanes, [](uint32_t flag) { return flag != 0; });
}

EncodedMatrix::EncodedMatrix(ConstantPtr payload, int k_axis, CodeForm form)
    : payload_(std::move(payload)), k_axis_(k_axis), form_(form) {
  const Dims& dims = payload_->dims;
  ARK_CHECK(dims.size() == 2 && payload_->perm.empty() && payload_->begin.empty() &&
                is_floating(payload_->dtype) && form.block % 2 == 0 && form.block <= kMostRows,
            "codes of something that is no matrix of floats");
  k_ = dims[static_cast<std::size_t>(k_axis)], n_ = dims[static_cast<std::size_t>(1 - k_axis)];
  blocks_ = (k_ + form.block - 1) / form.block;
  // Zeros of two blocks may share a byte, so blocks are dealt in pairs.
  const int64_t unit = k_axis == 0 ? 2 * form.block : kLanes;
  step_ = std::max<int64_t>(1, kWindow / std::max<int64_t>(1, unit * dims[1] * 4)) * unit;
  parts_ = (dims[0] + step_ - 1) / step_;
  row_bytes_ = (k_ * form.bits + 7) / 8;
  zero_bytes_ = (blocks_ * form.bits + 7) / 8;
  codes_ = Tensor::empty(DType::kU8, {n_, row_bytes_});
  scales_ = Tensor::empty(has_halves(form.terms) ? DType::kF16 : DType::kF32, {n_, blocks_});
  if (!has_zeros(form.terms)) others_ = Tensor::empty(scales_.dtype, {n_, blocks_});
  if (form.terms == BlockTerms::kZeros) others_ = Tensor::zeros(DType::kU8, {n_, zero_bytes_});
}

// `window`: the payload's rows from first_row on, as f32.
void EncodedMatrix::read_tile(const float* window, int64_t first_row, bool keeps_signs, Tile& tile) const {
  const int64_t columns = payload_->dims[1], k = tile.block * form_.block;
  tile.rows = static_cast<int>(std::min(form_.block, k_ - k));
  tile.lanes = static_cast<int>(std::min<int64_t>(kLanes, n_ - tile.n));
  const auto lanes = static_cast<std::size_t>(tile.lanes);
  if (tile.lanes < kLanes) std::memset(tile.at, 0, sizeof tile.at);
  if (k_axis_ == 0) {
    const float* from = window + (k - first_row) * columns + tile.n;
    for (int i = 0; i < tile.rows; ++i, from += columns) std::memcpy(tile.at[i], from, lanes * sizeof(float));
  }
  for (std::size_t l = 0; k_axis_ == 1 && l < lanes; ++l) {
    const float* from = window + (tile.n - first_row + static_cast<int64_t>(l)) * columns + k;
    for (int i = 0; i < tile.rows; ++i) tile.at[i][l] = from[i];
  }
  for (int i = 0; !keeps_signs && i < tile.rows; ++i)
    for (float& v : tile.at[i]) v += 0.0f;
}

void EncodedMatrix::put(const Tile& tile) {
  for (int l = 0; l < tile.lanes; ++l) {
    const int64_t n = tile.n + l, place = n * blocks_ + tile.block;
    uint8_t* to = codes_.as<uint8_t>() + n * row_bytes_ + tile.block * form_.block * form_.bits / 8;
    if (form_.bits == 8) {
      for (int i = 0; i < tile.rows; ++i) to[i] = tile.codes[i][l];
    } else {
      for (int i = 0; i + 1 < tile.rows; i += 2)
        *to++ = static_cast<uint8_t>(tile.codes[i][l] | tile.codes[i + 1][l] << 4);
      if (tile.rows % 2) *to = tile.codes[tile.rows - 1][l];
    }
    const BlockFit& fit = tile.fits[l];
    store_f32(scales_.dtype, scales_.data.get(), place, 1, &fit.scale);
    if (!has_zeros(form_.terms)) {
      store_f32(others_.dtype, others_.data.get(), place, 1, &fit.other);
    } else if (form_.terms == BlockTerms::kZeros) {
      const int64_t bit = tile.block * form_.bits;
      others_.as<uint8_t>()[n * zero_bytes_ + bit / 8] |=
          static_cast<uint8_t>(static_cast<int>(fit.other) << bit % 8);
    }
  }
}

bool EncodedMatrix::encode(int64_t part, CodeRule rule) {
  const int64_t first = part * step_, count = std::min(step_, payload_->dims[0] - first);
  const Tensor window = materialise_rows(*payload_, first, count);
  std::vector<float> widened;
  const float* numbers = window.as<const float>();
  if (window.dtype != DType::kF32) {
    widened.resize(static_cast<std::size_t>(window.size()));
    load_f32(window.dtype, window.data.get(), 0, 1, window.size(), widened.data());
    numbers = widened.data();
  }
  const bool by_k = k_axis_ == 0;
  const int64_t first_n = by_k ? 0 : first, end_n = by_k ? n_ : first + count;
  const int64_t first_block = by_k ? first / form_.block : 0;
  const int64_t end_block = by_k ? (first + count + form_.block - 1) / form_.block : blocks_;
  Tile tile;
  for (tile.block = first_block; tile.block < end_block; ++tile.block) {
    for (tile.n = first_n; tile.n < end_n; tile.n += kLanes) {
      read_tile(numbers, first, rule.keeps_signs, tile);
      if (!(rule.is_exact ? tile.encode_exactly(form_, rule) : tile.round(form_))) return false;
      put(tile);
    }
  }
  return true;
}

ConstantPtr EncodedMatrix::finish(const std::string& name) const {
  Quantized q{.rows = n_, .columns = k_, .bits = form_.bits, .axis = 1, .block = form_.block};
  q.codes = make_constant(codes_);
  q.code_stride = row_bytes_ * 8 / form_.bits;
  q.scales = make_constant(scales_);
  if (form_.terms == BlockTerms::kZeros) {
    q.zeros = make_constant(others_);
    q.zero_stride = zero_bytes_ * 8 / form_.bits;
  } else if (form_.terms == BlockTerms::kScales16) {
    q.default_zero = middle_of(form_.bits);
  } else {
    q.offsets = make_constant(others_);
  }
  ConstantPtr constant = make_quantized(std::move(q), name);
  ARK_CHECK(constant, "codes that do not fit their matrix");
  return constant;
}

const Tensor& MatrixSamples::at(int64_t place) {
  Tensor& piece = pieces_[static_cast<std::size_t>(place)];
  if (piece.data) return piece;
  const int64_t k_size = payload_->dims[static_cast<std::size_t>(k_axis_)];
  const int64_t n_size = payload_->dims[static_cast<std::size_t>(1 - k_axis_)];
  const int64_t k = (k_size + kMostRows - 1) / kMostRows * place / kPlaces * kMostRows;
  const int64_t n = n_size * ((place * 5 + 2) % kPlaces) / kPlaces;
  ConstantPtr part = sliced(sliced(payload_, k_axis_, k, std::min(k + kMostRows, k_size)), 1 - k_axis_, n,
                            std::min(n + kColumns, n_size));
  if (k_axis_ == 0) part = transposed(part, {1, 0});
  return piece = materialise(*part);
}

bool MatrixSamples::fit(const CodeForm& form, CodeRule& rule) {
  std::map<int, int> spans;
  for (int64_t place = 0; place < kPlaces; ++place) {
    const Tensor& piece = at(place);
    const int64_t rows = piece.dims[1], count = std::min(form.block, rows);
    for (int64_t c = 0; c < piece.dims[0]; ++c) {
      float values[kMostRows];
      uint8_t codes[kMostRows];
      for (int64_t i = 0; i < count; ++i)
        values[i] = piece.as<const float>()[c * rows + i] + (rule.keeps_signs ? -0.0f : 0.0f);
      BlockFit fit;
      const std::span block_of_column(values, static_cast<std::size_t>(count));
      if (!fit_block(block_of_column, form.bits, form.terms, rule.hint, rule.keeps_signs, fit, codes))
        return false;
      if (fit.span != 0) rule.hint = fit.span, ++spans[fit.span];
    }
  }
  rule.hint = 0;
  for (const auto& [span, count] : spans)
    if (rule.hint == 0 || count > spans[rule.hint]) rule.hint = span;
  return true;
}

}  // namespace ark
