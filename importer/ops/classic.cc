// ai.onnx.ml: what converters of scikit-learn and of boosted trees write.
#include "importer/ops/classic.h"

#include <numeric>

#include "base/ir/keys.h"
#include "base/texts.h"

namespace ark::ops {

ValueId floats_constant(OpContext& c, const std::vector<double>& values, Dims dims) {
  const std::vector<float> narrow(values.begin(), values.end());
  return c.graph.add_constant(make_constant(Tensor::of<float>(DType::kF32, std::move(dims), narrow)));
}

ValueId rows_of(OpContext& c) {
  const ValueId x = cast(c, c.input(0), DType::kF32);
  const Shape shape = shape_of(c, x);
  if (shape.size() == 2) return x;
  if (shape.size() != 1) c.fail("its input has rank " + std::to_string(shape.size()) + ", not 1 or 2");
  return reshape(c, x, {Expr(1), shape[0]});
}

ValueId post_transformed(OpContext& c, ValueId scores, const std::string& transform) {
  if (transform == "NONE") return scores;
  if (transform == "LOGISTIC") return c.emit(Op::kSigmoid, {scores});
  if (transform == "SOFTMAX") return c.emit(Op::kSoftmax, {scores}, {{key::kAxis, 1}});
  c.unsupported("post_transform " + transform);
}

ValueId regressed(OpContext& c, ValueId scores, int64_t targets, const std::string& transform) {
  const bool is_kept = targets == 1 && (transform == "LOGISTIC" || transform == "SOFTMAX");
  return is_kept ? scores : post_transformed(c, scores, transform);
}

std::string post_transform_of(OpContext& c) {
  return c.attr_word("post_transform", {"NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"});
}

ValueId labels_constant(OpContext& c, const std::string& integers, const std::string& strings) {
  const auto numbers = c.attr_ints(integers);
  const onnx::Attribute* texts = c.node.attribute(strings);
  if (!numbers.empty() || !texts) return c.constant_ints(numbers);
  return c.graph.add_constant(
      make_constant(tensor_of_texts({static_cast<int64_t>(texts->strings.size())}, texts->strings)));
}

ClassLabels::ClassLabels(OpContext& c, const std::string& integers, const std::string& strings)
    : context_(c),
      labels_(labels_constant(c, integers, strings)),
      count_(constant_dim(c, labels_, 0, "the number of class labels")) {
  if (count_ == 0) c.fail("has no class labels");
}

void ClassLabels::choose(ValueId index) const {
  context_.outputs[0] = context_.emit(Op::kGather, {labels_, index}, {{key::kAxis, 0}});
}

void ClassLabels::choose_greatest(ValueId scores) const {
  choose(context_.emit(Op::kArgMax, {scores},
                       {{key::kAxis, 1}, {key::kKeepdims, 0}, {key::kSelectLastIndex, 0}}));
}

void ClassLabels::choose_by_sign(ValueId score, double above) const {
  const Shape rows{shape_of(context_, score)[0]};
  const ValueId is_second = binary(context_, Op::kGreater, reshape(context_, score, rows),
                                   scalar(context_, above, dtype_of(context_, score)));
  choose(cast(context_, is_second, DType::kI64));
}

namespace {

// Numbers of an attribute must be one, or one for each feature: the last axis of input 0.
void expect_features(OpContext& c, const char* name, std::size_t count) {
  if (count <= 1) return;
  const Shape& shape = shape_of(c, c.input(0));
  if (shape.empty()) c.fail("its input has no features");
  c.require_equal(shape.back(), Expr(static_cast<int64_t>(count)),
                  std::string("the number of features, by ") + name + ",");
}

// One number for all features or one for each.
ValueId by_feature(OpContext& c, const char* name, double otherwise) {
  std::vector<double> values = c.attr_floats(name);
  if (values.empty()) values = {otherwise};
  expect_features(c, name, values.size());
  return floats_constant(c, values, {static_cast<int64_t>(values.size())});
}

void scaler(OpContext& c) {
  const ValueId moved = binary(c, Op::kSub, cast(c, c.input(0), DType::kF32), by_feature(c, "offset", 0));
  c.outputs[0] = binary(c, Op::kMul, moved, by_feature(c, "scale", 1));
}

// Rows whose norm is zero stay as they are.
void normalizer(OpContext& c) {
  const std::string norm = c.attr_word("norm", {"MAX", "L1", "L2"});
  const ValueId x = cast(c, c.input(0), DType::kF32), zero = scalar(c, 0, DType::kF32);
  const Op op = norm == "MAX" ? Op::kReduceMax : norm == "L1" ? Op::kReduceL1 : Op::kReduceL2;
  const ValueId size = c.emit(op, {x}, {{key::kAxes, {c.rank(0) - 1}}, {key::kKeepdims, 1}});
  c.outputs[0] =
      binary(c, Op::kDiv, x,
             c.emit(Op::kWhere, {binary(c, Op::kEqual, size, zero), scalar(c, 1, DType::kF32), size}));
}

void binarizer(OpContext& c) {
  const DType type = dtype_of(c, c.input(0));
  const ValueId x = cast(c, c.input(0), DType::kF32);
  c.outputs[0] =
      cast(c, binary(c, Op::kGreater, x, scalar(c, c.attr_float("threshold", 0), DType::kF32)), type);
}

void array_feature_extractor(OpContext& c) {
  const ValueId flat = reshape(c, c.input(1), {element_count(shape_of(c, c.input(1)))});
  const ValueId x =
      c.rank(0) == 1 ? reshape(c, c.input(0), {Expr(1), shape_of(c, c.input(0))[0]}) : c.input(0);
  c.outputs[0] = c.emit(Op::kGather, {x, flat}, {{key::kAxis, rank_of(c, x) - 1}});
}

void feature_vectorizer(OpContext& c) {
  const std::vector<int64_t> widths = c.attr_ints("inputdimensions");
  std::vector<ValueId> in;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const ValueId x = cast(c, c.input(i), DType::kF32);
    if (rank_of(c, x) != 2)
      c.fail("input " + std::to_string(i) + " has rank " + std::to_string(rank_of(c, x)) + ", not 2");
    const std::optional<int64_t> width = shape_of(c, x)[1].constant();
    if (i < widths.size() && width && *width != widths[i])
      c.unsupported("input " + std::to_string(i) + " has " + std::to_string(*width) +
                    " columns, which inputdimensions would make " + std::to_string(widths[i]));
    if (i < widths.size()) c.require_equal(shape_of(c, x)[1], Expr(widths[i]), "the number of columns");
    in.push_back(x);
  }
  c.outputs[0] = in.size() == 1 ? in[0] : c.emit(Op::kConcat, in, {{key::kAxis, 1}});
}

// One for each feature; where there is another number of them the first stands for all, as in ONNX Runtime.
template <typename T>
std::vector<T> fillings(OpContext& c, const char* name, std::vector<T> values) {
  const Shape& shape = shape_of(c, c.input(0));
  const auto features = shape.empty() ? std::optional<int64_t>() : shape.back().constant();
  if (values.size() > 1 && features && *features != static_cast<int64_t>(values.size())) values.resize(1);
  expect_features(c, name, values.size());
  return values;
}

void imputer(OpContext& c) {
  const ValueId x = c.input(0);
  const bool real = is_floating(dtype_of(c, x));
  ValueId values = kNoValue, is_missing = kNoValue;
  if (real) {
    const double missing = c.attr_float("replaced_value_float", 0);
    std::vector<double> all = c.attr_floats("imputed_value_floats");
    if (all.empty()) all = {0};
    const auto given = fillings(c, "imputed_value_floats", all);
    values = cast(c, floats_constant(c, given, {static_cast<int64_t>(given.size())}), dtype_of(c, x));
    is_missing = missing != missing ? c.emit(Op::kIsNaN, {x})
                                    : binary(c, Op::kEqual, x, scalar(c, missing, dtype_of(c, x)));
  } else {
    const auto given = fillings(c, "imputed_value_int64s", c.attr_ints("imputed_value_int64s"));
    if (given.empty()) c.fail("imputed_value_int64s is missing");
    values = cast(c, c.constant_ints(given), dtype_of(c, x));
    is_missing =
        binary(c, Op::kEqual, x,
               scalar(c, static_cast<double>(c.attr_int("replaced_value_int64", 0)), dtype_of(c, x)));
  }
  c.outputs[0] = c.emit(Op::kWhere, {is_missing, values, x});
}

// One where the element is the category.
void one_hot_encoder(OpContext& c) {
  const ValueId categories = bits_of_texts(c, labels_constant(c, "cats_int64s", "cats_strings"));
  const bool are_texts = !c.attr_ints("cats_int64s").size() && c.has_attr("cats_strings");
  if (are_texts != (dtype_of(c, c.input(0)) == DType::kString))
    c.fail("has categories of another type than its input");
  const int64_t count = constant_dim(c, categories, 0, "the number of categories");
  Shape shape = shape_of(c, c.input(0));
  shape.emplace_back(1);
  ValueId x = reshape(c, cast(c, bits_of_texts(c, c.input(0)), DType::kI64), shape);
  if (!c.attr_int("zeros", 1)) {  // what is no category is an error: a place behind their end
    std::vector<int64_t> places(static_cast<std::size_t>(count));
    std::iota(places.begin(), places.end(), 0);
    const ValueId place = c.emit(Op::kLookup, {x, categories, c.constant_ints(places),
                                               scalar(c, static_cast<double>(count), DType::kI64)});
    x = c.emit(Op::kGather, {categories, place}, {{key::kAxis, 0}});
  }
  c.outputs[0] = cast(c, binary(c, Op::kEqual, x, categories), DType::kF32);
}

// Scores of each row: its product with a matrix of `count` rows of the attribute, and the attribute's intercepts.
ValueId linear_scores(OpContext& c, int64_t count) {
  const ValueId x = rows_of(c);
  const auto weights = c.attr_floats("coefficients"), bias = c.attr_floats("intercepts");
  if (count < 1 || weights.empty() || weights.size() % static_cast<std::size_t>(count))
    c.fail("has " + std::to_string(weights.size()) + " coefficients for " + std::to_string(count) +
           " targets");
  const int64_t features = static_cast<int64_t>(weights.size()) / count;
  c.require_equal(shape_of(c, x)[1], Expr(features), "the number of features");
  const ValueId y =
      c.emit(Op::kMatMul, {x, floats_constant(c, weights, {count, features})}, {{key::kTransB, 1}});
  if (bias.empty()) return y;
  if (bias.size() != static_cast<std::size_t>(count))
    c.fail("has " + std::to_string(bias.size()) + " intercepts");
  return binary(c, Op::kAdd, y, floats_constant(c, bias, {count}));
}

void linear_regressor(OpContext& c) {
  const int64_t targets = c.attr_int("targets", 1);
  c.outputs[0] = regressed(c, linear_scores(c, targets), targets, post_transform_of(c));
}

void linear_classifier(OpContext& c) {
  const ClassLabels labels(c, "classlabels_ints", "classlabels_strings");
  const std::string transform = post_transform_of(c);
  const auto intercepts = static_cast<int64_t>(c.attr_floats("intercepts").size());
  const ValueId scores = linear_scores(c, intercepts > 0 ? intercepts : labels.count());
  if (intercepts == 1 && labels.count() == 2) {  // one score: of the second class
    labels.choose_by_sign(scores, 0);
    const ValueId second = transform == "LOGISTIC" ? c.emit(Op::kSigmoid, {scores}) : scores;
    if (transform != "NONE" && transform != "LOGISTIC")
      c.unsupported("post_transform " + transform + " of one score");
    c.outputs[1] = c.emit(Op::kConcat, {binary(c, Op::kSub, scalar(c, 1, DType::kF32), second), second},
                          {{key::kAxis, 1}});
    return;
  }
  if (const auto width = shape_of(c, scores)[1].constant(); width != labels.count())
    c.fail("has " + std::to_string(labels.count()) + " labels for scores of another number");
  labels.choose_greatest(scores);
  c.outputs[1] = post_transformed(c, scores, transform);
}

// A tensor of keys or values by whichever attribute the node has.
ValueId encoder_list(OpContext& c, const std::string& what) {
  const onnx::Attribute* tensor = c.node.attribute(what + "_tensor");
  if (tensor && tensor->t.constant) {
    const Dims all{tensor->t.constant->size()};
    return reshape(c, c.graph.add_constant(tensor->t.constant), Shape(all.begin(), all.end()));
  }
  if (!c.has_attr(what + "_floats")) return labels_constant(c, what + "_int64s", what + "_strings");
  const auto reals = c.attr_floats(what + "_floats");
  return floats_constant(c, reals, {static_cast<int64_t>(reals.size())});
}

// What stands for a key that is not there, of `type`.
ValueId encoder_default(OpContext& c, DType type) {
  if (type == DType::kString) {
    const std::string text = c.attr_string("default_string", "_Unused");
    return c.graph.add_constant(make_constant(tensor_of_texts({}, {&text, 1})));
  }
  return is_floating(type) ? scalar(c, c.attr_float("default_float", -0.0), type)
                           : scalar(c, static_cast<double>(c.attr_int("default_int64", -1)), type);
}

void look_up(OpContext& c, ValueId keys, ValueId values, ValueId otherwise) {
  if ((dtype_of(c, keys) == DType::kString) != (dtype_of(c, c.input(0)) == DType::kString))
    c.fail("has keys of another type than its input");
  const ValueId x = bits_of_texts(c, c.input(0)), own = bits_of_texts(c, keys);
  c.outputs[0] = c.emit(Op::kLookup, {cast(c, x, dtype_of(c, own)), own, values, otherwise});
}

// Texts to numbers and back, by the type of the input.
void map_categories(OpContext& c, ValueId texts, ValueId numbers) {
  const bool from_texts = dtype_of(c, c.input(0)) == DType::kString;
  look_up(c, from_texts ? texts : numbers, from_texts ? numbers : texts,
          encoder_default(c, from_texts ? DType::kI64 : DType::kString));
}

void label_encoder(OpContext& c) {
  if (c.opset < 2) {
    const ValueId classes = labels_constant(c, "", "classes_strings");
    std::vector<int64_t> places(
        static_cast<std::size_t>(constant_dim(c, classes, 0, "the number of classes")));
    std::iota(places.begin(), places.end(), 0);
    return map_categories(c, classes, c.constant_ints(places));
  }
  ValueId keys = encoder_list(c, "keys"), values = encoder_list(c, "values");
  if (c.opset < 4 && is_floating(dtype_of(c, keys))) {  // ONNX Runtime finds no NaN there
    const auto reals = c.attr_floats("keys_floats");
    std::vector<int64_t> places;
    for (std::size_t i = 0; i < reals.size(); ++i)
      if (reals[i] == reals[i]) places.push_back(static_cast<int64_t>(i));
    for (ValueId* list : {&keys, &values})
      *list = c.emit(Op::kGather, {*list, c.constant_ints(places)}, {{key::kAxis, 0}});
  }
  const onnx::Attribute* given = c.node.attribute("default_tensor");
  look_up(c, keys, values,
          given && given->t.constant ? c.graph.add_constant(given->t.constant)
                                     : encoder_default(c, dtype_of(c, values)));
}

void category_mapper(OpContext& c) {
  map_categories(c, labels_constant(c, "", "cats_strings"), c.constant_ints(c.attr_ints("cats_int64s")));
}

// A map for each row, from labels to scores, is the scores and, as an output of its own, the labels.
void map_of_scores(OpContext& c) {
  const ValueId scores = cast(c, c.input(0), DType::kF32);
  c.labels = labels_constant(c, "classlabels_int64s", "classlabels_strings");
  const int64_t count = constant_dim(c, c.labels, 0, "the number of class labels");
  const Shape& shape = shape_of(c, scores);
  if (shape.empty() || shape.size() > 2)
    c.fail("its input has rank " + std::to_string(shape.size()) + ", not 1 or 2");
  c.require_equal(shape.back(), Expr(count), "the number of scores");
  c.outputs[0] = c.emit(Op::kIdentity, {scores});
}

}  // namespace

std::span<const Entry> classic_table() {
  static constexpr Entry kTable[] = {
      {kMl, "Scaler", scaler},
      {kMl, "Normalizer", normalizer},
      {kMl, "Binarizer", binarizer},
      {kMl, "ArrayFeatureExtractor", array_feature_extractor},
      {kMl, "FeatureVectorizer", feature_vectorizer},
      {kMl, "Imputer", imputer},
      {kMl, "OneHotEncoder", one_hot_encoder},
      {kMl, "LinearRegressor", linear_regressor},
      {kMl, "LinearClassifier", linear_classifier},
      {kMl, "LabelEncoder", label_encoder},
      {kMl, "CategoryMapper", category_mapper},
      {kMl, "TreeEnsembleRegressor", tree_ensemble_regressor},
      {kMl, "TreeEnsembleClassifier", tree_ensemble_classifier},
      {kMl, "TreeEnsemble", tree_ensemble},
      {kMl, "SVMRegressor", svm_regressor},
      {kMl, "SVMClassifier", svm_classifier},
      {kMl, "ZipMap", map_of_scores},
      {kMicrosoft, "CDist", cdist},
      {kOnnx, "TfIdfVectorizer", tf_idf_vectorizer},
  };
  return kTable;
}

}  // namespace ark::ops
