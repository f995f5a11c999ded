#include "base/ir/constant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>

#include "tests/importer/proto.h"

namespace ark {
namespace {

// The same view computed element by element from its definition.
int64_t expected(const Constant& c, const Tensor& stored, std::vector<int64_t> index) {
  Dims at(index.size());
  for (std::size_t a = 0; a < index.size(); ++a)
    at[c.perm.empty() ? a : static_cast<std::size_t>(c.perm[a])] =
        index[a] + (c.begin.empty() ? 0 : c.begin[a]);
  int64_t flat = 0;
  for (std::size_t s = 0; s < at.size(); ++s) flat = flat * stored.dims[s] + at[s];
  return stored.integer(flat);
}

void check_view(const Constant& c, const Tensor& stored) {
  const Tensor dense = materialise(c);
  ASSERT_EQ(dense.dims, c.dims);
  Dims index(c.dims.size());
  for (int64_t i = 0; i < dense.size(); ++i) {
    int64_t rest = i;
    for (std::size_t a = c.dims.size(); a-- > 0; rest /= c.dims[a]) index[a] = rest % c.dims[a];
    ASSERT_EQ(dense.integer(i), expected(c, stored, index)) << "element " << i;
  }
}

Tensor counting(DType dtype, Dims dims) {
  Tensor t = Tensor::zeros(dtype, dims);
  std::mt19937 random(7);
  for (int64_t i = 0; i < t.bytes(); ++i) t.data.get()[i] = static_cast<std::byte>(random());
  return t;
}

TEST(Constant, RandomViewsEqualTheirDefinition) {
  std::mt19937 random(1);
  const test::TemporaryDirectory dir;
  for (int round = 0; round < 300; ++round) {
    const DType types[] = {DType::kI8, DType::kI16, DType::kI32, DType::kI64, DType::kI4};
    const Tensor stored = counting(types[round % 5], {static_cast<int64_t>(random() % 5 + 1), 3,
                                                      static_cast<int64_t>(random() % 7 + 1)});
    auto base = std::make_shared<Constant>(*make_constant(stored, "w"));
    if (round % 2) {
      const auto file =
          dir.write("w" + std::to_string(round),
                    "??" + std::string(stored.as<char>(), static_cast<std::size_t>(stored.bytes())));
      base->inline_data = {};
      base->file = WeightFile::open(file);
      base->offset = 2;
      base->bytes = stored.bytes();
    }
    ConstantPtr view = base;
    for (int step = 0; step < 3; ++step) {
      if (random() % 2) {
        std::vector<int64_t> perm = {0, 1, 2};
        std::shuffle(perm.begin(), perm.end(), random);
        view = transposed(view, perm);
      } else {
        const auto axis = static_cast<int64_t>(random() % 3);
        const int64_t size = view->dims[axis];
        const int64_t begin = static_cast<int64_t>(random()) % (size + 1);
        view = sliced(view, axis, begin, begin + static_cast<int64_t>(random()) % (size - begin + 1));
      }
      ASSERT_TRUE(same_payload(*view, *base));
    }
    check_view(*view, stored);
    if (view->dims[0] >= 2) {
      const Tensor rows = materialise_rows(*view, 1, view->dims[0] - 1);
      check_view(*sliced(view, 0, 1, view->dims[0]), stored);
      const Tensor same = materialise(*sliced(view, 0, 1, view->dims[0]));
      const auto bytes = [](const Tensor& t) {
        return std::span(t.data.get(), static_cast<std::size_t>(t.bytes()));
      };
      ASSERT_TRUE(std::ranges::equal(bytes(rows), bytes(same)));
    }
  }
}

TEST(Constant, LargeTransposedViewIsGatheredInWindows) {
  const test::TemporaryDirectory dir;
  const int64_t rows = 3000, columns = 2000;  // 24 MB: several windows
  std::vector<int32_t> values(static_cast<std::size_t>(rows * columns));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i);
  auto c = std::make_shared<Constant>();
  c->dtype = DType::kI32;
  c->dims = c->stored_dims = {rows, columns};
  c->file = WeightFile::open(dir.write("w", test::raw(values)));
  c->bytes = rows * columns * 4;
  const Tensor t = materialise(*transposed(c, {1, 0}));
  for (int64_t i : {int64_t{0}, int64_t{1}, rows, rows * columns / 2 + 17, rows * columns - 1})
    EXPECT_EQ(t.integer(i), i % rows * columns + i / rows);
}

TEST(Constant, ReshapeOfAViewMaterialisesOnlySmallOnes) {
  const auto small = transposed(make_constant(counting(DType::kI8, {2, 3})), {1, 0});
  EXPECT_EQ(reshaped(small, {6})->dims, Dims{6});
  const auto large = transposed(make_constant(counting(DType::kI8, {200, 300})), {1, 0});
  EXPECT_EQ(reshaped(large, {60000}), nullptr);
  const auto whole = make_constant(counting(DType::kI8, {200, 300}));
  EXPECT_TRUE(same_payload(*reshaped(whole, {60000}), *whole));
}

TEST(Constant, BytesAreSeveralFieldsEach) {
  const ConstantPtr bytes = make_constant(counting(DType::kU8, {3, 5}));
  for (const DType type : {DType::kU4, DType::kU2}) {
    const int64_t bits = bits_of(type), each = 8 / bits;
    const ConstantPtr fields = as_packed(bytes, type);
    ASSERT_EQ(fields->dims, (Dims{3, 5 * each}));
    EXPECT_TRUE(same_payload(*fields, *bytes));
    const Tensor all = materialise(*fields), row = materialise_rows(*fields, 1, 1);
    const Tensor turned = materialise(*transposed(fields, {1, 0}));
    for (int64_t i = 0; i < 15 * each; ++i) {
      EXPECT_EQ(all.integer(i), bytes->inline_data.integer(i / each) >> i % each * bits & ((1 << bits) - 1));
      EXPECT_EQ(turned.integer(i % (5 * each) * 3 + i / (5 * each)), all.integer(i));
    }
    for (int64_t i = 0; i < 5 * each; ++i) EXPECT_EQ(row.integer(i), all.integer(5 * each + i));
    EXPECT_EQ(as_packed(transposed(bytes, {1, 0}), type), nullptr);
    EXPECT_EQ(as_packed(fields, type), nullptr);
  }
}

TEST(Constant, TruncatedFileIsAnErrorNotACrash) {
  const test::TemporaryDirectory dir;
  const auto path = dir.write("w", std::string(64, 'x'));
  auto c = std::make_shared<Constant>();
  c->dtype = DType::kU8;
  c->dims = c->stored_dims = {64};
  c->file = WeightFile::open(path);
  c->bytes = 64;
  std::filesystem::resize_file(path, 10);
  EXPECT_NE(test::error_of(Code::kBadModel, [&] { materialise(*c); }).find("ends at byte 10"),
            std::string::npos);
}

}  // namespace
}  // namespace ark
