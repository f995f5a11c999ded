// The tables of operator importers, one a family, gathered in registry.cc.
#pragma once

#include <span>

#include "importer/op_importer.h"

namespace ark::ops {

inline constexpr std::string_view kOnnx = "";
inline constexpr std::string_view kMl = "ai.onnx.ml";
inline constexpr std::string_view kMicrosoft = "com.microsoft";

struct Entry {
  std::string_view domain, op_type;
  OpImporter import;
};

// One row of base/ir/pointwise.h, found by the ONNX name.
void by_row(OpContext& c);

std::span<const Entry> pointwise_table();
std::span<const Entry> activation_table();
std::span<const Entry> creation_table();
std::span<const Entry> reshape_table();
std::span<const Entry> slicing_table();
std::span<const Entry> indexing_table();
std::span<const Entry> reduction_table();
std::span<const Entry> normalization_table();
std::span<const Entry> product_table();
std::span<const Entry> window_table();
std::span<const Entry> quantized_table();
std::span<const Entry> qlinear_table();
std::span<const Entry> attention_table();
std::span<const Entry> fused_attention_table();
std::span<const Entry> grouped_query_table();
std::span<const Entry> experts_table();
std::span<const Entry> recurrent_table();
std::span<const Entry> linear_attention_table();
std::span<const Entry> vision_table();
std::span<const Entry> signal_table();
std::span<const Entry> loss_table();
std::span<const Entry> classic_table();
std::span<const Entry> copies_table();
std::span<const Entry> gpu_fusions_table();
std::span<const Entry> random_table();
std::span<const Entry> refused_table();

}  // namespace ark::ops
