#include "engine/run/weight_store.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/error.h"
#include "base/ir/quantized.h"
#include "tests/fixtures.h"

namespace ark::test {
namespace {

// A file of `count` elements behind 24 other bytes, and a constant over it.
struct FileConstant {
  FileConstant(const std::string& name, DType dtype, Dims dims) {
    path = std::filesystem::temp_directory_path() / ("ark_" + name + std::to_string(::getpid()));
    tensor = Tensor::zeros(dtype, dims);
    std::mt19937 random(3);
    for (int64_t i = 0; i < tensor.bytes() / 2; ++i)
      tensor.as<uint16_t>()[i] = static_cast<uint16_t>(random() & 0x3fff);
    std::ofstream file(path, std::ios::binary);
    file << std::string(24, 'x');
    file.write(reinterpret_cast<const char*>(tensor.data.get()), tensor.bytes());
    file.close();
    auto c = std::make_shared<Constant>();
    c->dtype = dtype;
    c->dims = c->stored_dims = dims;
    c->file = WeightFile::open(path);
    c->offset = 24;
    c->bytes = tensor.bytes();
    c->name = name;
    constant = c;
  }
  ~FileConstant() { std::filesystem::remove(path); }

  std::filesystem::path path;
  Tensor tensor;
  ConstantPtr constant;
};

std::string bits_at(const Tensor& t, int64_t i) {
  const int64_t size = bits_of(t.dtype) / 8;
  return {reinterpret_cast<const char*>(t.data.get()) + i * size, static_cast<std::size_t>(size)};
}

Program program_of(std::vector<WeightUse> uses) {
  Program program;
  program.weights = std::move(uses);
  return program;
}

// Every element of a matrix part is where the layout says, padding is zero.
void expect_panels(const Constant& view, const WeightUse& use, const std::byte* packed) {
  const Tensor all = materialise(view);
  const Range k = matrix_rows(use), n = matrix_columns(use);
  const int64_t size = bits_of(use.stored) / 8, panels = (n.size() + use.panel - 1) / use.panel;
  for (int64_t p = 0; p < panels * use.panel; ++p) {
    for (int64_t i = 0; i < k.size(); ++i) {
      const std::byte* at = packed + ((p / use.panel * k.size() + i) * use.panel + p % use.panel) * size;
      const std::string got(reinterpret_cast<const char*>(at), static_cast<std::size_t>(size));
      std::string expected(static_cast<std::size_t>(size), '\0');
      if (p < n.size()) {
        const int64_t row = use.transposed ? n.begin + p : k.begin + i,
                      column = use.transposed ? k.begin + i : n.begin + p;
        expected = bits_at(all, row * all.dims[1] + column);
      }
      ASSERT_EQ(got, expected) << "column " << p << " row " << i;
    }
  }
}

TEST(WeightStore, PacksPartsOfPlainTransposedAndSlicedMatrices) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3}) {
    const FileConstant file("panels", dtype, {301, 517});
    const ConstantPtr turned = transposed(file.constant, {1, 0});
    const ConstantPtr part = sliced(turned, 0, 10, 310);
    for (const ConstantPtr& constant : {file.constant, turned, part}) {
      for (const bool is_transposed : {false, true}) {
        WeightUse use{.constant = 0,
                      .layout = Layout::kPanels,
                      .transposed = is_transposed,
                      .panel = 64,
                      .stored = dtype};
        use.ranges = {{7, constant->dims[0] - 5}, {64, 230}};
        const ConstantPtr list[] = {constant};
        const WeightStore store(program_of({use}), list, 2);
        expect_panels(*constant, use, store.address(0));
      }
    }
  }
}

TEST(WeightStore, RawPartsAndWidening) {
  const FileConstant file("raw", DType::kF16, {40, 6, 9});
  const ConstantPtr turned = transposed(file.constant, {2, 0, 1});
  WeightUse use{.constant = 0, .ranges = {{2, 8}, {5, 40}, {0, 6}}, .stored = DType::kF32};
  const ConstantPtr list[] = {turned};
  const WeightStore store(program_of({use}), list, 1);
  const Tensor all = materialise(*turned);
  const auto* got = reinterpret_cast<const float*>(store.address(0));
  for (int64_t i = 2; i < 8; ++i) {
    for (int64_t j = 5; j < 40; ++j) {
      for (int64_t k = 0; k < 6; ++k) ASSERT_EQ(*got++, f16_to_f32(all.as<uint16_t>()[(i * 40 + j) * 6 + k]));
    }
  }
}

// Bytes at random as codes, zeros and scales; blocks of `block` along `axis`.
// `floating`: the codes are numbers of that type.
ConstantPtr random_quantized(int64_t rows, int64_t columns, int bits, int axis, int64_t block, bool is_signed,
                             DType floating = DType::kUndefined) {
  std::mt19937 random(static_cast<uint32_t>(rows * 31 + bits));
  const auto bytes = [&](int64_t count) {
    Tensor t = Tensor::empty(DType::kU8, {count});
    for (int64_t i = 0; i < count; ++i) t.as<uint8_t>()[i] = static_cast<uint8_t>(random());
    return t;
  };
  Quantized q;
  q.rows = rows, q.columns = columns, q.bits = bits, q.axis = axis, q.block = block;
  q.is_signed = is_signed, q.floating = floating;
  const int64_t fields = 8 / bits;
  q.code_stride = (columns + fields - 1) / fields * fields;
  q.codes = make_constant(
      bits == 8 && (floating != DType::kUndefined || is_signed)
          ? [&] {
              Tensor t = bytes(rows * columns);
              t.dtype = floating != DType::kUndefined ? floating : DType::kI8;
              return t;
            }()
          : bytes(rows * q.code_stride / fields));
  const int64_t blocks = ((axis == 1 ? columns : rows) + block - 1) / block;
  const Dims places = axis == 1 ? Dims{rows, blocks} : Dims{blocks, columns};
  Tensor scales = Tensor::empty(DType::kF32, places);
  for (int64_t i = 0; i < scales.size(); ++i)
    scales.as<float>()[i] = static_cast<float>(random() % 999 + 1) / 512;
  q.scales = make_constant(std::move(scales));
  if (!is_signed && floating == DType::kUndefined) {
    q.zero_stride = (places[1] + fields - 1) / fields * fields;
    q.zeros = make_constant(bytes(places[0] * q.zero_stride / fields));
  }
  ConstantPtr c = make_quantized(q, "codes");
  EXPECT_NE(c, nullptr);
  return c;
}

// Panels of codes stand for the numbers that the constant is decoded to.
TEST(WeightStore, PanelsOfCodesStandForTheConstantsNumbers) {
  struct Case {
    int64_t rows, columns;
    int bits, axis;
    int64_t block;
    bool is_signed, transposed;
    std::vector<Range> ranges;
    int32_t panel_block;
    DType stored;
  };
  const Case cases[] = {
      {150, 96, 4, 1, 32, false, true, {{3, 140}, {32, 96}}, 32, DType::kU4},
      {150, 90, 2, 1, 32, false, true, {{0, 150}, {0, 90}}, 16, DType::kU4},
      {70, 77, 4, 1, 77, false, true, {{0, 70}, {0, 77}}, 64, DType::kU4},
      {70, 96, 4, 1, 96, false, true, {{0, 70}, {33, 96}}, 32, DType::kU4},
      {128, 70, 8, 0, 64, true, false, {{64, 128}, {5, 70}}, 64, DType::kU8},
      {100, 130, 8, 0, 100, false, false, {{0, 100}, {0, 130}}, 64, DType::kU8},
      {90, 66, 4, 0, 16, false, false, {{16, 90}, {0, 66}}, 8, DType::kU4},
      {70, 4096, 4, 1, 128, false, true, {{0, 70}, {0, 4096}}, 128, DType::kU4},
      {70, 96, 8, 1, 32, false, true, {{3, 70}, {32, 96}}, 32, DType::kF8E4M3},
      {90, 66, 8, 0, 90, false, false, {{0, 90}, {1, 66}}, 16, DType::kF8E4M3},
      {70, 96, 4, 1, 32, false, true, {{3, 70}, {32, 96}}, 32, DType::kNF4},
      {70, 77, 4, 1, 77, false, true, {{0, 70}, {0, 77}}, 64, DType::kFP4},
      {90, 66, 4, 0, 16, false, false, {{16, 90}, {0, 66}}, 8, DType::kNF4},
  };
  for (const Case& c : cases) {
    const ConstantPtr constant = random_quantized(c.rows, c.columns, c.bits, c.axis, c.block, c.is_signed,
                                                  is_integer(c.stored) ? DType::kUndefined : c.stored);
    const Tensor all = materialise(*constant);
    WeightUse use{.ranges = c.ranges,
                  .layout = Layout::kPanels,
                  .transposed = c.transposed,
                  .panel = 64,
                  .stored = c.stored,
                  .block = c.panel_block};
    const ConstantPtr list[] = {constant};
    const WeightStore store(program_of({use}), list, 2);
    const Range ks = matrix_rows(use), ns = matrix_columns(use);
    const int64_t blocks = (ks.size() + use.block - 1) / use.block;
    const int64_t pair = bits_of(c.stored) / 4, each = 64 * 5 + use.block / 2 * 64 * pair;
    for (int64_t n = 0; n < ns.size(); ++n) {
      for (int64_t k = 0; k < ks.size(); ++k) {
        const std::byte* block = store.address(0) + (n / 64 * blocks + k / use.block) * each;
        const std::byte* at = block + 320 + (k % use.block / 2 * 64 + n % 64) * pair;
        const int code =
            pair == 2 ? std::to_integer<int>(at[k % 2]) : std::to_integer<int>(*at) >> k % 2 * 4 & 15;
        const auto byte = static_cast<std::byte>(code);
        float scale, number;
        std::memcpy(&scale, block + n % 64 * 4, 4);
        load_f32(is_integer(c.stored) ? DType::kU8 : c.stored, &byte, 0, 1, 1, &number);
        const float got = (number - static_cast<float>(std::to_integer<int>(block[256 + n % 64]))) * scale;
        const int64_t row = use.transposed ? ns.begin + n : ks.begin + k,
                      column = use.transposed ? ks.begin + k : ns.begin + n;
        const float wanted = all.as<float>()[row * c.columns + column];
        ASSERT_TRUE(got == wanted || (std::isnan(got) && std::isnan(wanted)))
            << c.rows << ": " << k << ", " << n;
      }
    }
  }
}

TEST(WeightStore, PanelsAcrossAQuantizedWeightsBlocksAreOurBug) {
  const ConstantPtr list[] = {random_quantized(64, 96, 4, 1, 32, false)};
  for (const auto& [first, block] : std::vector<std::pair<int64_t, int32_t>>{{0, 48}, {16, 32}, {0, 20}}) {
    WeightUse use{.ranges = {{0, 64}, {first, 96}},
                  .layout = Layout::kPanels,
                  .transposed = true,
                  .panel = 64,
                  .stored = DType::kU4,
                  .block = block};
    EXPECT_THROW(WeightStore(program_of({use}), list, 1), Error) << first << " " << block;
  }
}

TEST(WeightStore, TruncatedFileIsAnErrorThatNamesIt) {
  const FileConstant file("short", DType::kF32, {300, 64});
  std::filesystem::resize_file(file.path, 1000);
  WeightUse use{.constant = 0, .ranges = {{0, 300}, {0, 64}}, .layout = Layout::kPanels, .panel = 64};
  const ConstantPtr list[] = {file.constant};
  try {
    const WeightStore store(program_of({use}), list, 2);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kBadModel);
    EXPECT_NE(std::string(error.what()).find("short"), std::string::npos) << error.what();
  }
}

// VmHWM counts the packed arena and little else: the payload is never in memory twice.
TEST(WeightStore, PeakMemoryIsTheArenaAndAWindow) {
  if (is_sanitized()) GTEST_SKIP() << "the sanitizer's own memory counts too";
  const auto peak = [] {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
      if (word == "VmHWM:") {
        int64_t kib;
        status >> kib;
        return kib * 1024;
      }
    }
    return int64_t{0};
  };
  constexpr int64_t kRows = 24000, kColumns = 2048;  // 196 MB
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("ark_big" + std::to_string(::getpid()));
  std::ofstream(path).close();
  std::filesystem::resize_file(path, kRows * kColumns * 4);
  auto c = std::make_shared<Constant>();
  c->dtype = DType::kF32;
  c->dims = c->stored_dims = {kRows, kColumns};
  c->file = WeightFile::open(path);
  c->bytes = kRows * kColumns * 4;
  const ConstantPtr list[] = {transposed(c, {1, 0})};
  WeightUse use{.constant = 0, .ranges = {{0, kColumns}, {0, kRows}}, .layout = Layout::kPanels, .panel = 64};
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the high-water mark
  const int64_t before = peak();
  const WeightStore store(program_of({use}), list, 2);
  std::filesystem::remove(path);
  EXPECT_LE(peak() - before, store.arena_bytes() * 11 / 10 + (64 << 20));
  EXPECT_GE(peak() - before, store.arena_bytes() / 2) << "the mark was not measured";
}

}  // namespace
}  // namespace ark::test
