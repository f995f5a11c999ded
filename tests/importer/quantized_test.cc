// Quantized matrices against a loop that packs and decodes by the definition, one element at a time.
#include "base/ir/quantized.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/importer/proto.h"

namespace ark {
namespace {

struct Case {
  int bits;
  bool is_signed;
  int axis;
  int64_t rows, columns, block, code_stride, zero_stride;
  bool zeros;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.bits << " bits, signed " << c.is_signed << ", axis " << c.axis << ", " << c.rows << " x "
             << c.columns << ", block " << c.block << ", strides " << c.code_stride << " and "
             << c.zero_stride << ", zeros " << c.zeros;
}

// Fields written one after the other from the low bits of each byte on.
class Packer {
 public:
  Packer(int bits, int64_t count) : bits_(bits), bytes_(static_cast<std::size_t>((count * bits + 7) / 8)) {}
  void put(int64_t i, int value) {
    const int64_t bit = i * bits_;
    bytes_[bit / 8] |= static_cast<uint8_t>((value & ((1 << bits_) - 1)) << bit % 8);
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  int bits_;
  std::vector<uint8_t> bytes_;
};

ConstantPtr payload(const std::vector<uint8_t>& bytes, DType type, const test::TemporaryDirectory& dir,
                    const std::string& name, bool in_file) {
  const auto count = static_cast<int64_t>(bytes.size()) * 8 / bits_of(type);
  auto c = std::make_shared<Constant>(*make_constant(Tensor::zeros(type, {count}), name));
  std::memcpy(c->inline_data.data.get(), bytes.data(), bytes.size());
  if (!in_file) return c;
  c->inline_data = {};
  c->file = WeightFile::open(dir.write(name, "abc" + std::string(bytes.begin(), bytes.end())));
  c->offset = 3;
  c->bytes = static_cast<int64_t>(bytes.size());
  return c;
}

struct Made {
  Quantized q;
  std::vector<std::vector<float>> values;  // by row
};

DType field_type(const Case& c, bool packed) {
  if (c.bits == 8) return c.is_signed ? DType::kI8 : DType::kU8;
  if (c.bits == 2 || packed) return DType::kU8;
  return c.is_signed ? DType::kI4 : DType::kU4;
}

// Random codes, scales and zeros, and what they stand for.
Made make(const Case& c, std::mt19937& random, const test::TemporaryDirectory& dir) {
  const int64_t along = c.axis == 1 ? c.columns : c.rows, blocks = (along + c.block - 1) / c.block;
  const int64_t high = c.axis == 1 ? c.rows : blocks, wide = c.axis == 1 ? blocks : c.columns;
  const int low = c.is_signed ? -(1 << (c.bits - 1)) : 0;
  const auto code = [&] { return low + static_cast<int>(random() % (1u << c.bits)); };
  Made m{{.rows = c.rows,
          .columns = c.columns,
          .bits = c.bits,
          .is_signed = c.is_signed,
          .axis = c.axis,
          .block = c.block,
          .code_stride = c.code_stride,
          .zero_stride = c.zero_stride,
          .default_zero = code()},
         {}};
  std::vector<float> scales;
  std::vector<int> zero_of;
  Packer zeros(c.bits, high * c.zero_stride);
  for (int64_t i = 0; i < high * wide; ++i) {
    scales.push_back(static_cast<float>(random() % 1000) / 512.f - 1.f);
    zero_of.push_back(c.zeros ? code() : m.q.default_zero);
    if (c.zeros) zeros.put(i / wide * c.zero_stride + i % wide, zero_of.back());
  }
  Packer codes(c.bits, c.rows * c.code_stride);
  for (int64_t r = 0; r < c.rows; ++r) {
    m.values.emplace_back();
    for (int64_t k = 0; k < c.columns; ++k) {
      const int v = code();
      codes.put(r * c.code_stride + k, v);
      const auto at = static_cast<std::size_t>(c.axis == 1 ? r * wide + k / c.block : r / c.block * wide + k);
      m.values.back().push_back(static_cast<float>(v - zero_of[at]) * scales[at]);
    }
  }
  const bool in_file = random() % 2, packed = !c.is_signed && random() % 2;
  m.q.codes = payload(codes.bytes(), field_type(c, packed), dir, "codes", in_file);
  m.q.scales = make_constant(Tensor::of<float>(DType::kF32, {high, wide}, scales), "scales");
  if (c.zeros) m.q.zeros = payload(zeros.bytes(), field_type(c, packed), dir, "zeros", in_file);
  return m;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int bits : {2, 4, 8})
    for (const bool is_signed : {false, true})
      for (const int axis : {0, 1})
        for (const auto& [rows, columns, block] :
             {std::array<int64_t, 3>{7, 13, 4}, {1, 5, 16}, {33, 48, 16}, {9, 1, 3}, {5, 6, 1}})
          for (const bool zeros : {false, true})
            for (const int64_t padding : {0, 3}) {
              if (bits == 2 && is_signed) continue;  // no file has them
              const int64_t along = axis == 1 ? columns : rows, blocks = (along + block - 1) / block;
              all.push_back({bits, is_signed, axis, rows, columns, block, columns + padding,
                             (axis == 1 ? blocks : columns) + padding, zeros});
            }
  return all;
}

TEST(Quantized, ElementsAreDecodedByTheirDefinition) {
  std::mt19937 random(3);
  const test::TemporaryDirectory dir;
  for (const Case& c : cases()) {
    SCOPED_TRACE(c);
    const Made m = make(c, random, dir);
    const ConstantPtr w = make_quantized(m.q, "w");
    ASSERT_TRUE(w);
    ASSERT_EQ(w->dims, (Dims{c.rows, c.columns}));
    const Tensor all = materialise(*w);
    for (int64_t i = 0; i < all.size(); ++i)
      ASSERT_EQ(all.as<float>()[i], m.values[i / c.columns][i % c.columns]) << "element " << i;
    // A window of rows, and the parts of one element in it.
    const int64_t first = c.rows / 2;
    const QuantizedRows rows(*w->quantized, first, c.rows - first);
    const Tensor some = materialise_rows(*w, first, c.rows - first);
    for (int64_t r = first; r < c.rows; ++r)
      for (int64_t k = 0; k < c.columns; ++k) {
        const float wanted = m.values[r][k];
        ASSERT_EQ(some.as<float>()[(r - first) * c.columns + k], wanted);
        ASSERT_EQ(rows.value(r, k), wanted);
        for (const int field : {rows.code(r, k), rows.zero(r, k)}) {
          ASSERT_GE(field, 0);
          ASSERT_LT(field, 1 << c.bits);
        }
      }
  }
}

TEST(Quantized, ViewsAreThoseOfTheDecodedMatrix) {
  std::mt19937 random(4);
  const test::TemporaryDirectory dir;
  for (const Case& c : cases()) {
    SCOPED_TRACE(c);
    const ConstantPtr w = make_quantized(make(c, random, dir).q, "w");
    const ConstantPtr dense = make_constant(materialise(*w), "dense");
    const auto view = [&](const ConstantPtr& x) {
      return transposed(sliced(sliced(x, 0, c.rows / 3, c.rows), 1, c.columns / 2, c.columns), {1, 0});
    };
    const ConstantPtr part = view(w);
    EXPECT_TRUE(part->quantized) << "a view was unpacked";
    EXPECT_TRUE(same_payload(*part, *w));
    for (const auto& [lazy, plain] : {std::pair{materialise(*part), materialise(*view(dense))},
                                      {materialise_rows(*part, 0, 1), materialise_rows(*view(dense), 0, 1)},
                                      {materialise(*reshaped(part, {part->size()})),
                                       materialise(*reshaped(view(dense), {part->size()}))}}) {
      ASSERT_EQ(lazy.dims, plain.dims);
      for (int64_t i = 0; i < plain.size(); ++i) ASSERT_EQ(lazy.as<float>()[i], plain.as<float>()[i]) << i;
    }
  }
}

TEST(Quantized, OneScaleAndHalfPrecisionScales) {
  const uint8_t codes[] = {0, 7, 255, 100};
  Quantized q{.rows = 2, .columns = 2, .bits = 8, .block = 2, .code_stride = 2};
  q.codes = make_constant(Tensor::of<uint8_t>(DType::kU8, {4}, codes));
  q.scales = make_constant(Tensor::of<uint16_t>(DType::kF16, {}, {{f32_to_f16(0.25f)}}));
  q.zeros = make_constant(Tensor::of<uint8_t>(DType::kU8, {}, {{8}}));
  const Tensor t = materialise(*make_quantized(q, "w"));
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(t.as<float>()[i], (codes[i] - 8) * 0.25f);
  q.scales = make_constant(Tensor::of<uint16_t>(DType::kBF16, {2}, {{f32_to_bf16(1.5f), f32_to_bf16(-2.f)}}));
  q.zeros = nullptr;
  const Tensor u = materialise(*make_quantized(q, "w"));
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(u.as<float>()[i], codes[i] * (i < 2 ? 1.5f : -2.f));
}

TEST(Quantized, WhatDoesNotFitIsNotQuantized) {
  std::mt19937 random(5);
  const test::TemporaryDirectory dir;
  const Case c{4, false, 1, 6, 32, 16, 32, 2, true};
  const Quantized good = make(c, random, dir).q;
  ASSERT_TRUE(make_quantized(good, "w"));
  const auto refused = [&](auto change) {
    Quantized q = good;
    change(q);
    return make_quantized(q, "w") == nullptr;
  };
  EXPECT_TRUE(refused([](Quantized& q) { q.rows = 7; }));
  EXPECT_TRUE(refused([](Quantized& q) { q.columns = 33; }));
  EXPECT_TRUE(refused([](Quantized& q) { q.bits = 3; }));
  EXPECT_TRUE(refused([](Quantized& q) { q.bits = 8; }));
  EXPECT_TRUE(refused([](Quantized& q) { q.block = 8; }));
  EXPECT_TRUE(refused([](Quantized& q) { q.block = 0; }));
  EXPECT_TRUE(refused([](Quantized& q) { q.code_stride = 31; }));
  EXPECT_TRUE(refused([](Quantized& q) { q.code_stride = int64_t{1} << 62; }));
  EXPECT_TRUE(refused([](Quantized& q) { q.rows = q.columns = int64_t{1} << 61; }));
  EXPECT_TRUE(refused([](Quantized& q) { q.zero_stride = 3; }));
  EXPECT_TRUE(refused([](Quantized& q) {
    q.codes = make_constant(Tensor::zeros(DType::kU4, {6, 32})), q.is_signed = true, q.default_zero = 0;
  }));
  EXPECT_TRUE(refused([](Quantized& q) { q.default_zero = 16; }));
  EXPECT_TRUE(refused([](Quantized& q) { q.scales = sliced(q.scales, 0, 0, 5); }));
  EXPECT_TRUE(refused([](Quantized& q) { q.zeros = make_constant(Tensor::zeros(DType::kF32, {12})); }));
  EXPECT_TRUE(refused([](Quantized& q) {
    q.codes = transposed(reshaped(q.codes, {6, q.codes->size() / 6}), {1, 0});
  }));
  // Blocks longer than the rows are whole rows, however long.
  EXPECT_FALSE(refused([](Quantized& q) {
    q.block = INT64_MAX, q.zero_stride = 1;
    q.scales = sliced(q.scales, 1, 0, 1);
  }));
}

TEST(Quantized, PayloadsAreTheSameIfEverythingTheyReadIs) {
  std::mt19937 random(6);
  const test::TemporaryDirectory dir;
  const Made m = make({4, false, 1, 6, 32, 16, 32, 2, true}, random, dir);
  const ConstantPtr a = make_quantized(m.q, "a"), b = make_quantized(m.q, "b");
  EXPECT_TRUE(same_payload(*a, *b));
  EXPECT_FALSE(same_payload(*a, *m.q.codes));
  Quantized other = m.q;
  other.scales = make_constant(Tensor::zeros(DType::kF32, {6, 2}), "other scales");
  EXPECT_FALSE(same_payload(*a, *make_quantized(other, "c")));
  other = m.q;
  other.zeros = nullptr;
  EXPECT_FALSE(same_payload(*a, *make_quantized(other, "d")));
}

// Views of one payload: the numbers are others.
TEST(Quantized, TheSameCodesByOtherPartsOfTheirScalesAreOtherMatrices) {
  std::vector<float> numbers(16);
  for (std::size_t i = 0; i < 16; ++i) numbers[i] = static_cast<float>(i + 1);
  const ConstantPtr scales = make_constant(Tensor::of<float>(DType::kF32, {4, 4}, numbers));
  const Quantized q{.rows = 4,
                    .columns = 4,
                    .bits = 8,
                    .axis = 0,
                    .block = 1,
                    .codes = make_constant(Tensor::zeros(DType::kU8, {4, 4})),
                    .code_stride = 4,
                    .scales = scales,
                    .default_zero = 1};
  Quantized turned = q, first = q, last = q;
  turned.scales = transposed(scales, {1, 0});
  first.rows = last.rows = 2;
  first.scales = sliced(scales, 0, 0, 2);
  last.scales = sliced(scales, 0, 2, 4);
  Quantized again = last;
  again.scales = sliced(scales, 0, 2, 4);
  const auto same = [](const Quantized& a, const Quantized& b) {
    return same_payload(*make_quantized(a, "a"), *make_quantized(b, "b"));
  };
  EXPECT_FALSE(same(q, turned));
  EXPECT_FALSE(same(first, last));
  EXPECT_TRUE(same(last, again));
  EXPECT_TRUE(same(turned, turned));
}

TEST(Quantized, LargeMatrixIsReadInWindows) {
  const test::TemporaryDirectory dir;
  const int64_t rows = 6000, columns = 3000;  // 18 MB of codes
  std::string bytes(static_cast<std::size_t>(rows * columns), 0);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 % 251);
  Quantized q{.rows = rows, .columns = columns, .bits = 8, .axis = 0, .block = 100, .code_stride = columns};
  auto codes = std::make_shared<Constant>();
  codes->dtype = DType::kU8;
  codes->dims = codes->stored_dims = {rows, columns};
  codes->file = WeightFile::open(dir.write("w", bytes));
  codes->bytes = rows * columns;
  q.codes = codes;
  std::vector<float> scales(static_cast<std::size_t>(60 * columns));
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<float>(i % 17 + 1);
  q.scales = make_constant(Tensor::of<float>(DType::kF32, {60, columns}, scales));
  const Tensor t = materialise(*transposed(make_quantized(q, "w"), {1, 0}));
  for (int64_t i = 0; i < t.size(); i += 997) {
    const int64_t r = i % rows, k = i / rows;
    ASSERT_EQ(t.as<float>()[i],
              static_cast<float>((r * columns + k) * 7 % 251) * scales[r / 100 * columns + k]);
  }
}

TEST(Quantized, TruncatedFileIsAnErrorNotACrash) {
  const test::TemporaryDirectory dir;
  std::mt19937 random(7);
  const auto path = dir.write("w", std::string(64, 'x'));
  auto codes = std::make_shared<Constant>();
  codes->dtype = DType::kU8;
  codes->dims = codes->stored_dims = {64};
  codes->file = WeightFile::open(path);
  codes->bytes = 64;
  Quantized q{.rows = 4, .columns = 32, .block = 32, .codes = codes, .code_stride = 32};
  q.scales = make_constant(Tensor::zeros(DType::kF32, {4}));
  const ConstantPtr w = make_quantized(q, "w");
  std::filesystem::resize_file(path, 20);
  EXPECT_EQ(materialise_rows(*w, 0, 1).size(), 32);
  EXPECT_NE(test::error_of(Code::kBadModel, [&] { materialise(*w); }).find("ends at byte 20"),
            std::string::npos);
}

}  // namespace
}  // namespace ark
