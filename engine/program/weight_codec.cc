#include "engine/program/weight_codec.h"

#include <cmath>
#include <span>

#include "base/error.h"

namespace ark {
namespace {

template <class... W>
std::span<const WeightCodec> table(CodecList<W...>) {
  static constexpr WeightCodec kTable[] = {W::kCodec...};
  return kTable;
}

}  // namespace

bool WeightCodec::holds(const Quantized& quantized) const {
  if (quantized.floating != DType::kUndefined) return has_codes && type == quantized.floating;
  return has_codes && is_integer(type) && bits >= quantized.bits;
}

const WeightCodec* codec_of(DType stored) {
  for (const WeightCodec& codec : table(WeightCodecs{}))
    if (codec.type == stored) return &codec;
  return nullptr;
}

const WeightCodec& codec_of(const Quantized& quantized) {
  const WeightCodec* best = nullptr;
  for (const WeightCodec& codec : table(WeightCodecs{}))
    if (codec.holds(quantized) && (!best || codec.bits < best->bits)) best = &codec;
  ARK_CHECK(best, "no codec holds a quantized weight");
  return *best;
}

BlockTerms terms_of(const Quantized& quantized) {
  const bool halves = quantized.scales->dtype == DType::kF16;
  if (quantized.offsets) return halves ? BlockTerms::kOffsets16 : BlockTerms::kOffsets;
  // Of fewer bits than the codec has, the middle is another.
  const int middle = middle_of(quantized.bits),
            zero = quantized.default_zero + (quantized.is_signed ? middle : 0);
  const bool in_middle = halves && !quantized.zeros && quantized.floating == DType::kUndefined &&
                         zero == middle && codec_of(quantized).bits == quantized.bits;
  return in_middle ? BlockTerms::kScales16 : BlockTerms::kZeros;
}

void decode_column(const WeightUse& use, const std::byte* data, int64_t n, int64_t k_size, float* to) {
  const WeightCodec& codec = *codec_of(use.stored);
  const int64_t panel = use.panel, lane = n % panel, bytes = codec.unit_bytes(use), pair = codec.pair_bytes();
  const std::byte* unit = data + n / panel * units_of(k_size, use.block) * bytes;
  if (use.block == 0) return load_f32(codec.type, unit, lane, panel, k_size, to);
  const DType term = has_halves(use.terms) ? DType::kF16 : DType::kF32;
  for (int64_t k = 0; k < k_size; k += use.block, unit += bytes) {
    const std::byte* const second = unit + panel * scale_bytes(use.terms);
    float scale, zero = static_cast<float>(middle_of(codec.bits));
    load_f32(term, unit, lane, 1, 1, &scale);
    if (use.terms != BlockTerms::kScales16)
      load_f32(use.terms == BlockTerms::kZeros ? DType::kU8 : term, second, lane, 1, 1, &zero);
    const std::byte* codes = unit + panel * terms_bytes(use.terms) + lane * pair;
    const int64_t count = std::min<int64_t>(use.block, k_size - k);
    float numbers[kMaxPanelBlock + 1];
    for (int64_t i = 0; i < count; i += 2)
      load_f32(codec.type, codes + i / 2 * panel * pair, 0, 1, 2, numbers + i);
    for (int64_t i = 0; i < count; ++i)
      to[k + i] = has_zeros(use.terms) ? (numbers[i] - zero) * scale : std::fma(numbers[i], scale, zero);
  }
}

}  // namespace ark
