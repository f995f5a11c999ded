// Support vector machines of ai.onnx.ml: kernels between rows and vectors are matrices of f64, since distances of rows
// far from the origin are small differences of large squares.
#include <numeric>

#include "base/ir/keys.h"
#include "importer/ops/classic.h"

namespace ark::ops {
namespace {

ValueId doubles(OpContext& c, const std::vector<double>& values, Dims dims) {
  return c.graph.add_constant(make_constant(Tensor::of<double>(DType::kF64, std::move(dims), values)));
}

ValueId sum_of_squares(OpContext& c, ValueId x, int64_t keepdims) {
  return c.emit(Op::kReduceSumSquare, {x}, {{key::kAxes, {1}}, {key::kKeepdims, keepdims}});
}

// K [rows, count]: rows of x against `count` vectors that lie one after another in `vectors`.
ValueId kernel(OpContext& c, const std::vector<double>& vectors, int64_t count, const std::string& type) {
  const ValueId x = cast(c, rows_of(c), DType::kF64);
  const auto parameters = c.attr_floats("kernel_params");
  if (!parameters.empty() && parameters.size() != 3)
    c.fail("has " + std::to_string(parameters.size()) + " kernel_params, not 3");
  const auto number = [&](std::size_t i) {
    return scalar(c, i < parameters.size() ? parameters[i] : 0, DType::kF64);
  };
  if (vectors.empty() || vectors.size() % static_cast<std::size_t>(count))
    c.fail("has " + std::to_string(vectors.size()) + " numbers for " + std::to_string(count) + " vectors");
  const int64_t features = static_cast<int64_t>(vectors.size()) / count;
  c.require_equal(shape_of(c, x)[1], Expr(features), "the number of features");
  const ValueId all = doubles(c, vectors, {count, features});
  const ValueId products = c.emit(Op::kMatMul, {x, all}, {{key::kTransB, 1}});
  if (type == "LINEAR") return products;
  if (type == "RBF") {
    const ValueId squares = binary(c, Op::kAdd, sum_of_squares(c, x, 1), sum_of_squares(c, all, 0));
    const ValueId apart = binary(c, Op::kSub, squares, binary(c, Op::kAdd, products, products));
    return c.emit(Op::kExp, {binary(c, Op::kMul, apart, c.emit(Op::kNeg, {number(0)}))});
  }
  const ValueId moved = binary(c, Op::kAdd, binary(c, Op::kMul, products, number(0)), number(1));
  return type == "POLY" ? binary(c, Op::kPow, moved, number(2)) : c.emit(Op::kTanh, {moved});
}

std::string kernel_type(OpContext& c) {
  return c.attr_word("kernel_type", {"LINEAR", "POLY", "RBF", "SIGMOID"});
}

ValueId f32(OpContext& c, double value) { return scalar(c, value, DType::kF32); }

// What makes probabilities of classes out of those of pairs: a quadratic form [rows, classes, classes] that they make
// least, and where the search for them begins [rows, classes].
struct Coupling {
  ValueId form, first;
};
Coupling coupling(OpContext& c, ValueId of_pairs, int64_t classes) {
  const Expr rows = shape_of(c, of_pairs)[0];
  const int64_t pairs = classes * (classes - 1) / 2;
  // r[i][j] is the probability of i against j.
  std::vector<int64_t> places(static_cast<std::size_t>(classes * classes), 2 * pairs);
  int64_t pair = 0;
  for (int64_t i = 0; i < classes; ++i)
    for (int64_t j = i + 1; j < classes; ++j, ++pair) {
      places[static_cast<std::size_t>(i * classes + j)] = pair;
      places[static_cast<std::size_t>(j * classes + i)] = pairs + pair;
    }
  const ValueId against = binary(c, Op::kSub, f32(c, 1), of_pairs);
  const ValueId none = binary(c, Op::kMul, slice_axis(c, of_pairs, 1, Expr(0), Expr(1)), f32(c, 0));
  const ValueId all = c.emit(Op::kConcat, {of_pairs, against, none}, {{key::kAxis, 1}});
  const ValueId r = reshape(c, c.emit(Op::kGather, {all, c.constant_ints(places)}, {{key::kAxis, 1}}),
                            {rows, Expr(classes), Expr(classes)});
  const ValueId diagonal = c.emit(Op::kReduceSumSquare, {r}, {{key::kAxes, {1}}, {key::kKeepdims, 1}});
  std::vector<double> eye(static_cast<std::size_t>(classes * classes));
  for (int64_t i = 0; i < classes; ++i) eye[static_cast<std::size_t>(i * classes + i)] = 1;
  const ValueId form =
      binary(c, Op::kSub, binary(c, Op::kMul, diagonal, floats_constant(c, eye, {classes, classes})),
             binary(c, Op::kMul, r, transpose(c, r, {0, 2, 1})));
  const ValueId even =
      c.emit(Op::kAdd, {binary(c, Op::kMul, slice_axis(c, diagonal, 1, Expr(0), Expr(1)), f32(c, 0)),
                        f32(c, 1.0 / static_cast<double>(classes))});
  return {form, reshape(c, even, {rows, Expr(classes)})};
}

// Probabilities of classes [rows, classes] from those of pairs [rows, pairs], each of the first of both: libsvm's
// iteration (Wu, Lin and Weng, 2004), which ends for a row where it is near enough, as in ONNX Runtime.
ValueId coupled(OpContext& c, ValueId of_pairs, int64_t classes) {
  const Expr rows = shape_of(c, of_pairs)[0];
  const auto [form, first] = coupling(c, of_pairs, classes);
  auto graph = std::make_shared<Graph>();
  graph->folding = c.graph.folding;
  graph->symbols = c.graph.symbols;
  OpContext trip(*graph, c.node, c.opset, c.label, {});
  const auto given = [&](DType type, Shape shape) {
    graph->inputs.push_back(graph->add_value("", type, std::move(shape)));
    return graph->inputs.back();
  };
  given(DType::kI64, {}), given(DType::kBool, {});
  const ValueId before = given(DType::kF32, {rows, Expr(classes)});
  const ValueId inner = graph->add_value("", DType::kF32, Shape{rows, Expr(classes), Expr(classes)});
  graph->captured.emplace_back(form, inner);
  const auto summed = [&](ValueId x, int64_t axis, int64_t keepdims) {
    return trip.emit(Op::kReduceSum, {x}, {{key::kAxes, {axis}}, {key::kKeepdims, keepdims}});
  };
  ValueId p = before;
  ValueId qp = summed(binary(trip, Op::kMul, inner, reshape(trip, p, {rows, Expr(1), Expr(classes)})), 2, 0);
  ValueId pqp = summed(binary(trip, Op::kMul, p, qp), 1, 1);
  const ValueId error = trip.emit(Op::kReduceMax, {trip.emit(Op::kAbs, {binary(trip, Op::kSub, qp, pqp)})},
                                  {{key::kAxes, {1}}, {key::kKeepdims, 1}});
  const ValueId goes_on =
      binary(trip, Op::kGreaterOrEqual, error, f32(trip, 0.005 / static_cast<double>(classes)));
  for (int64_t k = 0; k < classes; ++k) {
    const ValueId row =
        reshape(trip, slice_axis(trip, inner, 1, Expr(k), Expr(k + 1)), {rows, Expr(classes)});
    const ValueId own = slice_axis(trip, row, 1, Expr(k), Expr(k + 1));
    const ValueId at = slice_axis(trip, qp, 1, Expr(k), Expr(k + 1));
    const ValueId step = binary(trip, Op::kDiv, binary(trip, Op::kSub, pqp, at), own);
    const ValueId scale = binary(trip, Op::kAdd, step, f32(trip, 1));
    const auto moved = [&](ValueId x, ValueId by) {
      return binary(trip, Op::kDiv, binary(trip, Op::kAdd, x, binary(trip, Op::kMul, step, by)), scale);
    };
    const ValueId slope =
        binary(trip, Op::kAdd, binary(trip, Op::kMul, step, own), binary(trip, Op::kMul, at, f32(trip, 2)));
    pqp = binary(trip, Op::kDiv, moved(pqp, slope), scale);
    qp = moved(qp, row);
    std::vector<double> one(static_cast<std::size_t>(classes));
    one[static_cast<std::size_t>(k)] = 1;
    p = moved(p, floats_constant(trip, one, {classes}));
  }
  const ValueId any = trip.emit(Op::kReduceMax, {cast(trip, goes_on, DType::kI32)}, {{key::kKeepdims, 0}});
  graph->outputs = {cast(trip, any, DType::kBool), trip.emit(Op::kWhere, {goes_on, p, before})};
  graph->output_names = {"", ""};
  const ValueId y = c.graph.add_value(c.label, DType::kUndefined, std::nullopt);
  const NodeId loop = c.graph.add_node(Op::kLoop, c.label,
                                       {scalar(c, 100, DType::kI64), scalar(c, 1, DType::kBool), first}, {y});
  c.graph.node(loop).subgraphs = {std::move(graph)};
  infer_node(c.graph, loop);
  return y;
}

}  // namespace

void svm_regressor(OpContext& c) {
  const auto weights = c.attr_floats("coefficients"), rho = c.attr_floats("rho");
  const int64_t count = c.attr_int("n_supports", 0);
  if (count < 0 || rho.size() != 1 || weights.empty() ||
      (count > 0 && weights.size() != static_cast<std::size_t>(count)))
    c.fail("its n_supports, coefficients and rho do not fit");
  // Without vectors the coefficients are the one that a linear kernel meets.
  const ValueId y =
      count > 0 ? c.emit(Op::kMatMul, {kernel(c, c.attr_floats("support_vectors"), count, kernel_type(c)),
                                       doubles(c, weights, {count, 1})})
                : kernel(c, weights, 1, "LINEAR");
  const ValueId score = binary(c, Op::kAdd, y, scalar(c, rho[0], DType::kF64));
  if (c.attr_int("one_class", 0)) {
    const ValueId is_inside = binary(c, Op::kGreater, score, scalar(c, 0, DType::kF64));
    c.outputs[0] = c.emit(Op::kWhere, {is_inside, scalar(c, 1, DType::kF32), scalar(c, -1, DType::kF32)});
    return;
  }
  c.outputs[0] = regressed(c, cast(c, score, DType::kF32), 1, post_transform_of(c));
}

namespace {

// How the scores of pairs of classes are made of those of vectors, and what they are as votes for classes.
struct Votes {
  std::vector<double> weights;   // [vectors, pairs]
  std::vector<double> of;        // [pairs, classes]: what a score above zero adds
  std::vector<double> at_first;  // [classes]: what classes have where no score is above zero
};

// `weights`: [classes - 1, vectors], of a class's vectors against each other class, in their order.
Votes votes_of_pairs(const std::vector<int64_t>& vectors_of, int64_t count,
                     const std::vector<double>& weights) {
  const auto classes = static_cast<int64_t>(vectors_of.size()), pairs = classes * (classes - 1) / 2;
  Votes votes{std::vector<double>(static_cast<std::size_t>(count * pairs)),
              std::vector<double>(static_cast<std::size_t>(pairs * classes)),
              std::vector<double>(static_cast<std::size_t>(classes))};
  std::vector<int64_t> starts(vectors_of.size());
  std::exclusive_scan(vectors_of.begin(), vectors_of.end(), starts.begin(), int64_t{0});
  int64_t pair = 0;
  const auto put = [&](int64_t of, int64_t row) {
    const auto start = starts[static_cast<std::size_t>(of)];
    for (int64_t k = start; k < start + vectors_of[static_cast<std::size_t>(of)]; ++k)
      votes.weights[static_cast<std::size_t>(k * pairs + pair)] =
          weights[static_cast<std::size_t>(row * count + k)];
  };
  for (int64_t i = 0; i < classes; ++i)
    for (int64_t j = i + 1; j < classes; ++j, ++pair) {
      put(i, j - 1), put(j, i);
      votes.of[static_cast<std::size_t>(pair * classes + i)] = 1;
      votes.of[static_cast<std::size_t>(pair * classes + j)] = -1;
      votes.at_first[static_cast<std::size_t>(j)] += 1;
    }
  return votes;
}

}  // namespace

// One score for each pair of classes, above zero for the first of both; the class of most such votes is chosen.
void svm_classifier(OpContext& c) {
  const ClassLabels labels(c, "classlabels_ints", "classlabels_strings");
  const auto vectors_of = c.attr_ints("vectors_per_class");
  const auto weights = c.attr_floats("coefficients"), rho = c.attr_floats("rho"),
             slopes = c.attr_floats("prob_a"), offsets = c.attr_floats("prob_b");
  const std::string transform = post_transform_of(c);
  const auto classes = static_cast<int64_t>(vectors_of.size());
  if (classes == 0) c.unsupported("a classifier without support vectors; export it as a LinearClassifier");
  int64_t count = 0;
  for (const int64_t n : vectors_of) {
    if (n < 0 || n > static_cast<int64_t>(weights.size()))
      c.fail("a class with " + std::to_string(n) + " vectors");
    count += n;
  }
  const int64_t pairs = classes * (classes - 1) / 2;
  if (classes < 2 || classes != labels.count() || count == 0 ||
      weights.size() != static_cast<std::size_t>((classes - 1) * count) ||
      rho.size() != static_cast<std::size_t>(pairs) || slopes.size() != offsets.size())
    c.fail("its numbers of labels, vectors, coefficients and rho do not fit");
  constexpr int64_t kMostCoupled = 64;  // classes with probabilities: each takes nodes of its own
  if (classes > kMostCoupled && !slopes.empty())
    c.unsupported("probabilities of more than " + std::to_string(kMostCoupled) +
                  " classes; export the model with its decision function");
  // Vectors by pairs of classes: of n numbers in the file this makes n^1.5.
  constexpr int64_t kMost = 1 << 24;
  if ((count + classes) * pairs > kMost)
    c.unsupported("a classifier of " + std::to_string(classes) + " classes and " + std::to_string(count) +
                  " vectors, whose pairs take more than " + std::to_string(kMost) + " numbers");
  if (!slopes.empty() && slopes.size() != static_cast<std::size_t>(pairs))
    c.fail("has " + std::to_string(slopes.size()) + " prob_a for " + std::to_string(pairs) + " pairs");
  if (transform != "NONE" && transform != "LOGISTIC") c.unsupported("post_transform " + transform);

  const Votes votes = votes_of_pairs(vectors_of, count, weights);
  const ValueId k = kernel(c, c.attr_floats("support_vectors"), count, kernel_type(c));
  const ValueId scores =
      binary(c, Op::kAdd, c.emit(Op::kMatMul, {k, doubles(c, votes.weights, {count, pairs})}),
             doubles(c, rho, {pairs}));
  const ValueId is_first = binary(c, Op::kGreater, scores, scalar(c, 0, DType::kF64));
  labels.choose_greatest(binary(
      c, Op::kAdd,
      c.emit(Op::kMatMul, {cast(c, is_first, DType::kF32), floats_constant(c, votes.of, {pairs, classes})}),
      floats_constant(c, votes.at_first, {classes})));

  const auto pair_of = [&](ValueId a, ValueId b) { return c.emit(Op::kConcat, {a, b}, {{key::kAxis, 1}}); };
  ValueId y = scores;
  if (!slopes.empty()) {
    const ValueId moved = binary(c, Op::kAdd, binary(c, Op::kMul, scores, doubles(c, slopes, {pairs})),
                                 doubles(c, offsets, {pairs}));
    const ValueId firsts =
        c.emit(Op::kClip, {c.emit(Op::kSigmoid, {c.emit(Op::kNeg, {moved})}), scalar(c, 1e-7, DType::kF64),
                           scalar(c, 1 - 1e-7, DType::kF64)});
    y = coupled(c, cast(c, firsts, DType::kF32), classes);
  } else if (classes == 2) {
    y = pair_of(c.emit(Op::kNeg, {scores}), scores);
  }
  c.outputs[1] = post_transformed(c, cast(c, y, DType::kF32), transform);
}

}  // namespace ark::ops
