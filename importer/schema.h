// What operator schemas demand of a node: the table that scripts/onnx_schemas.py makes of the onnx and onnxruntime
// packages, for ai.onnx, ai.onnx.ml and com.microsoft. Other domains have none here.
#pragma once

#include <span>
#include <string>

#include "base/dtype.h"
#include "importer/onnx.h"

namespace ark::onnx {

// Throws Error(kBadModel) naming node, operator and opset if the operator is newer than `opset` or retired, or `node`
// has inputs, outputs or attributes that the schema does not have, lacks needed ones, or has them of other types.
void check_against_schema(const Node& node, int64_t opset, const std::string& label);
// The same for the inputs' element types; kUndefined where one is not given or not known.
void check_input_types(const Node& node, int64_t opset, const std::string& label,
                       std::span<const DType> types);
// The same for the rank of an input, which schemas say in words only.
void check_input_rank(const Node& node, const std::string& label, std::size_t input, std::size_t rank);
// Whether there is an operator of that name; true where its domain has no table.
bool has_schema(const Node& node);
// Throws Error(kUnsupported): nothing here computes it.
[[noreturn]] void refuse_unknown(const Node& node, int64_t opset, const std::string& label);

// What needs no shapes, for every graph and function of the file, used or not: each name is assigned once and read
// where it is visible, nodes are as their schemas demand, functions do not recurse, and branches agree.
void check_model(const Model& model, const Limits& limits);

// "name (Operator)", escaped, for messages.
std::string label_of(const std::string& prefix, const Node& node, std::size_t index);

}  // namespace ark::onnx
