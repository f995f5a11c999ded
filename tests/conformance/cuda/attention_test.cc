// Attention by itself against a softmax in f64, over keys and values rounded as their type says: what a token's row
// comes to for heads, groups, windows, slopes, sinks and caps, and that it depends on nothing but its position.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/conformance/cuda/test_gpu.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

struct AttentionCase {
  int64_t heads, kv_heads, key_dim, value_dim;
  DType kv = DType::kF16;
  int64_t window = 0;
  double softcap = 0;
  bool slopes = false, sinks = false;
  int32_t length = 90;
  float size = 1;            // of q
  int32_t most_tokens = 64;  // of a step
  int32_t processors = 0;    // 0: some
};

// Queries, keys and values are rows of tables, by the token's id; a row's logits are its attention's numbers.
class AttentionModel {
 public:
  explicit AttentionModel(const AttentionCase& c) : c_(c) {
    TokenGraphOptions o{.kv_heads = c.kv_heads,
                        .vocabulary = c.heads * c.value_dim,
                        .max_positions = std::max(1024, c.length + 1)};
    o.heads = c.heads, o.head_dim = c.key_dim;
    TokenGraphBuilder b(o);
    const auto table = [&](std::vector<float>& numbers, int64_t width, float size, const char* name) {
      numbers.resize(static_cast<std::size_t>(kTokens * width));
      for (float& x : numbers) x = size * normal_(random_);
      return b.graph.add_constant(
          make_constant(Tensor::of<float>(DType::kF32, {kTokens, width}, numbers), name));
    };
    const auto rows = [&](std::vector<float>& numbers, int64_t heads, int64_t dim, float size,
                          const char* name) {
      return b.reshape(b.gather(name, table(numbers, heads * dim, size, name), b.ids),
                       std::string(name) + ".heads", {b.tokens(), heads, dim});
    };
    const ValueId q = rows(q_, c.heads, c.key_dim, c.size, "q"), k = rows(k_, c.kv_heads, c.key_dim, 1, "k"),
                  v = rows(v_, c.kv_heads, c.value_dim, 1, "v");
    const auto vector = [&](std::vector<float>& numbers, const char* name) {
      for (int64_t h = 0; h < c.heads; ++h) numbers.push_back(normal_(random_));
      return b.graph.add_constant(make_constant(Tensor::of<float>(DType::kF32, {c.heads}, numbers), name));
    };
    const ValueId slopes = c.slopes ? vector(slopes_, "slopes") : kNoValue,
                  sinks = c.sinks ? vector(sinks_, "sinks") : kNoValue;
    b.model.caches.push_back({"past.0.key", "past.0.value", c.kv_heads, c.key_dim, c.value_dim, 0});
    const ValueId a =
        b.node(Op::kPagedAttention, "attention", {q, k, v, slopes, sinks}, {b.tokens(), c.heads, c.value_dim},
               {{key::kCache, int64_t{0}},
                {key::kScale, kScale},
                {key::kWindow, c.window},
                {key::kSoftcap, c.softcap}});
    model_ = b.finish(b.select(b.reshape(a, "merge", {b.tokens(), c.heads * c.value_dim}), "rows"));
  }
  const DecoderModel& model() const { return model_; }

  // The row of the last of these tokens, and how far off it may be.
  struct Row {
    std::vector<double> values, bounds;
  };
  Row row_of(const std::vector<int32_t>& tokens) const {
    Row row;
    const auto last = static_cast<int64_t>(tokens.size()) - 1;
    for (int64_t h = 0; h < c_.heads; ++h) add_head(tokens, last, h, row);
    return row;
  }

 private:
  static constexpr int64_t kTokens = 64;
  static constexpr double kScale = 0.3;

  double rounded(float x) const {
    float out = x;
    Tensor t = Tensor::empty(c_.kv, {1});
    store_f32(c_.kv, t.data.get(), 0, 1, &x);
    load_f32(c_.kv, t.data.get(), 0, 1, 1, &out);
    return out;
  }

  void add_head(const std::vector<int32_t>& tokens, int64_t last, int64_t h, Row& row) const {
    const int64_t kv = h / (c_.heads / c_.kv_heads),
                  first = c_.window > 0 ? std::max<int64_t>(0, last - c_.window + 1) : 0;
    const auto at = [&](const std::vector<float>& table, int64_t position, int64_t heads, int64_t head,
                        int64_t dim) {
      return table.data() + (tokens[static_cast<std::size_t>(position)] * heads + head) * dim;
    };
    const float* q = at(q_, last, c_.heads, h, c_.key_dim);
    // What two parts of 16 bits leave out of a number, of its size; sums in f32 of n terms are off by n 2^-24 of the
    // sum of their sizes, whatever their order.
    const double rest = c_.kv == DType::kBF16 ? 0x1p-16 : 0x1p-21, unit = 0x1p-24;
    std::vector<double> scores, errors;
    double most = -INFINITY;
    for (int64_t p = first; p <= last; ++p) {
      const float* k = at(k_, p, c_.kv_heads, kv, c_.key_dim);
      double sum = 0, sizes = 0;
      for (int64_t d = 0; d < c_.key_dim; ++d) {
        sum += q[d] * rounded(k[d]);
        sizes += std::fabs(q[d] * rounded(k[d]));
      }
      double s = static_cast<double>(static_cast<float>(kScale)) * sum;
      // Both parts' products; scale, cap, slope: a rounding each.
      double error =
          kScale * sizes * (rest + 2 * static_cast<double>(c_.key_dim) * unit) + 4 * unit * std::fabs(s);
      if (c_.softcap > 0) {  // tanh of an error of no more than the argument's, and one of its own of 4 units
        const auto cap = static_cast<double>(static_cast<float>(c_.softcap));
        s = cap * std::tanh(s / cap);
        error += cap * 8 * unit;
      }
      if (c_.slopes) {
        const double by = slopes_[static_cast<std::size_t>(h)] * static_cast<double>(p - last);
        s += by;
        error += 2 * unit * (std::fabs(by) + std::fabs(s));
      }
      scores.push_back(s), errors.push_back(error);
      most = std::max(most, s);
    }
    if (c_.sinks) most = std::max(most, static_cast<double>(sinks_[static_cast<std::size_t>(h)]));
    // A weight e^s is off by its score's error, the largest's, and 4 units for exp, for each merge: of warps and splits
    // two more factors.
    double all = c_.sinks ? std::exp(sinks_[static_cast<std::size_t>(h)] - most) : 0, off = 8 * unit * all,
           largest = 0;
    for (const double error : errors) largest = std::max(largest, error);
    std::vector<double> weights, weight_errors;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      const double w = std::exp(scores[i] - most);
      // exp's argument is a difference rounded to f32, and so are those of factors.
      const double argument = errors[i] + largest + 4 * unit * (std::fabs(scores[i]) + std::fabs(most));
      weights.push_back(w), weight_errors.push_back(w * (std::expm1(argument) + 16 * unit));
      all += w, off += weight_errors.back();
    }
    const auto n = static_cast<double>(scores.size());
    for (int64_t d = 0; d < c_.value_dim; ++d) {
      double sum = 0, sizes = 0, error = 0;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const double v = rounded(at(v_, first + static_cast<int64_t>(i), c_.kv_heads, kv, c_.value_dim)[d]);
        sum += weights[i] * v;
        sizes += weights[i] * std::fabs(v);
        error += weight_errors[i] * std::fabs(v);
      }
      error += sizes * (rest + (2 * n + 16) * unit);
      const double value = sum / all;
      row.values.push_back(value);
      row.bounds.push_back((error + std::fabs(value) * (off + n * unit * all)) / all +
                           4 * unit * std::fabs(value));
    }
  }

  const AttentionCase c_;
  std::mt19937 random_{7};
  std::normal_distribution<float> normal_;
  std::vector<float> q_, k_, v_, slopes_, sinks_;
  DecoderModel model_;
};

RunnerSetup setup_of(const AttentionCase& c) {
  RunnerSetup setup;
  setup.max_tokens = c.most_tokens, setup.max_length = std::max(1100, c.length + 1), setup.page_size = 16;
  setup.pages = setup.max_length / setup.page_size + 11;
  setup.kv_dtype = c.kv;
  setup.options.gpu = test_gpu({});
  // So few that prompts' items are as large as they may be, on a GPU, too.
  setup.options.device.processors = c.processors > 0     ? c.processors
                                    : c.most_tokens > 64 ? 2
                                                         : test_processors();
  setup.options.step_deadline = std::chrono::seconds(60);
  return setup;
}

// The last row of each chunk.
Rows last_rows(const AttentionModel& model, const AttentionCase& c, const std::vector<int32_t>& tokens,
               const std::vector<int32_t>& chunks) {
  return run_chunks(*make_runner(model.model(), setup_of(c)), {.slot = 1, .tokens = tokens}, chunks, 3);
}

class Attention : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(Attention, IsASoftmaxOverWhatARowSees) {
  const AttentionCase& c = GetParam();
  const AttentionModel model(c);
  const auto tokens = random_tokens(c.length, 11, std::min<int64_t>(64, c.heads * c.value_dim));
  // Chunks of many rows, then rows one by one, then both again: by 16 and fewer, across blocks of keys.
  std::vector<int32_t> few, many;
  int32_t left = c.length;
  for (const int32_t chunk : {37, 1, 2, 17}) few.push_back(chunk), left -= chunk;
  for (; left > 3; left -= few.back()) few.push_back(std::min(c.most_tokens > 256 ? 400 : 40, left - 3));
  for (; left > 0; --left) few.push_back(1);
  const Rows rows = last_rows(model, c, tokens, few);
  int32_t at = 0;
  for (std::size_t i = 0; i < few.size(); ++i) {
    at += few[i];
    const auto expected = model.row_of({tokens.begin(), tokens.begin() + at});
    ASSERT_EQ(expected.values.size(), rows[i].size());
    for (std::size_t d = 0; d < rows[i].size(); ++d)
      ASSERT_FALSE(!(std::fabs(rows[i][d] - expected.values[d]) <= expected.bounds[d]))
          << "position " << at - 1 << ", element " << d << ": " << rows[i][d] << ", not "
          << expected.values[d] << " within " << expected.bounds[d];
  }
  // The last row, its sequence cut otherwise.
  left = c.length;
  for (; left > 0; left -= many.back()) many.push_back(std::min(c.most_tokens, left));
  EXPECT_TRUE(same_bits({rows.back()}, {last_rows(model, c, tokens, many).back()}));
}

constexpr AttentionCase kCases[] = {
    {4, 1, 64, 64},
    {4, 4, 64, 64, DType::kBF16},
    {8, 1, 16, 24, DType::kBF16, 33, 0, true, true},
    {3, 1, 8, 8, DType::kF16, 0, 2.5, true, true},
    {6, 2, 24, 40, DType::kF16, 7, 0, false, true},
    {9, 1, 32, 96, DType::kF16, 0, 3.0},
    {2, 1, 128, 128, DType::kBF16, 50, 0, true},
    {2, 2, 256, 256, DType::kF16, 0, 0, false, true},
    {4, 2, 72, 200, DType::kBF16},
    {4, 1, 128, 64},
    {4, 1, 96, 64, DType::kF16, 0, 2.5},
    {17, 1, 40, 16},
    {4, 1, 64, 64, DType::kF16, 60, 0, true, true,
     600},  // behind the first split of keys; over two; over three
    {4, 1, 64, 64, DType::kF16, 300, 0, true, true, 560},
    {4, 1, 64, 64, DType::kBF16, 0, 0, false, false, 1060},
    {2, 1, 16, 16, DType::kF16, 0, 0, false, false, 90, 1e6F},  // q beyond the range of f16
    {2, 1, 16, 16, DType::kF16, 0, 0, false, false, 90, 1e-6F},
    // By strips: values in two parts; strips without rows; more rows than strips; in several splits, of one of which a
    // warp would have four runs of keys; keys that no row of a strip sees.
    {8, 2, 128, 128, DType::kBF16, 0, 0, false, true, 560},
    {3, 1, 96, 96, DType::kF16, 20, 0, true, false},
    {10, 2, 80, 80},
    {7, 1, 64, 96, DType::kBF16},
    {18, 1, 40, 32, DType::kF16, 45, 0, false, true, 130},
    {4, 4, 24, 16, DType::kBF16, 300, 0, true, true, 700, 1, 256},
    {4, 1, 16, 16, DType::kF16, 0, 0, false, true, 4180, 1, 1024},
    // Tiles taken at once: by fours, in splits, some idle, others with rows that see no key of a split; as many as have
    // room; by twos; and one, whose rows have no room for whole values.
    {8, 8, 64, 64, DType::kF16, 60, 0, true, true, 600, 1, 64, 1},
    {12, 6, 128, 128, DType::kBF16, 0, 0, false, true, 300, 1, 64, 1},
    {12, 2, 40, 24, DType::kF16, 0, 0, false, false, 90, 1, 64, 1},
    {16, 1, 128, 128, DType::kBF16, 0, 0, false, true, 300},
    {4, 2, 12, 20, DType::kF16, 9, 0, true, true},  // by multiply-adds: no eight elements
    {4, 2, 64, 64, DType::kF32, 0, 2.0, false, true},
};
std::string name_of_case(const ::testing::TestParamInfo<AttentionCase>& info) {
  const AttentionCase& c = info.param;
  std::string name = std::to_string(c.heads) + "_heads_" + std::to_string(c.kv_heads) + "_kv_" +
                     std::to_string(c.key_dim) + "_" + std::to_string(c.value_dim) + "_" +
                     std::string(name_of(c.kv)) + (c.window > 0 ? "_window" : "") +
                     (c.softcap > 0 ? "_cap" : "") + (c.slopes ? "_slopes" : "") + (c.sinks ? "_sinks" : "") +
                     "_" + std::to_string(info.index);
  std::replace_if(
      name.begin(), name.end(), [](char x) { return std::isalnum(static_cast<unsigned char>(x)) == 0; }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Device, Attention, ::testing::ValuesIn(kCases), name_of_case);

// Sequences of one step, each with tokens that are cached and others that are not: tiles of other rows, keys and splits
// beside each other, taken together or not. `processors` as few as one, so that a block has all of them.
struct Company {
  const char* name;
  AttentionCase c;
  std::vector<std::pair<int32_t, int32_t>> sequences;
};
std::vector<Company> companies() {
  return {
      // Three rows and six, so that some are taken by fours and others by twos.
      {"ThreesAndSixes",
       {3, 1, 64, 64, DType::kF16, 0, 0, false, true, 600, 1, 64, 1},
       {{20, 1}, {33, 1}, {40, 2}, {560, 1}, {7, 2}, {8, 2}, {90, 1}}},
      // Six rows that have rooms for four at once, and behind them, with fewer keys, room for two tiles.
      {"FurtherRowsBesideTheNextTile",
       {3, 1, 256, 256, DType::kF16, 192, 0, false, false, 230, 1, 64, 1},
       {{222, 2}, {100, 1}, {5, 1}}},
      // A tile by strips between others, and one of eight rows behind it.
      {"StripsBetween",
       {8, 1, 128, 128, DType::kBF16, 60, 0, true, false, 600, 1, 64, 1},
       {{600 - 41, 1}, {30, 1}, {10, 20}, {50, 1}, {90, 2}}},
      // Values in two parts of which the second has one chunk.
      {"LongValues",
       {2, 1, 64, 192, DType::kBF16, 0, 0, false, true, 100, 1, 64, 1},
       {{60, 1}, {3, 5}, {90, 1}}},
  };
}
class AttentionTogether : public ::testing::TestWithParam<Company> {};

TEST_P(AttentionTogether, RowsHaveTheBitsOfEachSequenceAlone) {
  const Company& company = GetParam();
  const AttentionModel model(company.c);
  RunnerSetup setup = setup_of(company.c);
  setup.pages *= 4;
  const auto run = [&](bool is_together) {
    const auto runner = make_runner(model.model(), setup);
    std::vector<Sequence> sequences;
    int32_t page = 0;
    Rows rows;
    for (const auto& [cached, count] : company.sequences) {
      Sequence& s = sequences.emplace_back();
      s.slot = static_cast<int32_t>(sequences.size()) - 1;
      s.tokens = random_tokens(cached + count, 11 + s.slot, 64);
      while (s.cached < cached) {
        StepDescriptor step;
        add_chunk(step, s, std::min(40, cached - s.cached), setup.page_size, page, false, 0);
        runner->post(step);
        wait_for(*runner);
      }
    }
    StepDescriptor step;
    const auto take = [&] {
      runner->post(step);
      for (auto& row : wait_for(*runner).rows) rows.push_back(row.logits);
      step = {};
    };
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      add_chunk(step, sequences[i], company.sequences[i].second, setup.page_size, page, true, kWantLogits);
      if (!is_together) take();
    }
    if (is_together) take();
    return rows;
  };
  const Rows together = run(true);
  ASSERT_EQ(together.size(), company.sequences.size());
  EXPECT_TRUE(same_bits(run(false), together));
}
INSTANTIATE_TEST_SUITE_P(Device, AttentionTogether, ::testing::ValuesIn(companies()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace ark::test
