// Distances between rows, and counts of runs of words: what nearest neighbours and bags of words are made of.
#include <algorithm>

#include "base/ir/keys.h"
#include "importer/ops/classic.h"

namespace ark::ops {

// In f64, since distances of near rows are small differences of large squares.
void cdist(OpContext& c) {
  const std::string metric = c.attr_word("metric", {"euclidean", "sqeuclidean"}, "sqeuclidean");
  const DType type = dtype_of(c, c.input(0));
  if (c.rank(0) != 2 || c.rank(1) != 2) c.fail("its inputs are no matrices");
  const ValueId a = cast(c, c.input(0), DType::kF64), b = cast(c, c.input(1), DType::kF64);
  c.require_equal(shape_of(c, a)[1], shape_of(c, b)[1], "the number of features");
  const auto squares = [&](ValueId x, int64_t keepdims) {
    return c.emit(Op::kReduceSumSquare, {x}, {{key::kAxes, {1}}, {key::kKeepdims, keepdims}});
  };
  const ValueId products = c.emit(Op::kMatMul, {a, b}, {{key::kTransB, 1}});
  const ValueId apart = binary(c, Op::kSub, binary(c, Op::kAdd, squares(a, 1), squares(b, 0)),
                               binary(c, Op::kAdd, products, products));
  const ValueId y = c.emit(Op::kClip, {apart, scalar(c, 0, DType::kF64)});
  c.outputs[0] = cast(c, metric == "euclidean" ? c.emit(Op::kSqrt, {y}) : y, type);
}

namespace {

// How often each of `count` runs of n items, one after another in `runs` [count, n], stands in each row of x [rows,
// length] with `apart` - 1 others between its items: [rows, count].
ValueId occurrences(OpContext& c, ValueId x, ValueId runs, int64_t n, int64_t count, int64_t apart) {
  const Shape shape = shape_of(c, x);
  const Expr places = max(shape[1] - Expr((n - 1) * apart), Expr(0));
  ValueId all = kNoValue;
  for (int64_t k = 0; k < n; ++k) {
    const Expr begin = min(shape[1], Expr(k * apart));
    const ValueId item = slice_axis(c, x, 1, begin, min(shape[1], begin + places));
    const ValueId wanted = reshape(c, slice_axis(c, runs, 1, Expr(k), Expr(k + 1)), {Expr(count)});
    const ValueId is_it = binary(c, Op::kEqual, reshape(c, item, {shape[0], places, Expr(1)}), wanted);
    all = k ? binary(c, Op::kAnd, all, is_it) : is_it;
  }
  return c.emit(Op::kReduceSum, {cast(c, all, DType::kF32)}, {{key::kAxes, {1}}, {key::kKeepdims, 0}});
}

}  // namespace

void tf_idf_vectorizer(OpContext& c) {
  const std::string mode = c.attr_word("mode", {"TF", "IDF", "TFIDF"});
  const int64_t least = c.attr_int("min_gram_length", 1), most = c.attr_int("max_gram_length", 1),
                skips = c.attr_int("max_skip_count", 0);
  const auto starts = c.attr_ints("ngram_counts"), columns = c.attr_ints("ngram_indexes");
  const bool are_texts = c.has_attr("pool_strings");
  if (are_texts != (dtype_of(c, c.input(0)) == DType::kString))
    c.fail("has a pool of another type than its input");
  const ValueId pool = bits_of_texts(c, labels_constant(c, "pool_int64s", "pool_strings"));
  const int64_t size = constant_dim(c, pool, 0, "the size of the pool");
  constexpr int64_t kMost = 64;  // items of a run, and how many may be left out: each takes nodes of its own
  if (least < 1 || most < least || most > kMost || skips < 0 || skips > kMost || most > std::ssize(starts))
    c.fail("its lengths, skips and ngram_counts do not fit");
  const bool is_vector = c.rank(0) == 1;
  if (!is_vector && c.rank(0) != 2)
    c.fail("its input has rank " + std::to_string(c.rank(0)) + ", not 1 or 2");
  const Shape given = shape_of(c, c.input(0));
  const Shape rows = is_vector ? Shape{Expr(1), given[0]} : given;
  const ValueId x = reshape(c, cast(c, bits_of_texts(c, c.input(0)), DType::kI64), rows);

  const int64_t width = columns.empty() ? 0 : *std::max_element(columns.begin(), columns.end()) + 1;
  if (width < 1 || width > size || *std::min_element(columns.begin(), columns.end()) < 0)
    c.fail("its ngram_indexes do not fit the pool");
  const auto weights = c.attr_floats("weights");
  if (!weights.empty() && weights.size() != columns.size())
    c.fail("has " + std::to_string(weights.size()) + " weights, not one a run");
  std::vector<double> weight_of(static_cast<std::size_t>(width), 1);  // by column of the result
  std::vector<ValueId> parts;
  std::vector<int64_t> from(static_cast<std::size_t>(width),
                            -1);  // column of the parts, by column of the result
  int64_t column = 0, run = 0;
  for (int64_t n = 1; n <= std::ssize(starts); ++n) {
    const int64_t begin = starts[static_cast<std::size_t>(n - 1)];
    const int64_t end = n < std::ssize(starts) ? starts[static_cast<std::size_t>(n)] : size;
    if (begin < 0 || end < begin || end > size || (end - begin) % n)
      c.fail("its ngram_counts do not fit the pool");
    const int64_t count = (end - begin) / n;
    if (run + count > std::ssize(columns)) c.fail("has fewer ngram_indexes than runs in its pool");
    const bool counts = n >= least && n <= most && count > 0;
    for (int64_t i = 0; counts && i < count; ++i) {
      const auto ordinal = static_cast<std::size_t>(run + i), to = static_cast<std::size_t>(columns[ordinal]);
      if (from[to] >= 0) c.unsupported("two runs that are counted in one column");
      from[to] = column++;
      if (!weights.empty()) weight_of[to] = weights[ordinal];
    }
    run += count;
    if (!counts) continue;
    const ValueId runs = reshape(c, slice_axis(c, pool, 0, Expr(begin), Expr(end)), {Expr(count), Expr(n)});
    ValueId sum = occurrences(c, x, runs, n, count, 1);
    for (int64_t apart = 2; n > 1 && apart <= skips + 1; ++apart)
      sum = binary(c, Op::kAdd, sum, occurrences(c, x, runs, n, count, apart));
    parts.push_back(sum);
  }
  // A last part of zeros, for columns that nothing is counted in.
  const ValueId none = c.emit(Op::kReduceSum, {cast(c, slice_axis(c, x, 1, Expr(0), Expr(0)), DType::kF32)},
                              {{key::kAxes, {1}}, {key::kKeepdims, 1}});
  parts.push_back(none);
  for (int64_t& place : from)
    if (place < 0) place = column;
  ValueId y = c.emit(Op::kGather, {c.emit(Op::kConcat, parts, {{key::kAxis, 1}}), c.constant_ints(from)},
                     {{key::kAxis, 1}});
  if (mode == "IDF") y = cast(c, binary(c, Op::kGreater, y, scalar(c, 0, DType::kF32)), DType::kF32);
  if (mode != "TF" && !weights.empty()) y = binary(c, Op::kMul, y, floats_constant(c, weight_of, {width}));
  c.outputs[0] = is_vector ? reshape(c, y, {Expr(width)}) : y;
}

}  // namespace ark::ops
