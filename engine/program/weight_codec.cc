#include "engine/program/weight_codec.h"

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

void decode_column(const WeightCodec& codec, int64_t block, const std::byte* data, int64_t n, int64_t k_size,
                   int64_t panel, float* to) {
  const int64_t lane = n % panel, bytes = codec.unit_bytes(panel, block), pair = codec.pair_bytes();
  const std::byte* unit = data + n / panel * codec.panel_bytes(k_size, panel, block);
  if (block == 0) return load_f32(codec.type, unit, lane, panel, k_size, to);
  for (int64_t k = 0; k < k_size; k += block, unit += bytes) {
    const float scale = reinterpret_cast<const float*>(unit)[lane];
    const auto zero = static_cast<float>(std::to_integer<int>(unit[zeros_offset(panel) + lane]));
    const std::byte* codes = unit + codes_offset(panel) + lane * pair;
    for (int64_t i = 0; i < block && k + i < k_size; ++i) {
      float code;
      load_f32(codec.type, codes + i / 2 * panel * pair, i % 2, 1, 1, &code);
      to[k + i] = (code - zero) * scale;
    }
  }
}

}  // namespace ark
