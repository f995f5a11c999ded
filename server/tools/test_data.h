// ONNX backend data sets (input_N.pb, output_N.pb), .npy files, and the comparison of outputs.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ir/graph.h"
#include "base/tensor.h"

namespace ark::tools {

struct DataSet {
  std::vector<std::optional<Tensor>> inputs;   // by graph input
  std::vector<std::optional<Tensor>> outputs;  // by graph output; absent: not compared
};
// Reads DIR/input_N.pb and output_N.pb. Throws Error(kNotFound) if there is none, kUnsupported if one is no
// tensor.
DataSet read_data_set(const std::filesystem::path& directory, std::size_t inputs, std::size_t outputs);

// Absolute, without "." and "..", and without a '/' at the end: its last name is the data set's.
std::filesystem::path plain_path(const std::filesystem::path& path);

struct Tolerance {
  double relative = 1e-3, absolute = 1e-5;
  // [row, token] pairs whose logits and cache rows (past length + token) mean nothing.
  std::vector<std::pair<int64_t, int64_t>> ignored;
};
// From expected.json ("tolerance", "sets".NAME."padding_rows_to_ignore") or data.json ("rtol", "atol") beside
// the model; the defaults otherwise. Throws Error(kInvalidArgument) for files that say something else.
Tolerance tolerance_for(const std::filesystem::path& data_set);

// Which rows of one output the padding rule leaves out: batch and sequence axis and what is added to `token`.
struct PaddingAxes {
  int batch = 0, sequence = 1;
  int64_t shift = 0;
  int64_t parts = 1;  // of each row along the batch's axis
};
// nullopt: every |a-b| <= atol + rtol*|b|, integers and infinities equal; otherwise what differs most, where.
std::optional<std::string> difference(const Tensor& actual, const Tensor& expected,
                                      const Tolerance& tolerance, const std::optional<PaddingAxes>& padding);

// NumPy's formats 1.0 and 2.0, little-endian, C order, of a regular file. Throws Error(kInvalidArgument) for
// what is not.
Tensor read_npy(const std::filesystem::path& file);
void write_npy(const std::filesystem::path& file, const Tensor& tensor);

}  // namespace ark::tools
