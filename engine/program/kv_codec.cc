#include "engine/program/kv_codec.h"

#include <array>
#include <cmath>

namespace ark {
namespace {

// The size of the largest number; NaN if one is.
float largest_of(const float* x, int64_t dim) {
  float most = 0;
  for (int64_t i = 0; i < dim; ++i) {
    const float size = std::fabs(x[i]);
    most = size <= most || std::isnan(most) ? most : size;
  }
  return most;
}

}  // namespace

std::span<const KvCodec> kv_codecs() {
  static constexpr auto kAll = []<class... C>(CodecList<C...>) {
    return std::array{C::kCodec...};
  }(KvCodecs{});
  return kAll;
}

const KvCodec* kv_codec_of(DType stored) {
  for (const KvCodec& codec : kv_codecs())
    if (codec.type == stored) return &codec;
  return nullptr;
}

void store_kv(const KvCodec& codec, const KvPlace& to, const float* x, int64_t dim) {
  float factor = 1;
  if (codec.format.has_scales()) {
    const float most = largest_of(x, dim);
    const bool is_finite = std::isfinite(most), is_zero = most < kKvLeast;
    factor = is_finite && !is_zero ? codec.format.largest / most : 0;
    *to.scale = is_zero ? 0 : is_finite ? most / codec.format.largest : most;
  }
  with_kv(codec.type, [&](auto type) {
    using C = decltype(type);
    auto* codes = reinterpret_cast<typename C::Element*>(to.codes) + to.first;
    if constexpr (!C::kCodec.format.has_scales()) {
      for (int64_t i = 0; i < dim; ++i) codes[i * to.stride] = C::narrow(x[i]);
    } else {
      for (int64_t i = 0; i < dim; ++i)
        codes[i * to.stride] = C::narrow(factor == 0 ? 0 : x[i] * factor);  // no 0 * infinity
    }
  });
}

void load_kv(const KvCodec& codec, const KvPlace& from, float* x, int64_t dim) {
  with_kv(codec.type, [&](auto type) {
    using C = decltype(type);
    const auto* codes = reinterpret_cast<const typename C::Element*>(from.codes) + from.first;
    const float scale = C::kCodec.format.has_scales() ? *from.scale : 1;
    for (int64_t i = 0; i < dim; ++i) x[i] = C::widen(codes[i * from.stride]) * scale;
  });
}

}  // namespace ark
