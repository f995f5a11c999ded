// Paged attention against a dense softmax in f64 over keys and values rounded as their stored type says, and against
// itself under other company.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "engine/cpu/kv_pages.h"
#include "engine/cpu/step_kernel.h"
#include "tests/fixtures.h"

namespace ark::test {
namespace {

struct Shape4 {
  int64_t heads = 6, kv_heads = 2, key_dim = 24, value_dim = 72, page_size = 16, length = 41;
  int64_t window = 0;
  float softcap = 0;
  bool slopes = false, sinks = false;
  DType stored = DType::kF32;
  Precision precision = Precision::kF32;
};

TensorView view(void* data, DType dtype, std::initializer_list<int64_t> dims) {
  return TensorView{static_cast<std::byte*>(data), dtype, 0, {}}.sized(std::vector<int64_t>(dims));
}
TensorView view(std::vector<float>& data, std::initializer_list<int64_t> dims) {
  return view(data.data(), DType::kF32, dims);
}

// To nearest even among binary floats of `bits` digits whose least normal number is 2^least.
double nearest(double x, int bits, int least) {
  if (x == 0) return x;
  const double unit = std::ldexp(1, std::max(std::ilogb(x), least) - bits + 1);
  return std::nearbyint(x / unit) * unit;
}

// What a token's key or value of one head comes back as, by the words of engine/program/kv_codec.h.
void round_as(DType stored, float* x, int64_t dim) {
  const float largest = stored == DType::kI8 ? 127 : stored == DType::kF8E4M3 ? 448 : 0;
  float most = 0;
  for (int64_t i = 0; i < dim; ++i) most = std::max(most, std::fabs(x[i]));
  const bool is_zero = largest > 0 && most < 0x1p-100f;
  const float scale = most / largest, factor = largest / most;
  for (int64_t i = 0; i < dim; ++i) {
    if (stored == DType::kF16) x[i] = static_cast<float>(nearest(x[i], 11, -14));
    if (stored == DType::kBF16) x[i] = static_cast<float>(nearest(x[i], 8, -126));
    if (largest == 0) continue;
    const double code = stored == DType::kI8 ? std::nearbyint(x[i] * factor) : nearest(x[i] * factor, 4, -6);
    x[i] = is_zero ? 0 : static_cast<float>(std::clamp<double>(code, -largest, largest) * scale);
  }
}

// One sequence of `length` tokens in slot 1, its pages scattered; all queries known.
struct Case {
  explicit Case(const Shape4& shape) : s(shape), pages((s.length + s.page_size - 1) / s.page_size) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& v, int64_t n) {
      v.resize(static_cast<std::size_t>(n));
      for (float& x : v) x = normal(random);
    };
    fill(q, s.length * s.heads * s.key_dim);
    fill(k, s.length * s.kv_heads * s.key_dim);
    fill(v, s.length * s.kv_heads * s.value_dim);
    fill(slopes, s.heads);
    fill(sinks, s.heads);
    // What lies in a page beyond the sequence must not matter, not even NaN, which these bytes are in all types.
    const auto bytes_of_pages = [&](int64_t dim) {
      return static_cast<std::size_t>((pages + 1) * s.kv_heads *
                                      kv_codec_of(s.stored)->format.head_bytes(s.page_size, dim));
    };
    key_pages.assign(bytes_of_pages(s.key_dim), std::byte{0xFF});
    value_pages.assign(bytes_of_pages(s.value_dim), std::byte{0xFF});
    rounded_k = k, rounded_v = v;
    for (int64_t i = 0; i < s.length * s.kv_heads; ++i) {
      round_as(s.stored, rounded_k.data() + i * s.key_dim, s.key_dim);
      round_as(s.stored, rounded_v.data() + i * s.value_dim, s.value_dim);
    }
    state.page_size = static_cast<int32_t>(s.page_size);
    state.pages_per_slot = static_cast<int32_t>(pages);
    state.page_tables.assign(static_cast<std::size_t>(2 * pages), 0);
    for (int64_t p = 0; p < pages; ++p) state.page_tables[pages + p] = static_cast<int32_t>(pages - p);
    for (int64_t h = 0; h < s.heads; ++h) facts.head_map.push_back(h / (s.heads / s.kv_heads));
    facts.scale = 0.3f;
    facts.softcap = s.softcap;
    facts.window = s.window;
  }

  // Appends and attends tokens [first, last) as one chunk, on so many processors.
  void run(int64_t first, int64_t last, Isa isa, std::vector<float>& out, int32_t processors = 1) {
    const int64_t n = last - first;
    std::vector<float> qs(q.begin() + first * s.heads * s.key_dim, q.begin() + last * s.heads * s.key_dim);
    std::vector<float> ks(k.begin() + first * s.kv_heads * s.key_dim,
                          k.begin() + last * s.kv_heads * s.key_dim);
    std::vector<float> vs(v.begin() + first * s.kv_heads * s.value_dim,
                          v.begin() + last * s.kv_heads * s.value_dim);
    std::vector<float> result(static_cast<std::size_t>(n * s.heads * s.value_dim), NAN);
    StepFrame frame;
    for (int64_t i = 0; i < n; ++i) {
      frame.positions.push_back(static_cast<int32_t>(first + i));
      frame.slots.push_back(1);
      if (i % kItemTokens == 0) {
        frame.items.push_back({1, static_cast<int32_t>(i),
                               static_cast<int32_t>(std::min<int64_t>(kItemTokens, n - i)),
                               static_cast<int32_t>(first + i)});
      }
    }
    const TensorView keys = this->keys(), values = this->values();
    const std::vector<TensorView> append = {view(ks, {n, s.kv_heads, s.key_dim}),
                                            view(vs, {n, s.kv_heads, s.value_dim}), keys, values};
    const std::vector<TensorView> attend = {view(qs, {n, s.heads, s.key_dim}),
                                            keys,
                                            values,
                                            s.slopes ? view(slopes, {s.heads}) : TensorView{},
                                            s.sinks ? view(sinks, {s.heads}) : TensorView{},
                                            view(result, {n, s.heads, s.value_dim})};
    Variant variant{.code = OpCode::kAttention};
    variant.precision = s.precision;
    PhaseCall call;
    call.variant = &variant;
    call.facts = &facts;
    call.simd = &simd::table_of(isa);
    call.frame = &frame;
    call.state = &state;
    call.operands = append;
    call.last = call.grid = n;
    find_step_kernel(OpCode::kKvAppend).run(call);
    const StepKernel& kernel = find_step_kernel(OpCode::kAttention);
    const PhaseLimits limits{&variant, &facts, attend, s.length, processors};
    Scratch scratch(kernel.scratch(limits));
    std::vector<float> shared(static_cast<std::size_t>(kernel.shared(limits)), NAN);
    call.scratch = &scratch;
    call.operands = attend;
    call.last = call.grid = static_cast<int64_t>(frame.items.size()) * s.kv_heads;
    call.processors = processors;
    call.shared = shared;
    for (int32_t p = processors; p-- > 0;) {
      scratch.reset();
      call.processor = p;
      kernel.run(call);
    }
    if (processors > 1) kernel.join(call);
    out.insert(out.end(), result.begin(), result.end());
  }

  TensorView keys() {
    return view(key_pages.data(), s.stored, {pages + 1, s.kv_heads, s.page_size, s.key_dim});
  }
  TensorView values() {
    return view(value_pages.data(), s.stored, {pages + 1, s.kv_heads, s.page_size, s.value_dim});
  }

  // [value_dim]
  std::vector<double> exact(int64_t i, int64_t h) const {
    const auto kv = facts.head_map[h];
    double largest = s.sinks ? sinks[h] : -INFINITY, sum = 0;
    std::vector<double> scores, total(static_cast<std::size_t>(s.value_dim));
    for (int64_t j = 0; j <= i; ++j) {
      double dot = 0;
      for (int64_t e = 0; e < s.key_dim; ++e) {
        const float x = q[(i * s.heads + h) * s.key_dim + e];
        dot += (s.precision == Precision::kF32 ? x : nearest(x, 8, -126)) *
               rounded_k[(j * s.kv_heads + kv) * s.key_dim + e];
      }
      dot *= facts.scale;
      if (s.softcap > 0) dot = s.softcap * std::tanh(dot / s.softcap);
      if (s.slopes) dot += static_cast<double>(slopes[h]) * static_cast<double>(j - i);
      if (s.window > 0 && i - j >= s.window) dot = -INFINITY;
      scores.push_back(dot);
      largest = std::max(largest, dot);
    }
    if (s.sinks) sum = std::exp(sinks[h] - largest);
    for (int64_t j = 0; j <= i; ++j) {
      const double weight = std::exp(scores[j] - largest);
      sum += weight;
      for (int64_t d = 0; d < s.value_dim; ++d)
        total[d] += weight * rounded_v[(j * s.kv_heads + kv) * s.value_dim + d];
    }
    for (double& d : total) d /= sum;
    return total;
  }

  Shape4 s;
  int64_t pages;
  std::vector<float> q, k, v, slopes, sinks;
  std::vector<float> rounded_k, rounded_v;  // as their pages hold them
  std::vector<std::byte> key_pages, value_pages;
  SlotState state;
  VariantFacts facts;
};

std::vector<Shape4> shapes() {
  std::vector<Shape4> all(7);
  all[1].window = 9;
  all[2].softcap = 2;
  all[3].slopes = true;
  all[4].sinks = true;
  all[5].page_size = 5;
  all[6] = {.heads = 8, .kv_heads = 1, .key_dim = 64, .value_dim = 64, .page_size = 32, .length = 70};
  for (const KvCodec& codec : kv_codecs())
    for (const std::size_t shape : {0, 5, 6}) {
      if (codec.type == DType::kF32 || (is_sanitized() && shape == 6)) continue;
      all.push_back(all[shape]);
      all.back().stored = codec.type;
    }
  for (std::size_t shape = 0; shape < 7; ++shape) {
    all.push_back(all[shape]);
    all.back().stored = DType::kBF16;
    all.back().precision = Precision::kBF16Tiles;
  }
  return all;
}

TEST(Attention, EqualsDenseSoftmaxWithinItsBound) {
  for (const Shape4& shape : shapes()) {
    Case c(shape);
    std::vector<float> out;
    c.run(0, shape.length, best_isa(), out);
    for (int64_t i = 0; i < shape.length; ++i) {
      for (int64_t h = 0; h < shape.heads; ++h) {
        const std::vector<double> exact = c.exact(i, h);
        for (int64_t d = 0; d < shape.value_dim; ++d) {
          // Scores of size <= 16 with key_dim roundings, then length roundings of weights of values of size
          // <= 5; of types with scales, a product more for each. By tiles weights are rounded to 8 bits.
          const double bound =
              (static_cast<double>(shape.key_dim + 1) * 16 + static_cast<double>(shape.length + 1)) * 5 *
                  0x1p-24 +
              (shape.precision == Precision::kF32 ? 0 : 5 * 0x1p-9);
          const float got = out[(i * shape.heads + h) * shape.value_dim + d];
          ASSERT_TRUE(std::fabs(got - exact[d]) <= bound)
              << i << " " << h << " " << d << " " << name_of(shape.stored);
        }
      }
    }
  }
}

// Bit for bit, transposed or not; a stored token leaves its neighbours alone.
TEST(Attention, KeysAndValuesComeBackRoundedAsDocumented) {
  for (const Shape4& shape : shapes()) {
    Case c(shape);
    std::vector<float> out, got(static_cast<std::size_t>(std::max(shape.key_dim, shape.value_dim)));
    c.run(0, shape.length, best_isa(), out);
    for (const bool is_value : {false, true}) {
      const KvPages pages(is_value ? c.values() : c.keys(), is_value);
      for (int64_t i = 0; i < shape.length * shape.kv_heads; ++i) {
        const int64_t position = i / shape.kv_heads;
        const KvPlace place = pages.place(c.state.table(1)[position / shape.page_size], i % shape.kv_heads,
                                          position % shape.page_size);
        load_kv(pages.codec, place, got.data(), pages.dim);
        const float* want = (is_value ? c.rounded_v : c.rounded_k).data() + i * pages.dim;
        for (int64_t d = 0; d < pages.dim; ++d)
          ASSERT_EQ(got[d], want[d]) << name_of(shape.stored) << " token and head " << i << " at " << d;
      }
    }
  }
}

// Rows of zeros, of what is too small for a scale, with one number far from the others, infinite, NaN.
TEST(Attention, CodesOfUnusualRows) {
  const float kInf = INFINITY;
  for (const KvCodec& codec : kv_codecs()) {
    SCOPED_TRACE(codec.name);
    std::byte codes[16];
    float scale = 7, x[4], got[4];
    const auto stored = [&](float a, float b, float c, float d) {
      const KvPlace place{codes, 0, 1, &scale};
      x[0] = a, x[1] = b, x[2] = c, x[3] = d;
      store_kv(codec, place, x, 4);
      load_kv(codec, place, got, 4);
    };
    stored(0, -0.f, 0, 0);
    for (const float v : got) EXPECT_EQ(v, 0);
    stored(0x1p-101f, -0x1p-120f, 0, 0x1p-149f);
    for (const float v : got) EXPECT_TRUE(std::fabs(v) <= 0x1p-101f);
    stored(1, -1000, 3, 0.001f);
    round_as(codec.type, x, 4);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(got[i], x[i]) << i;
    for (const float wrong : {kInf, -kInf, NAN}) {
      stored(1, wrong, 2, 3);
      EXPECT_FALSE(std::isfinite(got[1]));
      EXPECT_EQ(std::isfinite(got[0]), !codec.format.has_scales()) << "a scale is of the whole row";
    }
  }
}

TEST(Attention, ChunksAndInstructionSetsGiveEqualBits) {
  for (const Shape4& shape : shapes()) {
    std::vector<float> whole;
    Case(shape).run(0, shape.length, Isa::kScalar, whole);
    std::vector<Isa> isas = {Isa::kScalar, best_isa()};
    if (best_isa() > Isa::kAvx2) isas.push_back(Isa::kAvx2);
    for (const Isa isa : isas) {
      for (const int64_t chunk : {1, 7, 41}) {
        Case c(shape);
        std::vector<float> out;
        for (int64_t i = 0; i < shape.length; i += chunk)
          c.run(i, std::min(i + chunk, shape.length), isa, out);
        ASSERT_EQ(out.size(), whole.size());
        EXPECT_EQ(std::memcmp(out.data(), whole.data(), out.size() * sizeof(float)), 0)
            << simd::table_of(isa).name << " " << chunk << " " << name_of(shape.stored);
      }
    }
  }
}

// What a later token's value is concerns no earlier one, not even where it is infinite.
TEST(Attention, RowsOfAChunkDoNotSeeInfiniteValuesOfLaterOnes) {
  for (Shape4 shape : {shapes().front(), shapes().back()}) {
    std::vector<float> alone, together;
    Case c(shape);
    for (int64_t i = 0; i < shape.kv_heads * shape.value_dim; ++i)
      c.v[30 * shape.kv_heads * shape.value_dim + i] = INFINITY;
    c.run(0, 30, best_isa(), alone);
    c.run(0, shape.length, best_isa(), together);
    EXPECT_EQ(std::memcmp(alone.data(), together.data(), alone.size() * sizeof(float)), 0);
    EXPECT_TRUE(std::isinf(together[30 * shape.heads * shape.value_dim]));
  }
}

// A row's keys are several spans, which processors share; some see the end of a span's window, or begin a span.
TEST(Attention, ProcessorsThatShareARowsKeysGiveEqualBits) {
  std::vector<Shape4> shapes(is_sanitized() ? 3 : 5);
  for (Shape4& s : shapes)
    s = {.heads = 6, .kv_heads = 2, .key_dim = 16, .value_dim = 16, .page_size = 16, .length = 1540};
  shapes[0].window = 1000, shapes[0].sinks = true;
  shapes[1].stored = DType::kI8;
  shapes[2].stored = DType::kBF16, shapes[2].precision = Precision::kBF16Tiles, shapes[2].window = 700;
  if (!is_sanitized()) shapes[3].page_size = 5, shapes[4].kv_heads = 1;
  for (const Shape4& shape : shapes) {
    Case c(shape);
    const int64_t begin = shape.length - 20, row = shape.heads * shape.value_dim;
    std::vector<float> whole;
    c.run(0, begin, best_isa(), whole, 3);
    whole.clear();
    c.run(begin, shape.length, Isa::kScalar, whole);
    for (const int64_t i : {begin, shape.length - 5, shape.length - 1}) {
      const double bound = ((shape.key_dim + 1.0) * 16 + shape.length + 1.0) * 5 * 0x1p-24 +
                           (shape.precision == Precision::kF32 ? 0 : 5 * 0x1p-9);  // as above
      for (int64_t h = 0; h < shape.heads; ++h) {
        const std::vector<double> exact = c.exact(i, h);
        const float* got = whole.data() + (i - begin) * row + h * shape.value_dim;
        for (int64_t d = 0; d < shape.value_dim; ++d) ASSERT_TRUE(std::fabs(got[d] - exact[d]) <= bound);
      }
    }
    for (const Isa isa : {Isa::kScalar, Isa::kAvx2, best_isa()}) {
      for (const int32_t processors : {1, 2, 3, 9}) {
        if (is_sanitized() && processors % 3) continue;
        for (const int64_t chunk : {1, 20}) {
          std::vector<float> out;
          for (int64_t i = begin; i < shape.length; i += chunk)
            c.run(i, i + chunk, std::min(isa, best_isa()), out, processors);
          ASSERT_EQ(out.size(), whole.size());
          EXPECT_EQ(std::memcmp(out.data(), whole.data(), out.size() * sizeof(float)), 0)
              << simd::table_of(isa).name << " " << processors << " " << chunk << " "
              << name_of(shape.stored);
        }
      }
    }
  }
}

}  // namespace
}  // namespace ark::test
