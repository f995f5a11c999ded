// Where keys and values of a cache lie in the CPU's pages. Keys stand transposed in a head's part of a page,
// [dim][page_size], so that attention reads sixteen keys with one load; values [page_size][dim].
#pragma once

#include "base/ir/kernel.h"
#include "engine/program/kv_codec.h"

namespace ark {

struct KvPages {
  // `pages` [pages, heads, page_size, dim], of keys or of values.
  KvPages(const TensorView& pages, bool is_value)
      : codec(*kv_codec_of(pages.dtype)),
        heads(pages.dims[1]),
        size(pages.dims[2]),
        dim(pages.dims[3]),
        head_bytes(codec.format.head_bytes(size, dim)),
        start(pages.data),
        is_value(is_value) {}

  // A head's part of a page: codes, and the scales behind them, one a token; null where the type has none.
  std::byte* codes(int64_t page, int64_t head) const { return start + (page * heads + head) * head_bytes; }
  float* scales(std::byte* codes) const {
    if (!codec.format.has_scales()) return nullptr;
    return reinterpret_cast<float*>(codes + codec.format.code_bytes(size, dim));
  }
  // Of the token at `at` in the page.
  KvPlace place(int64_t page, int64_t head, int64_t at) const {
    std::byte* const own = codes(page, head);
    float* const scale = scales(own) ? scales(own) + at : nullptr;
    return is_value ? KvPlace{own, at * dim, 1, scale} : KvPlace{own, at, size, scale};
  }

  const KvCodec& codec;
  int64_t heads, size, dim, head_bytes;
  std::byte* start;
  bool is_value;
};

}  // namespace ark
