// What importers of ai.onnx.ml share.
#pragma once

#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {

ValueId floats_constant(OpContext& c, const std::vector<double>& values, Dims dims);
// Input 0, a matrix [rows, features] of numbers, as f32; one row may come as a vector.
ValueId rows_of(OpContext& c);

// The attribute, and scores [N, classes] after it.
std::string post_transform_of(OpContext& c);
ValueId post_transformed(OpContext& c, ValueId scores, const std::string& transform);
// The same of a regressor: ONNX Runtime leaves a single target as it is, and who made the file saw what that gives.
ValueId regressed(OpContext& c, ValueId scores, int64_t targets, const std::string& transform);

// Integers or strings of a node's attributes, whichever it has, [n].
ValueId labels_constant(OpContext& c, const std::string& integers, const std::string& strings);

// The labels of a classifier, and how its first output is chosen of them.
class ClassLabels {
 public:
  ClassLabels(OpContext& c, const std::string& integers, const std::string& strings);
  int64_t count() const { return count_; }
  void choose_greatest(ValueId scores) const;  // scores [N, classes]
  // score [N, 1]: the second label where it is greater.
  void choose_by_sign(ValueId score, double above) const;

 private:
  void choose(ValueId index) const;
  OpContext& context_;
  ValueId labels_;
  int64_t count_;
};

// Importers in trees.cc.
void tree_ensemble_regressor(OpContext& c);
void tree_ensemble_classifier(OpContext& c);
void tree_ensemble(OpContext& c);

// Importers in features.cc.
void cdist(OpContext& c);
void tf_idf_vectorizer(OpContext& c);

// Importers in svm.cc.
void svm_regressor(OpContext& c);
void svm_classifier(OpContext& c);

}  // namespace ark::ops
